"""Tables: what is kept for each key that has occurred, in columns that grow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from flowcore.keyed.columns import KeyColumns, take_rows
from flowcore.keyed.key_index import Ints, KeyIndex, python_keys
from flowcore.windows.columnar.accumulators import Accumulator, AccumulatorColumns

__all__ = ["AccumulatorTable"]

_SMALLEST = 64


class AccumulatorTable:
    """Fields by key.

    Args:
        fields: What is kept.
    """

    __slots__ = ("_columns", "_index", "_keys", "_touched")

    def __init__(self, fields: Sequence[Accumulator]) -> None:
        self._columns: AccumulatorColumns = {field: np.empty(0, field.dtype) for field in fields}
        self._index = KeyIndex()
        self._keys: list[KeyColumns] = []
        self._touched: list[Ints] = []

    def __len__(self) -> int:
        return len(self._index)

    def find(self, keys: Sequence[Any]) -> Ints:
        """The slot of each key, -1 where it has none."""
        return self._index.find(keys)

    def slots(self, keys: Sequence[Any], columns: KeyColumns) -> Ints:
        """The slot of each of some keys, no two of them equal; those that are new get one."""
        found = self._index.find(keys)
        (new,) = np.nonzero(found < 0)
        if len(new):
            start = len(self._index)
            found[new] = np.arange(start, start + len(new))
            self._index.add(keys if len(new) == len(keys) else [keys[position] for position in new.tolist()])
            self._keys.append(columns if len(new) == len(keys) else take_rows(columns, new))
            self._grow()
        self._touched.append(found)
        return found

    def combine(self, field: Accumulator, slots: Ints, values: Any) -> None:
        """Combine values into slots, of which some may be the same."""
        field.combine.at(self._columns[field], slots, values)

    def put(self, slots: Ints, values: Mapping[Accumulator, Any]) -> None:
        """Replace what is in slots."""
        for field, column in self._columns.items():
            column[slots] = values[field]

    def values(self, slots: Ints | None = None) -> AccumulatorColumns:
        """What is in some slots, or in all."""
        count = len(self._index)
        return {
            field: column[:count] if slots is None else column[slots]
            for field, column in self._columns.items()
        }

    def keys(self, slots: Ints | None = None) -> KeyColumns:
        """The keys of some slots, or of all."""
        if len(self._keys) > 1:
            self._keys = [[pa.concat_arrays(parts) for parts in zip(*self._keys, strict=True)]]
        whole = self._keys[0] if self._keys else []
        return whole if slots is None else take_rows(whole, slots)

    def touched(self) -> Ints:
        """The slots that were asked for since it was last called."""
        found = np.unique(np.concatenate(self._touched)) if self._touched else np.empty(0, np.int64)
        self._touched = []
        return found

    def restore(self, columns: KeyColumns, values: Mapping[Accumulator, Any], count: int) -> None:
        """Take what was written of some slots."""
        slots = self.slots(python_keys(columns, count), columns)
        self.put(slots, values)
        self._touched = []

    def _grow(self) -> None:
        wanted = len(self._index)
        for field, column in self._columns.items():
            if len(column) < wanted:
                grown = np.full(max(_SMALLEST, 2 * len(column), wanted), field.nothing, field.dtype)
                grown[: len(column)] = column
                self._columns[field] = grown
