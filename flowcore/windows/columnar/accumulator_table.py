"""A growing table with the accumulators of each key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from flowcore.keyed.columns import KeyColumns, take_rows
from flowcore.keyed.key_index import Ints, KeyIndex, to_python_keys
from flowcore.windows.columnar.accumulators import Accumulator, AccumulatorColumns

_MIN_CAPACITY = 64


class AccumulatorTable:
    """Accumulators by key."""

    __slots__ = ("_changed", "_columns", "_index", "_keys")

    def __init__(self, accumulators: Sequence[Accumulator]) -> None:
        self._columns: AccumulatorColumns = {each: np.empty(0, each.dtype) for each in accumulators}
        self._index = KeyIndex()
        self._keys: list[KeyColumns] = []
        self._changed: list[Ints] = []

    def __len__(self) -> int:
        return len(self._index)

    def find(self, keys: Sequence[Any]) -> Ints:
        """Return the position of each key, -1 if it has none."""
        return self._index.find(keys)

    def positions(self, keys: Sequence[Any], columns: KeyColumns) -> Ints:
        """Return the position of each of some distinct keys, adding the new ones."""
        found = self._index.find(keys)
        (new,) = np.nonzero(found < 0)
        if len(new):
            start = len(self._index)
            found[new] = np.arange(start, start + len(new))
            self._index.add(keys if len(new) == len(keys) else [keys[place] for place in new.tolist()])
            self._keys.append(columns if len(new) == len(keys) else take_rows(columns, new))
            self._grow()
        self._changed.append(found)
        return found

    def combine(self, accumulator: Accumulator, positions: Ints, values: Any) -> None:
        """Combine values with those at positions, some of which may be equal."""
        accumulator.combine.at(self._columns[accumulator], positions, values)

    def values(self, positions: Ints | None = None) -> AccumulatorColumns:
        """Return the values at some positions, or all."""
        count = len(self._index)
        return {
            each: column[:count] if positions is None else column[positions]
            for each, column in self._columns.items()
        }

    def keys(self, positions: Ints | None = None) -> KeyColumns:
        """Return the keys at some positions, or all."""
        if len(self._keys) > 1:
            self._keys = [[pa.concat_arrays(parts) for parts in zip(*self._keys, strict=True)]]
        whole = self._keys[0] if self._keys else []
        return whole if positions is None else take_rows(whole, positions)

    def take_changed(self) -> Ints:
        """Return the positions that `positions` has returned since the last call."""
        changed = np.unique(np.concatenate(self._changed)) if self._changed else np.empty(0, np.int64)
        self._changed = []
        return changed

    def restore(self, columns: KeyColumns, values: Mapping[Accumulator, Any], count: int) -> None:
        """Set the values of some keys."""
        positions = self.positions(to_python_keys(columns, count), columns)
        for each, column in self._columns.items():
            column[positions] = values[each]
        self._changed = []

    def _grow(self) -> None:
        wanted = len(self._index)
        for each, column in self._columns.items():
            if len(column) < wanted:
                grown = np.full(max(_MIN_CAPACITY, 2 * len(column), wanted), each.identity, each.dtype)
                grown[: len(column)] = column
                self._columns[each] = grown
