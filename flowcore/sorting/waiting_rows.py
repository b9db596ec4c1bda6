"""Rows that wait for the watermark, by time.

They are in few parts, each sorted by time, so that a watermark reads only the rows that it reaches, and a row
is copied a logarithmic number of times.

Times are integer milliseconds since the epoch, UTC.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from flowcore.keyed.columns import concat_batches

__all__ = ["WaitingRows"]


class WaitingRows:
    """Rows in order of time, those of one time in order of arrival.

    Args:
        time: The column of their times, a 64-bit integer.
    """

    def __init__(self, time: str) -> None:
        self._time = time
        self._parts: list[pa.RecordBatch] = []
        """The rows of a part arrived before those of the next one, which is at most half as long."""
        self._arrived: list[pa.RecordBatch] = []
        """The rows since the last watermark, in order of arrival."""

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows, in order of arrival."""
        if rows.num_rows:
            self._arrived.append(rows)

    def batches(self) -> list[pa.RecordBatch]:
        """All rows; no batch is empty, and those of one time are in order of arrival."""
        return [*self._parts, *self._arrived]

    def take_due(self, through_ms: int) -> pa.RecordBatch | None:
        """Remove and return the rows up to a time, by time and arrival; None if there are none."""
        parts, due = self._parts, []
        if self._arrived:
            parts.append(self._sort(concat_batches(self._arrived)))
        self._parts, self._arrived = [], []
        for part in parts:
            count = int(np.searchsorted(self._times(part), through_ms, "right"))
            if count:
                due.append(part.slice(0, count))
            if count < part.num_rows:
                self._append(_shrink(part.slice(count)) if count else part)
        return self._sort(concat_batches(due)) if due else None

    def _append(self, part: pa.RecordBatch) -> None:
        self._parts.append(part)
        while len(self._parts) > 1 and self._parts[-2].num_rows < 2 * self._parts[-1].num_rows:
            last = self._parts.pop()
            self._parts[-1] = self._sort(concat_batches([self._parts[-1], last]))

    def _sort(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        times_ms = self._times(rows)
        if (times_ms[1:] >= times_ms[:-1]).all():
            return rows
        return rows.take(np.argsort(times_ms, kind="stable"))

    def _times(self, rows: pa.RecordBatch) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return rows.column(self._time).to_numpy()


def _shrink(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Copy rows that use less than half of their memory."""
    if rows.get_total_buffer_size() <= 2 * rows.nbytes:
        return rows
    return rows.take(np.arange(rows.num_rows))
