"""The common parts of columnar windows: their configuration, and the base class of their key groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flowcore.elements import (
    MAX_TIMESTAMP_MS,
    MIN_TIMESTAMP_MS,
    LatencyMarker,
    RecordAttributes,
    WatermarkStatus,
)
from flowcore.errors import NoTimestampError
from flowcore.keyed.key_index import Ints
from flowcore.keyed.operator import StepOutputs
from flowcore.keyed.output_columns import LATE, RESULTS, WINDOW_FIELDS
from flowcore.windows.built_in import BuiltIns
from flowcore.windows.columnar.accumulators import ColumnarAggregates
from flowcore.windows.columnar.results import ResultWriter
from flowcore.windows.config import WindowConfig
from flowcore.windows.functions import WindowAggregate

__all__ = ["ColumnarConfig", "ColumnarGroup"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnarConfig:
    """Configuration of columnar windows.

    Attributes:
        keys: The key's columns; none for one key for all.
        timestamp: The column of the records' timestamps, a 64-bit integer.
    """

    config: WindowConfig
    keys: tuple[str, ...]
    timestamp: str
    rows: pa.Schema
    late: tuple[str, ...] = ()

    @property
    def aggregates(self) -> ColumnarAggregates:
        """The aggregates of the windows."""
        match self.config.function:
            case WindowAggregate(function=BuiltIns(columns=columns)):
                return ColumnarAggregates(columns, {field.name: field.type for field in self.rows})
            case _:
                msg = f"{self.config.function!r} cannot be computed by column: call ColumnarWindows.refusal"
                raise TypeError(msg)

    @property
    def outputs(self) -> Mapping[str, pa.Schema]:
        """The schemas of results and late records."""
        keys = [(name, self.rows.field(name).type) for name in self.keys]
        results = [*keys, *self.aggregates.result_types().items(), *WINDOW_FIELDS]
        return {RESULTS: pa.schema(results), LATE: pa.schema([self.rows.field(name) for name in self.late])}


class ColumnarGroup:
    """The common parts of key groups of event-time windows."""

    wake_ms: int | None = None

    def __init__(self, context: ColumnarConfig) -> None:
        self._context = context
        self._aggregates = context.aggregates
        self._accumulators = self._aggregates.accumulators
        self._schema = context.outputs[RESULTS]
        self._watermark_ms = MIN_TIMESTAMP_MS

    def advance_clock(self, clock_ms: int, out: StepOutputs) -> None:
        pass

    def attributes(self, attributes: RecordAttributes, out: StepOutputs) -> None:
        pass

    def status(self, status: WatermarkStatus, out: StepOutputs) -> None:
        pass

    def marker(self, marker: LatencyMarker, out: StepOutputs) -> None:
        out.markers.append(marker)

    def finish(self, out: StepOutputs, *, idle: bool) -> None:
        pass

    @property
    def _late_ms(self) -> int:
        """Records up to this time are late, and windows up to it have ended; may be below all times."""
        if self._watermark_ms == MAX_TIMESTAMP_MS:
            return MAX_TIMESTAMP_MS
        return self._watermark_ms - self._context.config.allowed_lateness_ms

    def _times_of(self, rows: pa.RecordBatch) -> Ints:
        """Return the records' timestamps.

        Raises:
            NoTimestampError: A record has none.
        """
        times = rows.column(self._context.timestamp)
        if times.null_count:
            first = int(np.argmin(times.is_valid().to_numpy(zero_copy_only=False)))
            msg = (
                f"the record {rows.slice(first, 1).to_pylist()[0]!r} has no timestamp: it belongs to no "
                "window of event time; set event_time on its source so that it always has one, or use "
                "windows of processing time"
            )
            raise NoTimestampError(msg)
        times_ms: Ints = times.to_numpy()
        return times_ms

    def _writer(self, out: StepOutputs) -> ResultWriter:
        return ResultWriter(self._schema, self._aggregates, out)

    def _reject(self, rows: pa.RecordBatch, late: npt.NDArray[np.bool_], out: StepOutputs) -> None:
        """Emit or count the late ones among records that are in no window."""
        if self._context.config.late == "drop":
            out.count("dropped_records", int(late.sum()))
            return
        out.count("late_records", int(late.sum()))
        out.rows(LATE, rows.filter(pa.array(late)).select(list(self._context.late)))
