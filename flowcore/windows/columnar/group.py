"""What windows folded by column have in common: their configuration as groups see it, and late records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flowcore.elements import MAX_TIMESTAMP_MS, LatencyMarker, RecordAttributes, WatermarkStatus
from flowcore.errors import NoTimestampError
from flowcore.keyed.key_index import Ints
from flowcore.keyed.operator import StepOutputs
from flowcore.keyed.output_columns import LATE
from flowcore.windows.columnar.accumulators import ColumnarAggregates
from flowcore.windows.config import WindowConfig

__all__ = ["ColumnarGroup", "Folded"]


class Folded(Protocol):
    """The configuration: `flowcore.windows.columnar.keyed.ColumnarWindows`."""

    @property
    def config(self) -> WindowConfig: ...

    @property
    def keys(self) -> tuple[str, ...]: ...

    @property
    def timestamp(self) -> str: ...

    @property
    def rows(self) -> pa.Schema: ...

    @property
    def late(self) -> tuple[str, ...]: ...

    @property
    def folding(self) -> ColumnarAggregates: ...

    @property
    def outputs(self) -> Mapping[str, pa.Schema]: ...


class ColumnarGroup:
    """The parts of a key group that are the same for all windows of event time.

    Args:
        of: The configuration.
    """

    wake_ms: int | None = None

    def __init__(self, of: Folded) -> None:
        self._of = of

    def advance_clock(self, clock_ms: int, out: StepOutputs) -> None:
        """Windows of event time do not look at it."""

    def attributes(self, attributes: RecordAttributes, out: StepOutputs) -> None:
        """Nothing changes for windows."""

    def status(self, status: WatermarkStatus, out: StepOutputs) -> None:
        """Nothing changes for windows."""

    def marker(self, marker: LatencyMarker, out: StepOutputs) -> None:
        """It follows what is out."""
        out.markers.append(marker)

    def finish(self, out: StepOutputs, *, idle: bool) -> None:
        """Nothing is held back."""

    def _times(self, rows: pa.RecordBatch) -> Ints:
        """The records' timestamps.

        Raises:
            NoTimestampError: One has none.
        """
        times = rows.column(self._of.timestamp)
        if times.null_count:
            first = int(np.argmin(times.is_valid().to_numpy(zero_copy_only=False)))
            msg = (
                f"the record {rows.slice(first, 1).to_pylist()[0]!r} has no timestamp: it belongs to no "
                "window of event time; set event_time on its source so that it always has one, or use "
                "windows of processing time"
            )
            raise NoTimestampError(msg)
        found: Ints = times.to_numpy()
        return found

    def _after_lateness(self, time_ms: int) -> int:
        return min(time_ms + self._of.config.allowed_lateness_ms, MAX_TIMESTAMP_MS)

    def _too_late(self, rows: pa.RecordBatch, late: npt.NDArray[np.bool_], out: StepOutputs) -> None:
        """Records that counted in no window; those of them that are late themselves leave, or are counted."""
        if self._of.config.late == "drop":
            out.count("dropped_records", int(late.sum()))
            return
        out.count("late_records", int(late.sum()))
        out.rows(LATE, rows.filter(pa.array(late)).select(list(self._of.late)))
