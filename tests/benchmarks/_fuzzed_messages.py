"""Fuzzed messages: bad messages that a flow must survive.

`Fuzzer` breaks good messages of a JSON topic, of a topic of tagged elements and of a companion topic in many
ways, from a seed. It checks that a message is bad with Python's JSON and flowcore's one-at-a-time
serializers, without Spark. A broken message that is still good is discarded.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from flowcore.api.schema import Schema
from flowcore.errors import SerializationError
from flowcore.serializers import LatencyMarkerEventSerializer, Tag, TaggedSerializer
from flowcore.serializers.formats import RawFormat
from flowcore.serializers.tagged import TIMESTAMP_BYTES

__all__ = ["FAULTS", "VALUE_FAULTS", "Fuzzer", "is_marker_event", "is_tagged", "is_value"]

Fuzzed = tuple[str, bytes | None]
"""The fault of a message, and its bytes."""


def _is_double(field: object) -> bool:
    """A number, or the text of one that JSON cannot write as a number."""
    if isinstance(field, str):
        return field in ("NaN", "Infinity", "-Infinity")
    return type(field) in (int, float) and field not in (math.inf, -math.inf)


_TYPES: Final[Mapping[str, Callable[[Any], bool]]] = {
    "BIGINT": lambda field: type(field) is int and -(2**63) <= field < 2**63,
    "DOUBLE": _is_double,
    "STRING": lambda field: type(field) is str,
    "BOOLEAN": lambda field: type(field) is bool,
}
_TAGGED: Final = TaggedSerializer(RawFormat(), "fuzz")
_EVENTS: Final = LatencyMarkerEventSerializer()
_LARGEST_TAG: Final = max(Tag)
_RECORD_TAGS: Final = tuple(bytes((tag,)) for tag in (Tag.RECORD, Tag.RECORD_WITH_TIMESTAMP))
_RANDOM_BYTES: Final = 80


def is_value(schema: Schema, value: bytes | None) -> bool:
    """Whether bytes are one JSON object of these columns, as documented in docs/flows.md.

    >>> is_value(Schema.parse("id BIGINT NOT NULL"), b'{"id":1}')
    True
    >>> is_value(Schema.parse("id BIGINT NOT NULL"), b'{"id":1.0}')
    False
    """
    try:
        return value is not None and _fits(schema, json.loads(value.decode(), parse_constant=_refuse))
    except (ValueError, RecursionError):
        return False


def is_tagged(schema: Schema, element: bytes | None) -> bool:
    """Whether bytes are a stream element, whose value, if it is a record, is one of these columns."""
    try:
        found = _TAGGED.decode(element or b"")
    except SerializationError:
        return False
    value = getattr(found, "value", None)
    return value is None or is_value(schema, value)


def is_marker_event(event: bytes | None) -> bool:
    """Whether bytes are a latency marker event."""
    try:
        _EVENTS.decode(event or b"")
    except SerializationError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Fuzzer:
    """Makes bad messages from good ones.

    Args:
        schema: The columns of the topic: BIGINT, of which there is at least one, DOUBLE, STRING and BOOLEAN.
        random: The source of all choices; the same seed gives the same messages.

    >>> fuzzer = Fuzzer(Schema.parse("id BIGINT NOT NULL"), Random(1))
    >>> is_value(fuzzer.schema, fuzzer.value(b'{"id":1}')[1])
    False
    """

    schema: Schema
    random: Random = field(repr=False)

    def value(self, good: bytes) -> Fuzzed:
        """Make a bad value of a plain topic from a good one; None for a message without a value."""
        return self._bad(_VALUES, good, lambda value: not is_value(self.schema, value))

    def element(self, good: bytes) -> Fuzzed:
        """Make a bad element of a topic of tagged elements from the bytes of a good record."""
        return self._bad(_ELEMENTS, good, lambda element: not is_tagged(self.schema, element))

    def event(self, good: bytes) -> Fuzzed:
        """Make a bad event of a companion topic from a good one."""
        return self._bad(_EVENT_FAULTS, good, lambda event: not is_marker_event(event))

    def oversize(self, size_bytes: int) -> bytes:
        """Make a bad value of this size: an object whose only text does not end."""
        head = b'{"' + self.schema.names[0].encode() + b'":"'
        return (head + self.random.randbytes(16).hex().encode() * (size_bytes // 32 + 1))[:size_bytes]

    def _bad(
        self, faults: Mapping[str, _Fault], good: bytes, is_bad: Callable[[bytes | None], bool]
    ) -> Fuzzed:
        while True:
            kind = self.random.choice(list(faults))
            found = faults[kind](self, good)
            if is_bad(found):
                return kind, found


_Fault = Callable[[Fuzzer, bytes], bytes | None]


def _flip_byte(fuzzer: Fuzzer, good: bytes) -> bytes:
    place = fuzzer.random.randrange(len(good))
    return good[:place] + bytes((good[place] ^ fuzzer.random.randrange(1, 256),)) + good[place + 1 :]


def _noise(fuzzer: Fuzzer, _good: bytes) -> bytes:
    return fuzzer.random.randbytes(fuzzer.random.randrange(1, _RANDOM_BYTES))


def _break_type(fuzzer: Fuzzer, good: bytes) -> bytes:
    row = json.loads(good)
    column = fuzzer.random.choice(fuzzer.schema.columns)
    others = ["twelve", "1", "", True, [1], {"a": 1}, 2**63, 1.5, -(2**70), math.nan, math.inf]
    row[column.name] = fuzzer.random.choice(others)
    return json.dumps(row, ensure_ascii=False).encode()


def _append_object(fuzzer: Fuzzer, good: bytes) -> bytes:
    """The object, and more that ends as an object does."""
    between = fuzzer.random.choice([b"", b" ", b"\n", b",", b"]", b"}", b"] ", b",0] ", b":"])
    return good + between + fuzzer.random.choice([good, b"{}", b"x}", b"}"])


def _null_required(fuzzer: Fuzzer, good: bytes) -> bytes:
    return json.dumps(json.loads(good) | {_required_column(fuzzer): None}).encode()


def _remove_required(fuzzer: Fuzzer, good: bytes) -> bytes:
    row = json.loads(good)
    del row[_required_column(fuzzer)]
    return json.dumps(row).encode()


def _required_column(fuzzer: Fuzzer) -> str:
    return fuzzer.random.choice([column.name for column in fuzzer.schema.columns if not column.nullable])


def _replace_object(fuzzer: Fuzzer, _good: bytes) -> bytes:
    return fuzzer.random.choice([b'"text"', b"1", b"true", b"null", b"{", b"}", b"{}", b"{}{"])


def _insert(*texts: bytes) -> _Fault:
    """Insert one of some texts next to a quotation mark."""

    def broken(fuzzer: Fuzzer, good: bytes) -> bytes:
        place = fuzzer.random.choice([place for place, byte in enumerate(good) if byte == ord('"')])
        place += fuzzer.random.randrange(2)
        return good[:place] + fuzzer.random.choice(texts) + good[place:]

    return broken


def _append_member(*texts: bytes) -> _Fault:
    """Append one of some texts to the members of the object."""

    def broken(fuzzer: Fuzzer, good: bytes) -> bytes:
        return good.rstrip()[:-1] + b"," + fuzzer.random.choice(texts) + b"}"

    return broken


def _replace_number(*texts: str) -> _Fault:
    """Write one of some texts instead of a whole number."""
    return lambda fuzzer, good: _with_number(fuzzer, good, fuzzer.random.choice(texts))


def _with_number(fuzzer: Fuzzer, good: bytes, text: str) -> bytes:
    chosen = _whole_number(fuzzer)
    members = {name: json.dumps(found) for name, found in json.loads(good).items()} | {chosen: text}
    return ("{" + ", ".join(f"{json.dumps(name)}: {found}" for name, found in members.items()) + "}").encode()


def _whole_number(fuzzer: Fuzzer) -> str:
    return fuzzer.random.choice([column.name for column in fuzzer.schema.columns if column.type == "BIGINT"])


def _many_digits(fuzzer: Fuzzer, good: bytes) -> bytes:
    digits = "".join(fuzzer.random.choices("123456789", k=400))
    return _with_number(fuzzer, good, fuzzer.random.choice(("", "-")) + digits)


def _deep(fuzzer: Fuzzer, good: bytes) -> bytes:
    depth = fuzzer.random.randrange(2, 3_000)
    return _with_number(fuzzer, good, "[" * depth + "]" * depth)


def _duplicate(fuzzer: Fuzzer, good: bytes) -> bytes | None:
    """Name a field twice, the second time with a text for a number."""
    return _append_member(f'"{_whole_number(fuzzer)}":"x"'.encode())(fuzzer, good)


def _unquoted_name(fuzzer: Fuzzer, good: bytes) -> bytes:
    name = _whole_number(fuzzer).encode()
    return good.replace(b'"%b"' % name, name)


def _utf16(fuzzer: Fuzzer, good: bytes) -> bytes:
    return good.decode().encode(fuzzer.random.choice(("utf-16", "utf-16-le", "utf-16-be")))


def _null_byte(fuzzer: Fuzzer, good: bytes) -> bytes:
    place = fuzzer.random.randrange(len(good) + 1)
    return good[:place] + b"\0" + good[place:]


def _in_value(fault: _Fault) -> _Fault:
    """Break an element's value and keep its head."""

    def broken(fuzzer: Fuzzer, good: bytes) -> bytes:
        head = _head_bytes(good)
        return good[:head] + (fault(fuzzer, good[head:]) or b"")

    return broken


