"""Fuzzed messages: what may arrive in a topic that no flow can use, and that none may choke on?

`Fuzzer` breaks good messages of a JSON topic, of a topic of tagged elements and of a companion topic, in many
ways, from a seed. What it hands out is bad by a judgement of its own, made with Python's JSON and with
flowcore's one-at-a-time serializers; Spark is not asked. A broken message that turns out to be still good
is thrown away.
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

__all__ = ["FAULTS", "Fuzzer", "is_marker_event", "is_tagged", "is_value"]

Fuzzed = tuple[str, bytes | None]
"""What was done to a message, and its bytes."""


def _is_double(field: object) -> bool:
    """A number, or the text of one that JSON has no number for."""
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
    """Whether bytes are one JSON object of these columns, by docs/flows.md and nothing else.

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
    """Makes bad messages of good ones.

    Args:
        schema: The columns of the topic: BIGINT, DOUBLE, STRING and BOOLEAN.
        random: Decides everything; the same seed gives the same messages.

    >>> fuzzer = Fuzzer(Schema.parse("id BIGINT NOT NULL"), Random(1))
    >>> is_value(fuzzer.schema, fuzzer.value(b'{"id":1}')[1])
    False
    """

    schema: Schema
    random: Random = field(repr=False)

    def value(self, good: bytes) -> Fuzzed:
        """A bad value of a plain topic, made of a good one; null for a message without a value."""
        return self._bad(_VALUES, good, lambda value: not is_value(self.schema, value))

    def element(self, good: bytes) -> Fuzzed:
        """A bad element of a topic of tagged elements, made of a good record's bytes."""
        return self._bad(_ELEMENTS, good, lambda element: not is_tagged(self.schema, element))

    def event(self, good: bytes) -> Fuzzed:
        """A bad event of a companion topic, made of a good one."""
        return self._bad(_EVENT_FAULTS, good, lambda event: not is_marker_event(event))

    def oversize(self, size_bytes: int) -> bytes:
        """One bad value of this size: an object whose only text does not end."""
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


def _flipped(fuzzer: Fuzzer, good: bytes) -> bytes:
    """One byte is another."""
    place = fuzzer.random.randrange(len(good))
    return good[:place] + bytes((good[place] ^ fuzzer.random.randrange(1, 256),)) + good[place + 1 :]


def _cut(fuzzer: Fuzzer, good: bytes) -> bytes:
    return good[: fuzzer.random.randrange(len(good))]


def _cut_in_front(fuzzer: Fuzzer, good: bytes) -> bytes:
    return good[fuzzer.random.randrange(1, len(good)) :]


def _noise(fuzzer: Fuzzer, _good: bytes) -> bytes:
    return fuzzer.random.randbytes(fuzzer.random.randrange(1, _RANDOM_BYTES))


def _followed(fuzzer: Fuzzer, good: bytes) -> bytes:
    return good + _noise(fuzzer, good)


def _nothing(_fuzzer: Fuzzer, _good: bytes) -> None:
    return None


def _empty(_fuzzer: Fuzzer, _good: bytes) -> bytes:
    return b""


def _wrong_type(fuzzer: Fuzzer, good: bytes) -> bytes:
    """One field holds what its column cannot."""
    row = json.loads(good)
    column = fuzzer.random.choice(fuzzer.schema.columns)
    others = ["twelve", "1", "", True, [1], {"a": 1}, 2**63, 1.5, -(2**70), math.nan, math.inf]
    row[column.name] = fuzzer.random.choice(others)
    return json.dumps(row, ensure_ascii=False).encode()


def _several(fuzzer: Fuzzer, good: bytes) -> bytes:
    """The object, and more that ends as an object does."""
    between = fuzzer.random.choice([b"", b" ", b"\n", b",", b"]", b"}", b"] ", b",0] ", b":"])
    return good + between + fuzzer.random.choice([good, b"{}", b"x}", b"}"])


def _single_quotes(_fuzzer: Fuzzer, good: bytes) -> bytes:
    return good.replace(b'"', b"'")


def _null_where_required(fuzzer: Fuzzer, good: bytes) -> bytes:
    row = json.loads(good)
    names = [column.name for column in fuzzer.schema.columns if not column.nullable]
    return json.dumps(row | {fuzzer.random.choice(names): None}).encode()


