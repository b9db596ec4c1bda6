"""Output rows of columnar windows, collected into batches."""

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
    """Computes and emits rows.

    Attributes:
        schema: The schema of the rows: the key's columns, the aggregates', `WINDOW_FIELDS`.
    """

    schema: pa.Schema
    aggregates: ColumnarAggregates
    out: StepOutputs
    _keys: list[KeyColumns] = field(default_factory=list)
    _values: list[AccumulatorColumns] = field(default_factory=list)
    _windows: list[tuple[TimeWindow, int]] = field(default_factory=list)
    _rows: int = 0

    def add_first(self, window: TimeWindow, keys: KeyColumns, values: AccumulatorColumns, rows: int) -> None:
        """Add the first firing of a window for each of its keys."""
        self._keys.append(keys)
        self._values.append(values)
        self._windows.append((window, rows))
        self._rows += rows
        if self._rows >= _ROWS_PER_BATCH:
            self.flush()

    def flush(self) -> None:
        """Emit the first firings that were added."""
        if not self._rows:
            return
        keys = [pa.concat_arrays(parts) for parts in zip(*self._keys, strict=True)]
        values = {each: np.concatenate([part[each] for part in self._values]) for each in self._values[0]}
        counts = [rows for _, rows in self._windows]
        self.emit_windows(
            [window for window, _ in self._windows], np.repeat(np.arange(len(counts)), counts), keys, values,
            firings=np.ones(self._rows, np.int32), is_late=False,
        )  # fmt: skip
        self._keys, self._values, self._windows, self._rows = [], [], [], 0

    def emit_windows(
        self, windows: Sequence[TimeWindow], which: Ints, keys: KeyColumns, values: AccumulatorColumns, *,
        firings: np.ndarray[Any, np.dtype[np.int32]], is_late: bool,
    ) -> None:  # fmt: skip
        """Emit rows; ``which`` is the position of each row's window."""
        bounds = np.array([(each.start_ms, each.last_ms) for each in windows], np.int64).reshape(-1, 2)[which]
        self.emit(keys, values, starts=bounds[:, 0], lasts=bounds[:, 1], firings=firings, is_late=is_late)

    def emit(
        self, keys: KeyColumns, values: AccumulatorColumns, *, starts: Ints, lasts: Ints,
        firings: np.ndarray[Any, np.dtype[np.int32]], is_late: bool,
    ) -> None:  # fmt: skip
        """Emit rows of windows with these first and last milliseconds."""
        ends = np.where(lasts == MAX_TIMESTAMP_MS, lasts, lasts + 1)
        columns = [
            *keys,
            *self.aggregates.results(values).values(),
            *map(pa.array, (starts, ends, lasts, firings, np.full(len(starts), is_late))),
        ]
        self.out.rows(RESULTS, pa.record_batch(columns, schema=self.schema))