def _head_bytes(element: bytes) -> int:
    return 1 + (TIMESTAMP_BYTES if element[0] == Tag.RECORD_WITH_TIMESTAMP else 0)


def _replace_tag(fuzzer: Fuzzer, good: bytes) -> bytes:
    unknown = fuzzer.random.randrange(_LARGEST_TAG + 1, 256)
    return bytes((fuzzer.random.choice([*range(1, _LARGEST_TAG + 1), unknown]),)) + good[1:]


def _break_control(fuzzer: Fuzzer, _good: bytes) -> bytes:
    """A control element of random length and content."""
    tag = fuzzer.random.choice([t for t in Tag if t not in (Tag.RECORD, Tag.RECORD_WITH_TIMESTAMP)])
    return bytes((tag,)) + fuzzer.random.randbytes(fuzzer.random.randrange(12))


def _not_one(fuzzer: Fuzzer) -> bytes:
    return bytes((fuzzer.random.choice([0, *range(2, 256)]),))


_BYTES: Final[dict[str, _Fault]] = {
    "null": lambda _fuzzer, _good: None,
    "empty": lambda _fuzzer, _good: b"",
    "random bytes": _noise,
    "one byte flipped": _flip_byte,
    "cut": lambda fuzzer, good: good[: fuzzer.random.randrange(len(good))],
    "cut in front": lambda fuzzer, good: good[fuzzer.random.randrange(1, len(good)) :],
    "followed by something": lambda fuzzer, good: good + _noise(fuzzer, good),
}
_VALUES: Final[dict[str, _Fault]] = _BYTES | {
    "wrong type": _break_type,
    "null where required": _null_required,
    "required field missing": _remove_required,
    "no object": _replace_object,
    "several objects": _append_object,
    "array for an object": lambda fuzzer, good: fuzzer.random.choice([b"[%b]" % good, b"[]", b"[{}]"]),
    "whitespace": lambda fuzzer, _good: bytes(fuzzer.random.choices(b" \t\r\n", k=5)),
    "single quotes": lambda _fuzzer, good: good.replace(b'"', b"'"),
    "name without quotes": _unquoted_name,
    "comma at the end": _append_member(b""),
    "comment": _insert(b"/**/", b"//\n", b"#\n"),
    "field twice": _duplicate,
    "not UTF-8": _insert(b"\xff", b"\xfe"),
    "truncated UTF-8": _insert(b"\xc3", b"\xe2\x82", b"\xf0\x9f\x98"),
    "overlong UTF-8": _insert(b"\xc0", b"\xc0\xa2", b"\xe0\x80\xa2", b"\xf0\x80\x80\xa2"),
    "surrogate in UTF-8": _insert(b"\xed\xa0\x80", b"\xed\xbf\xbf"),
    "byte order mark": lambda _fuzzer, good: b"\xef\xbb\xbf" + good,
    "UTF-16": _utf16,
    "null byte": _null_byte,
    "control character": _insert(b"\x01", b"\x0b", b"\x1b", b"\x1f"),
    "unknown escape": _insert(rb"\x41", rb"\u12", rb"\'", rb"\u{41}"),
    "lone surrogate for a number": _replace_number(r'"\ud800"', r'"\udfff1"'),
    "NaN for a whole number": _replace_number("NaN", "Infinity", "-Infinity"),
    "400 digits": _many_digits,
    "exponent": _replace_number("1e999999999", "1E+400", "-1e-400", "1e0"),
    "negative zero": _replace_number("-0.0", "-00", "-0e0"),
    "leading plus": _replace_number("+1", "+0"),
    "leading zero": _replace_number("007", "00", "-01"),
    "number of another language": _replace_number("0x1F", "1_000", ".5", "5.", "1L", "1,5"),
    "nested deep": _deep,
    "huge text for a number": lambda fuzzer, good: _with_number(
        fuzzer, good, f'"{"9" * fuzzer.random.randrange(1_000, 20_000)}"'
    ),
}
VALUE_FAULTS: Final = tuple(_VALUES)
"""The faults of values of plain topics."""
_ELEMENTS: Final[dict[str, _Fault]] = (
    _BYTES
    | {f"value: {kind}": _in_value(fault) for kind, fault in _VALUES.items()}
    | {
        "wrong tag": _replace_tag,
        "no tag": lambda _fuzzer, good: good[_head_bytes(good) :],
        "broken control element": _break_control,
    }
)
_EVENT_FAULTS: Final[dict[str, _Fault]] = _BYTES | {
    "wrong version": lambda fuzzer, good: _not_one(fuzzer) + good[1:],
    "wrong kind": lambda fuzzer, good: good[:1] + _not_one(fuzzer) + good[2:],
}


FAULTS: Final = (*_ELEMENTS, *(kind for kind in (*_VALUES, *_EVENT_FAULTS) if kind not in _ELEMENTS))
"""All faults."""


def _fits(schema: Schema, row: object) -> bool:
    if not isinstance(row, dict):
        return False
    return all(
        column.nullable if row.get(column.name) is None else _TYPES[column.type](row[column.name])
        for column in schema.columns
    )


def _refuse(word: str) -> None:
    raise ValueError(word)
