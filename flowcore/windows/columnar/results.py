"""Emissions: the rows that windows put out, gathered until they are worth a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from flowcore.elements import MAX_TIMESTAMP_MS
from flowcore.keyed.columns import KeyColumns
from flowcore.keyed.key_index import Ints
from flowcore.keyed.operator import StepOutputs
from flowcore.keyed.output_columns import RESULTS
from flowcore.windows.columnar.accumulators import AccumulatorColumns, ColumnarAggregates
from flowcore.windows.window import TimeWindow

__all__ = ["ResultWriter"]

_ROWS_PER_BATCH = 1 << 16


@dataclass(slots=True)
class ResultWriter:
    """Rows on their way out.

    Attributes:
        schema: Of the rows: the key's columns, the aggregates', `WINDOW_FIELDS`.
        folding: Makes the aggregates.
        out: Where they go.
    """

    schema: pa.Schema
    folding: ColumnarAggregates
    out: StepOutputs
    _keys: list[KeyColumns] = field(default_factory=list)
    _kept: list[AccumulatorColumns] = field(default_factory=list)
    _windows: list[tuple[TimeWindow, int]] = field(default_factory=list)
    _rows: int = 0

    def first(self, window: TimeWindow, keys: KeyColumns, kept: AccumulatorColumns, rows: int) -> None:
        """A window is complete: it emits for each of its keys for the first time."""
        self._keys.append(keys)
        self._kept.append(kept)
        self._windows.append((window, rows))
        self._rows += rows
        if self._rows >= _ROWS_PER_BATCH:
            self.close()

    def close(self) -> None:
        """Put out what is left."""
        if not self._rows:
            return
        keys = [pa.concat_arrays(parts) for parts in zip(*self._keys, strict=True)]
        kept = {field: np.concatenate([each[field] for each in self._kept]) for field in self._kept[0]}
        counts = [rows for _, rows in self._windows]
        windows = np.repeat(np.arange(len(counts)), counts)
        self.put(
            [window for window, _ in self._windows], windows, keys, kept,
            firings=np.ones(self._rows, np.int32), is_late=False,
        )  # fmt: skip
        self._keys, self._kept, self._windows, self._rows = [], [], [], 0

    def put(
        self, windows: Sequence[TimeWindow], which: Ints, keys: KeyColumns, kept: AccumulatorColumns, *,
        firings: np.ndarray[Any, np.dtype[np.int32]], is_late: bool,
    ) -> None:  # fmt: skip
        """Put out rows, each of one of the windows."""
        bounds = np.array([(each.start_ms, each.last_ms) for each in windows], np.int64).reshape(-1, 2)[which]
        self.rows(keys, kept, starts=bounds[:, 0], lasts=bounds[:, 1], firings=firings, is_late=is_late)

    def rows(
        self, keys: KeyColumns, kept: AccumulatorColumns, *, starts: Ints, lasts: Ints,
        firings: np.ndarray[Any, np.dtype[np.int32]], is_late: bool,
    ) -> None:  # fmt: skip
        """Put out rows of windows with these first and last milliseconds."""
        results = self.folding.results(kept)
        ends = np.where(lasts == MAX_TIMESTAMP_MS, lasts, lasts + 1)
        columns = [
            *keys,
            *results.values(),
            *map(pa.array, (starts, ends, lasts, firings, np.full(len(starts), is_late))),
        ]
        self.out.rows(RESULTS, pa.record_batch(columns, schema=self.schema))
