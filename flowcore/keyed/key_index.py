"""Keys of Arrow rows: equal keys of a batch, keys as Python values, and an index of keys.

A key is looked up once in a batch, not once for each record.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from flowcore.keyed.plain import NAN
from flowcore.serializers.python_values import to_python

__all__ = [
    "Ints",
    "KeyCodes",
    "KeyIndex",
    "factorize_keys",
    "find_first_rows",
    "find_last_rows",
    "key_by_name",
    "to_key_columns",
    "to_key_values",
    "to_python_keys",
    "to_python_records",
    "to_python_values",
]

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class KeyCodes:
    """The keys of some rows, as numbers.

    Attributes:
        codes: For each row, the number of its key.
        first: For each key, its first row.
    """

    codes: Ints
    first: Ints


def factorize_keys(columns: Sequence[pa.Array[Any]], rows: int) -> KeyCodes:
    """Number the keys of some rows, in order of appearance where that is cheap.

    Args:
        columns: The key's columns; none for one key for all.
    """
    if not columns:
        return KeyCodes(np.zeros(rows, np.int64), np.zeros(min(rows, 1), np.int64))
    first, *others = (leaf for column in columns for leaf in _leaves(column))
    codes, count = _column_codes(first)
    for column in others:
        more, width = _column_codes(column)
        codes, found = pd.factorize(codes * width + more)
        count = len(found)
    return KeyCodes(codes, find_first_rows(codes, count))


def find_first_rows(codes: Ints, count: int) -> Ints:
    """For each code, its first row."""
    first = np.empty(count, np.int64)
    first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    return first


def find_last_rows(codes: Ints, count: int) -> Ints:
    """For each code, its last row."""
    last = np.empty(count, np.int64)
    last[codes] = np.arange(len(codes))
    return last


def to_python_keys(columns: Sequence[pa.Array[Any]], rows: int) -> list[Any]:
    """Keys as Python values, of several columns as tuples; see `to_key_values`."""
    lists = [to_key_values(column) for column in columns]
    match lists:
        case []:
            return [None] * rows
        case [only]:
            return only
        case _:
            return list(zip(*lists, strict=True))


def to_key_columns(keys: Sequence[Any], types: Sequence[pa.DataType]) -> list[pa.Array[Any]]:
    """The columns of keys as `to_python_keys` gives them."""
    if len(types) == 1:
        return [pa.array(keys, types[0])]
    return [pa.array([key[place] for key in keys], kind) for place, kind in enumerate(types)]


def key_by_name(names: Sequence[str], key: Any) -> dict[str, Any]:
    """The columns of a key as `to_python_keys` gives it."""
    return dict(zip(names, key if len(names) > 1 else (key,) * len(names), strict=True))


class KeyIndex:
    """Numbers keys in the order in which they are added."""

    __slots__ = ("_numbers",)

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def find(self, keys: Sequence[Any]) -> Ints:
        """The number of each key, -1 for unknown keys."""
        return np.fromiter(map(self._numbers.get, keys, repeat(-1)), np.int64, len(keys))

    def number(self, keys: Sequence[Any]) -> tuple[Ints, Ints]:
        """The number of each of some distinct keys; unknown keys are added, and their places returned."""
        found = self.find(keys)
        (unknown,) = np.nonzero(found < 0)
        if len(unknown):
            numbers = range(len(self), len(self) + len(unknown))
            found[unknown] = numbers
            fresh = keys if len(unknown) == len(keys) else [keys[place] for place in unknown.tolist()]
            self._numbers.update(zip(fresh, numbers, strict=True))
        return found, unknown

    def retain(self, numbers: Ints) -> Ints:
        """Forget all keys but those with these numbers; return the new number by the old one."""
        kept, keys = np.unique(numbers), list(self._numbers)
        renumbered = np.full(len(keys), -1, np.int64)
        renumbered[kept] = np.arange(len(kept))
        self._numbers = {keys[number]: place for place, number in enumerate(kept.tolist())}
        return renumbered


def to_python_values(column: pa.Array[Any]) -> list[Any]:
    """A column as Python values, as a state can keep them.

    At any depth, times are in `datetime.timezone.utc`, and a map is a dict if its keys can be.
    """
    values = to_python(column)
    convert = _converter(column.type)
    return values if convert is None else list(map(convert, values))


def to_python_records(rows: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Each row as a new dict of `to_python_values`."""
    names = rows.schema.names
    if not names:
        return ({} for _ in range(rows.num_rows))
    columns = map(to_python_values, rows.columns)
    return (dict(zip(names, each, strict=True)) for each in zip(*columns, strict=True))


def _converter(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """Converts Arrow's Python value of a type; None if there is nothing to convert."""
    match kind:
        case pa.TimestampType(tz=str()):
            return lambda value: None if value is None else value.replace(tzinfo=dt.UTC)
        case pa.MapType():
            return _map_converter(kind)
        case pa.StructType():
            found = {field.name: _converter(field.type) for field in kind}
            fields = {name: convert for name, convert in found.items() if convert is not None}
            if fields:
                return lambda value: (
                    None
                    if value is None
                    else value | {name: convert(value[name]) for name, convert in fields.items()}
                )
        case pa.ListType() | pa.LargeListType() | pa.FixedSizeListType():
            item = _converter(kind.value_type)
            if item is not None:
                return lambda value: None if value is None else list(map(item, value))
    return None


def _map_converter(kind: pa.MapType[Any, Any, Any]) -> Callable[[Any], Any]:
    keys, items = (_converter(each) or _unchanged for each in (kind.key_type, kind.item_type))
    make = list if pa.types.is_nested(kind.key_type) else dict
    return lambda value: None if value is None else make((keys(key), items(item)) for key, item in value)


def _unchanged(value: Any) -> Any:
    return value


def to_key_values(column: pa.Array[Any]) -> list[Any]:
    """A column of a key as Python values, with Spark's equality; a struct is a tuple.

    Not-a-number equals itself, since it is always the same object.
    """
    if isinstance(column, pa.StructArray):
        fields = [to_key_values(field) for field in column.flatten()]
        rows = zip(column.is_valid().to_pylist(), zip(*fields, strict=True), strict=True)
        return [row if valid else None for valid, row in rows]
    values = to_python_values(column)
    if pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py():
        return [NAN if value is not None and value != value else value for value in values]  # noqa: PLR0124
    return values


def _leaves(column: pa.Array[Any]) -> Iterator[pa.Array[Any]]:
    """The columns that a nested column consists of."""
    if isinstance(column, pa.StructArray):
        yield column.is_valid()
        for field in column.flatten():
            yield from _leaves(field)
    else:
        yield column


def _column_codes(column: pa.Array[Any]) -> tuple[Ints, int]:
    if column.null_count == 0 and pa.types.is_integer(column.type):
        codes, found = pd.factorize(column.to_numpy())
        return codes.astype(np.int64, copy=False), len(found)
    encoded = column.dictionary_encode(null_encoding="encode")
    return encoded.indices.to_numpy().astype(np.int64), len(encoded.dictionary)
