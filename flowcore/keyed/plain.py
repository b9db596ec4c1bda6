"""Users' keys, values and accumulators as JSON, which is read back as the same values.

None, booleans, finite numbers, text and lists are themselves. Other plain data is an object with one field,
the name of its type. Anything else is refused: nothing is pickled.
"""

import base64
import datetime as dt
import json
import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import msgspec

from flowcore.errors import StateError
from flowcore.escaping import show_safely

__all__ = ["NAN", "encode_json", "from_plain", "to_plain"]

NAN = math.nan
"""The only not-a-number that is read back, since it equals itself as a key only by identity."""
_LONG_BITS = 10_000
"""Whole numbers with more bits are written as text: Python's JSON refuses those of 4,300 digits."""
_THEMSELVES = frozenset({type(None), bool, int, float, str})
"""The types of JSON values that are read as they are written."""


def to_plain(value: Any) -> Any:
    """Convert a value to JSON-able data for `from_plain`.

    Raises:
        StateError: The value, or a value in it, is not plain data.

    >>> to_plain((1, {"a": b"x"}))
    {'tuple': [1, {'dict': [['a', {'bytes': 'eA=='}]]}]}
    """
    # Exact types: a subclass would be read back as its base.
    kind = type(value)
    if value is None or kind in (bool, str) or (kind is float and math.isfinite(value)):
        return value
    if kind is int and value.bit_length() < _LONG_BITS:
        return value
    if kind is list:
        return [to_plain(item) for item in value]
    write = _WRITERS.get(kind)
    if write is None:
        msg = (
            f"{show_safely(repr, value)} is {kind.__module__}.{kind.__qualname__}, which is not plain data: "
            "it could not be restored after a restart; use numbers, text, bytes, dates, durations, or lists, "
            "tuples and dicts of them"
        )
        raise StateError(msg)
    return {kind.__name__: write(value)}


def from_plain(written: Any) -> Any:
    """The value that `to_plain` converted.

    Raises:
        StateError: `to_plain` did not write it.
    """
    if isinstance(written, list):
        return [from_plain(item) for item in written]
    if not isinstance(written, dict):
        return written
    if len(written) == 1:
        ((kind, content),) = written.items()
        if kind in _READERS:
            return _READERS[kind](content)
    msg = (
        f"{written!r} is not plain data as flowcore writes it: it cannot be read; restore a copy of the "
        "checkpoint"
    )
    raise StateError(msg)


def encode_json(written: Any) -> bytes:
    """JSON of what `to_plain` returns, and of lists and objects of it, for `json.loads`."""
    try:
        return msgspec.json.encode(written)
    except (OverflowError, UnicodeEncodeError):  # more than 64 bits, or half a pair of surrogates
        return json.dumps(written).encode()


def _read_dict(items: list[list[Any]]) -> dict[Any, Any]:
    return {
        key if type(key) is str else from_plain(key): item if type(item) in _THEMSELVES else from_plain(item)
        for key, item in items
    }


def _written_time(value: dt.datetime) -> list[Any]:
    if value.tzinfo is not None and type(value.tzinfo) is not dt.timezone:
        msg = (
            f"{value!r} is in a time zone with rules: it would be read back with a fixed offset; convert it "
            "to UTC"
        )
        raise StateError(msg)
    return [value.isoformat(), value.fold]


_WRITERS: Mapping[type, Callable[[Any], Any]] = {
    int: hex,
    float: repr,
    tuple: lambda value: [to_plain(item) for item in value],
    dict: lambda value: [[to_plain(key), to_plain(item)] for key, item in value.items()],
    bytes: lambda value: base64.b64encode(value).decode("ascii"),
    Decimal: str,
    dt.datetime: _written_time,
    dt.date: dt.date.isoformat,
    dt.timedelta: lambda value: [value.days, value.seconds, value.microseconds],
}
_READERS: Mapping[str, Callable[[Any], Any]] = {
    "int": lambda written: int(written, 16),
    "float": lambda written: NAN if written == "nan" else float(written),
    "tuple": lambda items: tuple(from_plain(item) for item in items),
    "dict": _read_dict,
    "bytes": base64.b64decode,
    "Decimal": Decimal,
    "datetime": lambda written: dt.datetime.fromisoformat(written[0]).replace(fold=written[1]),
    "date": dt.date.fromisoformat,
    "timedelta": lambda written: dt.timedelta(*written),
}
