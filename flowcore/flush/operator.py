"""The buffer of a key group: the latest record of each key, column by column.

`flowcore.testing.record_buffer` does the same record by record: the same elements leave in the same order.
What a step writes grows with the records that arrived in it, not with those that are buffered.

The maximum watermark stands for the end of input.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from flowcore.elements import MAX_TIMESTAMP_MS, LatencyMarker, RecordAttributes, Watermark, WatermarkStatus
from flowcore.flush.buffer import BufferState, Control
from flowcore.flush.config import BufferOutput
from flowcore.flush.latest import LatestRecords
from flowcore.keyed.operator import CONTROL, CONTROL_ROWS, KeyGroup, KeyGroupOperator, StepOutputs
from flowcore.keyed.output_columns import RESULTS
from flowcore.keyed.versions import require_version

__all__ = ["BufferGroup", "FlushBuffers"]

_VERSION = 1
_ROWS_PER_BATCH = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushBuffers(KeyGroupOperator):
    """Configuration of a buffer.

    Attributes:
        config: When it is flushed; its entries are those of one key group.
        quiet_ms: Time without input after which the buffer is flushed because nothing is available, >= 0.
            None in a slice, where nothing is available after each step unless the backlog status says so.
        keys: The key's columns; none for one record in all.
        timestamp: The column of the records' timestamps, a 64-bit integer that may be null.
    """

    config: BufferOutput
    quiet_ms: int | None
    keys: tuple[str, ...]
    timestamp: str
    rows: pa.Schema
    memory_factor: ClassVar[int] = 4

    @property
    def layout(self) -> str:
        """The state layout; when the buffer is flushed may change."""
        columns = ", ".join(f"{field.name} {field.type}" for field in self.rows)
        return f"latest by {', '.join(self.keys)}: {columns}"

    @property
    def outputs(self) -> Mapping[str, pa.Schema]:
        """Records as they arrived, and the control elements between them."""
        return {RESULTS: self.rows, CONTROL: CONTROL_ROWS}

    def open(self) -> BufferGroup:
        return BufferGroup(self)


class BufferGroup(KeyGroup):
    """The buffer of one key group."""

    emits_control = True

    def __init__(self, operator: FlushBuffers) -> None:
        self._operator = operator
        self._config = operator.config
        self._state = BufferState()
        self._records = LatestRecords(operator.keys, operator.rows)
        self._unsaved = LatestRecords(operator.keys, operator.rows)
        """The records that no delta contains yet."""
        self._flushed = False
        """There was a flush since the last delta."""
        self._begun = False
        self._processing_time_ms = self._last_input_ms = 0
        self._arrived = 0
        """Records since the last flush."""
        self._due_ms: int | None = None
        """When it is flushed because an upstream buffer was."""

    @property
    def wake_ms(self) -> int | None:
        """When the buffer must be flushed although nothing arrives."""
        if not self._records or self._operator.quiet_ms is None:
            return None
        interval_ms = self._config.interval_ms_in(backlog=self._state.backlog)
        due_ms = None if interval_ms is None else self._state.last_flush_ms + interval_ms
        times_ms = (self._last_input_ms + self._operator.quiet_ms, due_ms, self._due_ms)
        return min(time_ms for time_ms in times_ms if time_ms is not None)

    def advance_processing_time(self, processing_time_ms: int, out: StepOutputs) -> None:
        """Flush if the interval has passed; the first interval begins now."""
        if not self._begun:
            self._begun = True
            self._state.last_flush_ms = self._last_input_ms = processing_time_ms
        self._processing_time_ms = processing_time_ms
        is_due = self._state.is_due(self._config, processing_time_ms)
        if self._config.is_enabled and (
            is_due or (self._due_ms is not None and processing_time_ms >= self._due_ms)
        ):
            self._flush(out)

    def upstream_flushed(self, out: StepOutputs) -> None:  # noqa: ARG002 - it emits later
        """Flush soon, when what belongs to one flush has been gathered."""
        if self._config.gather_ms is not None and self._due_ms is None:
            self._due_ms = self._processing_time_ms + self._config.gather_ms

    def attributes(self, attributes: RecordAttributes, out: StepOutputs) -> None:
        """Flush where the backlog status changes, so that no record crosses the change."""
        if attributes.backlog != self._state.backlog:
            self._state.backlog = attributes.backlog
            self._flush(out)
        out.control(attributes)

    def rows(self, rows: pa.RecordBatch, out: StepOutputs) -> None:
        """Buffer records, and flush whenever the buffer is full."""
        if not self._config.is_enabled:
            out.rows(RESULTS, rows)
            return
        most = self._config.capacity
        while rows.num_rows:
            count = rows.num_rows if most is None else self._records.room(rows, most)
            if self._state.waiting_since_ms is None:
                self._state.waiting_since_ms = self._processing_time_ms
            self._arrived += count
            self._records.add(rows.slice(0, count))
            self._unsaved.add(rows.slice(0, count))
            rows = rows.slice(count)
            if most is not None and self._records.reaches(most):
                self._flush(out)

    def advance_watermark(self, watermark_ms: int, out: StepOutputs) -> None:
        """Buffer the watermark if there are records; the maximum watermark flushes."""
        if watermark_ms == MAX_TIMESTAMP_MS:
            self._flush(out)
        self._control(Watermark(watermark_ms), out)

    def status(self, status: WatermarkStatus, out: StepOutputs) -> None:
        self._control(status, out)

    def marker(self, marker: LatencyMarker, out: StepOutputs) -> None:
        """Buffer the marker if there are records."""
        if self._records:
            self._state.add(marker)
        else:
            out.markers.append(marker)

    def finish(self, out: StepOutputs, *, idle: bool) -> None:
        """Flush for the checkpoint, or if no input has been available for long enough."""
        if not idle:
            self._last_input_ms = self._processing_time_ms
        if self._config.at_checkpoint or (self._config.is_enabled and self._has_nothing_available(idle=idle)):
            self._flush(out)
        out.gauges["buffered_records"] = len(self._records)
        if self._state.waiting_since_ms is not None:
            out.gauges["buffered_since_ms"] = self._state.waiting_since_ms

    def header(self) -> Mapping[str, Any]:
        """Everything except the records."""
        return {
            "rest": self._state.snapshot(),
            "clock_ms": self._processing_time_ms,
            "heard_ms": self._last_input_ms,
            "came": self._arrived,
            "due_ms": self._due_ms,
        }

    def delta(self) -> bytes | None:
        """The records since the last flush or delta, and whether there was a flush."""
        if not (self._unsaved or self._flushed):
            return None
        written = _encode(self._unsaved.rows(), flushed=self._flushed)
        self._mark_saved()
        return written

    def snapshot(self) -> Iterator[bytes]:
        self._mark_saved()
        for piece in self._records.pieces():
            yield _encode(piece, flushed=False)

    def restore(self, header: Mapping[str, Any], pieces: Iterator[bytes]) -> None:
        self._begun = True
        self._state = BufferState.restore(header["rest"])
        self._processing_time_ms, self._last_input_ms = header["clock_ms"], header["heard_ms"]
        self._arrived, self._due_ms = header["came"], header.get("due_ms")
        for piece in pieces:
            flushed, rows = _decode(piece, self._operator.rows)
            if flushed:
                self._records.clear()
            self._records.add(rows)
        self._mark_saved()

    def _mark_saved(self) -> None:
        self._unsaved.clear()
        self._flushed = False

    def _has_nothing_available(self, *, idle: bool) -> bool:
        if self._operator.quiet_ms is None:
            return not self._state.backlog
        return idle and not 0 <= self._processing_time_ms - self._last_input_ms < self._operator.quiet_ms

    def _control(self, element: Control, out: StepOutputs) -> None:
        if self._records:
            self._state.add(element)
        else:
            out.control(element)

    def _flush(self, out: StepOutputs) -> None:
        watermark = self._state.controls.get(Watermark)
        controls, markers = self._state.flush(self._processing_time_ms)
        self._due_ms = None
        if not self._records:
            return
        records = self._records.rows()
        out.count("saved_records", self._arrived - records.num_rows)
        later = records
        if isinstance(watermark, Watermark):
            times, last = records.column(self._operator.timestamp), pa.scalar(watermark.timestamp_ms)
            covered: Any = pc.less_equal(times, last).fill_null(False)
            _emit_records(records.filter(covered), out)
            later = records.filter(pc.invert(covered))
        for element in controls:
            out.control(element)
        _emit_records(later, out)
        out.flushed = True
        out.markers += markers
        self._records.clear()
        self._unsaved.clear()
        self._flushed = True
        self._arrived = 0


def _emit_records(rows: pa.RecordBatch, out: StepOutputs) -> None:
    for begin in range(0, rows.num_rows, _ROWS_PER_BATCH):
        out.rows(RESULTS, rows.slice(begin, _ROWS_PER_BATCH))


def _encode(rows: pa.RecordBatch, *, flushed: bool) -> bytes:
    return bytes([_VERSION, flushed]) + rows.serialize().to_pybytes()


def _decode(piece: bytes, schema: pa.Schema) -> tuple[bool, pa.RecordBatch]:
    require_version("a buffer's state", piece[0] if piece else None, _VERSION)
    return bool(piece[1]), pa.ipc.read_record_batch(pa.py_buffer(piece)[2:], schema)
