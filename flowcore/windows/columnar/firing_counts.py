"""FiringCounts: how many times has a complete window emitted for a key to which late records came?

All others have emitted once if they have records. Kept as long as the window is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from flowcore.keyed.columns import KeyColumns, concat_batches, take_rows
from flowcore.keyed.key_index import Ints, python_keys

__all__ = ["FiringCounts"]

_NAME = "refirings"


class FiringCounts:
    """Counts by window and key, with what has changed since it was last written."""

    __slots__ = ("_changed", "_columns", "_counts")

    def __init__(self) -> None:
        self._counts: dict[int, dict[Any, int]] = {}
        self._columns: dict[int, list[KeyColumns]] = {}
        self._changed: dict[int, list[KeyColumns]] = {}

    def after(
        self, window: int, keys: Sequence[Any], columns: KeyColumns, emitted: Ints, times: Ints
    ) -> Ints:
        """How often a window has emitted for each of some keys, before it emits so many times more.

        Args:
            window: Its number.
            keys: As Python values, no two of them equal.
            columns: As columns.
            emitted: How often for those that are not known here.
            times: How many times more.
        """
        counts = self._counts.setdefault(window, {})
        known = zip(keys, emitted.tolist(), strict=True)
        before = np.fromiter((counts.get(key, once) for key, once in known), np.int64, len(keys))
        new = [position for position, key in enumerate(keys) if key not in counts]
        if new:
            self._columns.setdefault(window, []).append(take_rows(columns, np.array(new)))
        counts.update(zip(keys, (before + times).tolist(), strict=True))
        self._changed.setdefault(window, []).append(columns)
        return before

    def forget(self, through: int) -> None:
        """Forget the windows up to this one."""
        for window in [window for window in self._counts if window <= through]:
            del self._counts[window]
            self._columns.pop(window, None)
            self._changed.pop(window, None)

    def changed(self) -> dict[str, pa.RecordBatch]:
        """What has changed, as a table of a segment."""
        found, self._changed = self._tables(self._changed), {}
        return found

    def everything(self) -> dict[str, pa.RecordBatch]:
        """All counts, as a table of a segment."""
        return self._tables(self._columns)

    def take(self, name: str, table: pa.RecordBatch, ended: int) -> None:
        """Take what was written, but for windows that have ended."""
        if name != _NAME:
            return
        columns = [table.column(number) for number in range(2, table.num_columns)]
        keys = python_keys(columns, table.num_rows)
        counts = table.column("firings").to_numpy().tolist()
        fresh: dict[int, list[int]] = {}
        for row, window in enumerate(table.column("window").to_numpy().tolist()):
            if window <= ended:
                continue
            known = self._counts.setdefault(window, {})
            if keys[row] not in known:
                fresh.setdefault(window, []).append(row)
            known[keys[row]] = counts[row]
        for window, rows in fresh.items():
            self._columns.setdefault(window, []).append(take_rows(columns, np.array(rows)))

    def _tables(self, of: dict[int, list[KeyColumns]]) -> dict[str, pa.RecordBatch]:
        batches = [batch for window, parts in of.items() for batch in self._batches(window, parts)]
        return {_NAME: concat_batches(batches)} if batches else {}

    def _batches(self, window: int, parts: Iterable[KeyColumns]) -> Iterable[pa.RecordBatch]:
        counts = self._counts[window]
        for columns in parts:
            rows = len(columns[0]) if columns else 1
            firings = [counts[key] for key in python_keys(columns, rows)]
            yield pa.record_batch(
                {
                    "window": pa.array([window] * rows, pa.int64()),
                    "firings": pa.array(firings, pa.int64()),
                    **{f"key{number}": column for number, column in enumerate(columns)},
                }
            )