def _without_required(fuzzer: Fuzzer, good: bytes) -> bytes:
    row = json.loads(good)
    del row[fuzzer.random.choice([column.name for column in fuzzer.schema.columns if not column.nullable])]
    return json.dumps(row).encode()


def _no_object(fuzzer: Fuzzer, good: bytes) -> bytes:
    return fuzzer.random.choice(
        [b"[%b]" % good, b'"text"', b"1", b"true", b"null", b"{", b"}", b"[]", b"{}", b" ", b"{}{"]
    )


def _not_utf8(fuzzer: Fuzzer, good: bytes) -> bytes:
    """A byte that UTF-8 does not have, beside a quotation mark."""
    place = fuzzer.random.choice([place for place, byte in enumerate(good) if byte == ord('"')])
    place += fuzzer.random.randrange(2)
    return good[:place] + fuzzer.random.choice([b"\xff", b"\xc0", b"\xed\xa0\x80", b"\xfe"]) + good[place:]


def _behind_head(fault: _Fault) -> _Fault:
    """The element's head stays, its value is broken."""

    def broken(fuzzer: Fuzzer, good: bytes) -> bytes:
        head = _head_bytes(good)
        return good[:head] + (fault(fuzzer, good[head:]) or b"")

    return broken


def _head_bytes(element: bytes) -> int:
    return 1 + (TIMESTAMP_BYTES if element[0] == Tag.RECORD_WITH_TIMESTAMP else 0)


def _wrong_tag(fuzzer: Fuzzer, good: bytes) -> bytes:
    unknown = fuzzer.random.randrange(_LARGEST_TAG + 1, 256)
    return bytes((fuzzer.random.choice([*range(1, _LARGEST_TAG + 1), unknown]),)) + good[1:]


def _untagged(_fuzzer: Fuzzer, good: bytes) -> bytes:
    return good[_head_bytes(good) :]


def _broken_control(fuzzer: Fuzzer, _good: bytes) -> bytes:
    """A watermark, status, attribute or end of input that is too long, too short, or says nothing."""
    tag = fuzzer.random.choice([t for t in Tag if t not in (Tag.RECORD, Tag.RECORD_WITH_TIMESTAMP)])
    return bytes((tag,)) + fuzzer.random.randbytes(fuzzer.random.randrange(12))


def _wrong_version(fuzzer: Fuzzer, good: bytes) -> bytes:
    return bytes((fuzzer.random.choice([0, *range(2, 256)]),)) + good[1:]


def _wrong_kind(fuzzer: Fuzzer, good: bytes) -> bytes:
    return good[:1] + bytes((fuzzer.random.choice([0, *range(2, 256)]),)) + good[2:]


_BYTES: Final[dict[str, _Fault]] = {
    "null": _nothing,
    "empty": _empty,
    "random bytes": _noise,
    "one byte flipped": _flipped,
    "cut": _cut,
    "cut in front": _cut_in_front,
    "followed by something": _followed,
}
_VALUES: Final[dict[str, _Fault]] = _BYTES | {
    "wrong type": _wrong_type,
    "null where required": _null_where_required,
    "required field missing": _without_required,
    "no object": _no_object,
    "several objects": _several,
    "single quotes": _single_quotes,
    "not UTF-8": _not_utf8,
}
_ELEMENTS: Final[dict[str, _Fault]] = (
    _BYTES
    | {f"value: {kind}": _behind_head(fault) for kind, fault in _VALUES.items()}
    | {"wrong tag": _wrong_tag, "no tag": _untagged, "broken control element": _broken_control}
)
_EVENT_FAULTS: Final[dict[str, _Fault]] = _BYTES | {
    "wrong version": _wrong_version,
    "wrong kind": _wrong_kind,
}

FAULTS: Final = (*_ELEMENTS, *(kind for kind in (*_VALUES, *_EVENT_FAULTS) if kind not in _ELEMENTS))
"""Everything that is done to messages."""


def _fits(schema: Schema, row: object) -> bool:
    if not isinstance(row, dict):
        return False
    return all(
        column.nullable if row.get(column.name) is None else _TYPES[column.type](row[column.name])
        for column in schema.columns
    )


def _refuse(word: str) -> None:
    raise ValueError(word)
