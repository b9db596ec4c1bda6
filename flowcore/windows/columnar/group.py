"""The common parts of columnar windows: configuration, output rows, base class of key groups."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flowcore.elements import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from flowcore.keyed.columns import KeyColumns, timestamps_of
from flowcore.keyed.content import read_ended_ms
from flowcore.keyed.key_index import Ints
from flowcore.keyed.operator import KeyGroup, KeyGroupOperator, StepOutputs
from flowcore.keyed.output_columns import LATE, ORDINAL, RESULTS, WINDOW_FIELDS
from flowcore.windows.built_in import BuiltIns
from flowcore.windows.columnar.accumulators import AccumulatorColumns, ColumnarAggregates
from flowcore.windows.config import WindowConfig
from flowcore.windows.functions import WindowAggregate
from flowcore.windows.window import TimeWindow

__all__ = ["ColumnarConfig", "ColumnarGroup", "ResultWriter"]

_ROWS_PER_BATCH = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnarConfig(KeyGroupOperator):
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
        match self.config.function:
            case WindowAggregate(function=BuiltIns(columns=columns)):
                return ColumnarAggregates(columns, {field.name: field.type for field in self.rows})
            case _:
                msg = f"{self.config.function!r} cannot be computed by column: call ColumnarWindows.refusal"
                raise TypeError(msg)

    @property
    def outputs(self) -> Mapping[str, pa.Schema]:
        keys = [(name, self.rows.field(name).type) for name in self.keys]
        ordinal = [] if self.config.assigner.bounded else [(ORDINAL, pa.int32())]
        results = [*keys, *self.aggregates.result_types().items(), *WINDOW_FIELDS, *ordinal]
        return {RESULTS: pa.schema(results), LATE: pa.schema([self.rows.field(name) for name in self.late])}


@dataclass(slots=True)
class ResultWriter:
    """Computes and emits rows with the key's columns, the aggregates' and `WINDOW_FIELDS`."""

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


class ColumnarGroup(KeyGroup):
    """The common parts of key groups of event-time windows."""

    def __init__(self, context: ColumnarConfig) -> None:
        self._context = context
        self._aggregates = context.aggregates
        self._accumulators = self._aggregates.accumulators
        self._schema = context.outputs[RESULTS]
        self._watermark_ms = MIN_TIMESTAMP_MS
        self._ended_ms = context.config.ended_ms(MIN_TIMESTAMP_MS)
        """Windows up to this time had ended when the state was restored, by the lateness of then."""

    @property
    def _late_ms(self) -> int:
        """Records up to this time are late, and windows up to it have ended; may be below all times."""
        return max(self._ended_ms, self._context.config.ended_ms(self._watermark_ms))

    def _restore_times(self, header: Mapping[str, Any]) -> None:
        self._watermark_ms = header.get("watermark_ms", MIN_TIMESTAMP_MS)
        self._ended_ms = max(self._ended_ms, read_ended_ms(header))

    def _times_of(self, rows: pa.RecordBatch) -> Ints:
        unknown, instead = "it belongs to no window of event time", ", or use windows of processing time"
        return timestamps_of(rows, self._context.timestamp, rows.schema.names, unknown, instead)

    def _writer(self, out: StepOutputs) -> ResultWriter:
        return ResultWriter(self._schema, self._aggregates, out)

    def _reject(self, rows: pa.RecordBatch, late: npt.NDArray[np.bool_], out: StepOutputs) -> None:
        """Emit or count the late records among those that are in no window."""
        out.reject(LATE, rows, late, None if self._context.config.late == "drop" else self._context.late)
