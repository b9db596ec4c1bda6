"""Numbers of firings by window and key, of keys with records that arrived after the window was complete.

All other keys with records in a complete window have fired once. A count is kept as long as its window.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from flowcore.keyed.columns import KeyColumns, concat_batches, take_rows
from flowcore.keyed.key_index import Ints, to_python_keys

__all__ = ["FiringCounts"]

_TABLE = "refirings"


class FiringCounts:
    """Counts by window and key, and which of them have changed since they were last written."""

    __slots__ = ("_changed", "_counts", "_keys")

    def __init__(self) -> None:
        self._counts: dict[int, dict[Any, int]] = {}
        self._keys: dict[int, list[KeyColumns]] = {}
        self._changed: dict[int, list[KeyColumns]] = {}

    def advance(
        self, window: int, keys: Sequence[Any], columns: KeyColumns, fired: Ints, times: Ints
    ) -> Ints:
        """Add firings of some distinct keys of a window, and return their counts before that.

        Args:
            window: Its number.
            keys: The keys as Python values.
            columns: The keys as columns.
            fired: The counts of the keys that are not known here.
            times: The number of firings to add.
        """
        counts = self._counts.setdefault(window, {})
        pairs = zip(keys, fired.tolist(), strict=True)
        before = np.fromiter((counts.get(key, once) for key, once in pairs), np.int64, len(keys))
        new = [position for position, key in enumerate(keys) if key not in counts]
        if new:
            self._keys.setdefault(window, []).append(take_rows(columns, np.array(new)))
        counts.update(zip(keys, (before + times).tolist(), strict=True))
        self._changed.setdefault(window, []).append(columns)
        return before

    def delete(self, through: int) -> None:
        """Delete the counts of all windows up to this one."""
        for window in [window for window in self._counts if window <= through]:
            del self._counts[window]
            self._keys.pop(window, None)
            self._changed.pop(window, None)

    def take_changed(self) -> dict[str, pa.RecordBatch]:
        """Return the counts that have changed since the last call, as a table of a segment."""
        changed, self._changed = self._tables(self._changed), {}
        return changed

    def all_tables(self) -> dict[str, pa.RecordBatch]:
        """Return all counts, as a table of a segment."""
        return self._tables(self._keys)

    def restore(self, name: str, table: pa.RecordBatch, ended: int) -> None:
        """Read a table of a segment, except windows up to ``ended``."""
        if name != _TABLE:
            return
        columns = [table.column(number) for number in range(2, table.num_columns)]
        keys = to_python_keys(columns, table.num_rows)
        firings = table.column("firings").to_numpy().tolist()
        fresh: dict[int, list[int]] = {}
        for row, window in enumerate(table.column("window").to_numpy().tolist()):
            if window <= ended:
                continue
            counts = self._counts.setdefault(window, {})
            if keys[row] not in counts:
                fresh.setdefault(window, []).append(row)
            counts[keys[row]] = firings[row]
        for window, rows in fresh.items():
            self._keys.setdefault(window, []).append(take_rows(columns, np.array(rows)))

    def _tables(self, keys: dict[int, list[KeyColumns]]) -> dict[str, pa.RecordBatch]:
        batches = [batch for window, parts in keys.items() for batch in self._batches(window, parts)]
        return {_TABLE: concat_batches(batches)} if batches else {}

    def _batches(self, window: int, parts: Iterable[KeyColumns]) -> Iterable[pa.RecordBatch]:
        counts = self._counts[window]
        for columns in parts:
            rows = len(columns[0]) if columns else 1
            firings = [counts[key] for key in to_python_keys(columns, rows)]
            yield pa.record_batch(
                {
                    "window": pa.array([window] * rows, pa.int64()),
                    "firings": pa.array(firings, pa.int64()),
                    **{f"key{number}": column for number, column in enumerate(columns)},
                }
            )
