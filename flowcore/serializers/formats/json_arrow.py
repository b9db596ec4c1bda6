"""JSON objects as Arrow arrays, column by column.

`JsonFormat` decides what a value is. Most records are read faster by a parser that refuses what it refuses,
and the types of whole columns are checked at once. `JsonFormat` reads the records that are left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import orjson
import pyarrow as pa

from flowcore.errors import SerializationError
from flowcore.serializers.formats.columns import ValueColumn
from flowcore.serializers.formats.json_text import JsonFormat

__all__ = ["JsonArrowFormat"]

_NULL = type(None)
_INTEGERS = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64}
_READ: dict[str, frozenset[type]] = {
    **dict.fromkeys(_INTEGERS, frozenset({int})),
    **dict.fromkeys(("FLOAT", "DOUBLE"), frozenset({float, int})),
    "BOOLEAN": frozenset({bool}),
    "STRING": frozenset({str}),
}
"""The types as which the parser reads values of each type."""
_ARROW: dict[str, pa.DataType] = {
    "TINYINT": pa.int8(), "SMALLINT": pa.int16(), "INT": pa.int32(), "BIGINT": pa.int64(),
    "FLOAT": pa.float32(), "DOUBLE": pa.float64(), "BOOLEAN": pa.bool_(), "STRING": pa.string(),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class JsonArrowFormat:
    """Reads the columns of a JSON format.

    >>> columns, is_value = JsonArrowFormat(JsonFormat.of([("id", "BIGINT")])).read([b'{"id":1}', b"[]"])
    >>> columns[0].to_pylist(), is_value
    ([1, None], [True, False])
    """

    value_format: JsonFormat

    def read(self, payloads: list[bytes | None]) -> tuple[list[pa.Array[Any]], list[bool]]:
        """The columns of some payloads, and whether each payload is a value: if not, its columns are null."""
        columns = self.value_format.columns
        rows = _load(payloads)
        values = _columns(rows, [column.name for column in columns])
        doubtful = (
            {place for place, row in enumerate(rows) if row is _NOT_READ} if _NOT_READ in rows else set()
        )
        for column, found in zip(columns, values, strict=True):
            doubtful.update(_doubtful(column, found))
        is_value = [True] * len(payloads)
        for place in doubtful:
            row = self._read_one(payloads[place])
            is_value[place] = row is not None
            for column, found in zip(columns, values, strict=True):
                found[place] = None if row is None else row[column.name]
        return [_array(column, found) for column, found in zip(columns, values, strict=True)], is_value

    def _read_one(self, payload: bytes | None) -> dict[str, Any] | None:
        try:
            return None if payload is None else self.value_format.decode(payload)
        except SerializationError:
            return None


_NOT_READ: dict[str, Any] = {}
"""Stands for a payload that the fast parser does not read as an object."""


def _load(payloads: list[bytes | None]) -> list[dict[str, Any]]:
    load: Callable[[Any], Any] = orjson.loads
    try:
        found = list(map(load, payloads))
    except ValueError:
        found = [*map(_load_one, payloads)]
    if set(map(type, found)) <= {dict}:
        return found
    return [each if isinstance(each, dict) else _NOT_READ for each in found]


def _load_one(payload: bytes | None) -> Any:
    try:
        return orjson.loads(payload)  # type: ignore[arg-type]  # it refuses None with the same error
    except ValueError:
        return _NOT_READ


def _columns(rows: list[dict[str, Any]], names: list[str]) -> list[list[Any]]:
    """The values of fields, None for missing ones."""
    if not rows:
        return [[] for _ in names]
    try:
        found = map(itemgetter(*names), rows)
        return [list(found)] if len(names) == 1 else [*map(list, zip(*found, strict=True))]
    except KeyError:
        return [[row.get(name) for row in rows] for name in names]


def _doubtful(column: ValueColumn, values: list[Any]) -> Iterator[int]:
    """The places of values that may not be ones of a column."""
    kinds = set(map(type, values))
    refused = kinds - _READ[column.type]
    if column.nullable:
        refused.discard(_NULL)
    if refused:
        yield from (place for place, value in enumerate(values) if type(value) in refused)
    if column.type in _INTEGERS:
        yield from _too_large(_INTEGERS[column.type], kinds, values)
    elif column.type in ("FLOAT", "DOUBLE"):
        largest = 3.0e38 if column.type == "FLOAT" else 1e308
        yield from (
            place
            for place, value in enumerate(values)
            if type(value) in (int, float) and not -largest < value < largest
        )


def _too_large(bits: int, kinds: set[type], values: list[Any]) -> Iterator[int]:
    """The places of integers of more than some bits."""
    limit = 1 << (bits - 1)
    numbers = values if kinds == {int} else [value for value in values if type(value) is int]
    if numbers and not (-limit <= min(numbers) and max(numbers) < limit):
        yield from (
            place for place, value in enumerate(values) if type(value) is int and not -limit <= value < limit
        )


def _array(column: ValueColumn, values: list[Any]) -> pa.Array[Any]:
    kind = _ARROW[column.type]
    if column.type in ("FLOAT", "DOUBLE"):  # Arrow refuses integers that a float does not hold exactly
        values = [value if value is None else float(value) for value in values]
    try:
        return pa.array(values, kind)
    except UnicodeEncodeError:  # half a pair of surrogates, in whose place Java has a question mark
        return pa.array(
            [value if value is None else value.encode("utf-8", "replace") for value in values], kind
        )
