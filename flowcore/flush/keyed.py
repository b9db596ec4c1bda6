"""Buffers on key groups: the latest record of each key, column by column.

What `flowcore.flush` does record by record: the same things leave in the same order. Watermarks, statuses,
markers and the interval are kept by that package's `Buffer`, the records by `Latest`. What a step writes
down goes with what has come and not with what is held.

The highest watermark there is stands for the end of the input.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from flowcore.elements import (
    MAX_TIMESTAMP_MS,
    LatencyMarker,
    RecordAttributes,
    StreamElement,
    Watermark,
    WatermarkStatus,
)
from flowcore.errors import StateError
from flowcore.flush.buffer import Buffer, flush, hold
from flowcore.flush.buffering import is_due, start
from flowcore.flush.config import BufferOutput
from flowcore.flush.latest import Latest
from flowcore.flush.snapshots import restore, snapshot
from flowcore.keyed.operator import StepOutputs
from flowcore.keyed.output_columns import RESULTS
from flowcore.serializers.formats.raw import RawFormat
from flowcore.serializers.tagged import TaggedSerializer

__all__ = ["ELEMENTS", "BufferGroup", "FlushBuffers"]

ELEMENTS = "elements"
"""The output of what travels between the records: one column, each element as tagged bytes."""

_VERSION = 1
_ELEMENT_ROWS = pa.schema([pa.field("element", pa.binary())])
_SERIALIZER: TaggedSerializer[bytes] = TaggedSerializer(RawFormat())
_ROWS_PER_BATCH = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushBuffers:
    """Configuration of a buffer.

    Attributes:
        config: When it is flushed; its entries are those of one key group.
        quiet_ms: How long nothing must have come until there is "nothing available", >= 0; None for a slice,
            which has nothing behind each step unless it is told that there is more (backlog).
        keys: The key's columns; none for one record in all.
        timestamp: The column of the records' timestamps, a 64-bit integer that may be null.
        rows: The columns of records.
    """

    config: BufferOutput
    quiet_ms: int | None
    keys: tuple[str, ...]
    timestamp: str
    rows: pa.Schema

    @property
    def layout(self) -> str:
        """What is kept; when it leaves may change."""
        columns = ", ".join(f"{field.name} {field.type}" for field in self.rows)
        return f"latest by {', '.join(self.keys)}: {columns}"

    @property
    def outputs(self) -> Mapping[str, pa.Schema]:
        """Records as they came, and what travels between them."""
        return {RESULTS: self.rows, ELEMENTS: _ELEMENT_ROWS}

    def open(self) -> BufferGroup:
        """A key group without state."""
        return BufferGroup(self)


class BufferGroup:
    """The buffer of one key group.

    Args:
        of: Its configuration.
    """

    def __init__(self, of: FlushBuffers) -> None:
        self._of = of
        self._config = of.config
        self._rest: Buffer[Any, Any] = start()
        """All but the records."""
        self._held = Latest(of.keys, of.rows)
        self._new = Latest(of.keys, of.rows)
        """Those of them that no delta holds yet."""
        self._flushed = False
        """There was a flush since the last delta."""
        self._begun = False
        self._clock_ms = self._heard_ms = 0
        self._came = 0

    @property
    def wake_ms(self) -> int | None:
        """When it must be flushed though nothing comes."""
        if not self._held or self._of.quiet_ms is None:
            return None
        interval_ms = self._config.interval_ms_in(backlog=self._rest.backlog)
        quiet_ms = self._heard_ms + self._of.quiet_ms
        return quiet_ms if interval_ms is None else min(self._rest.last_flush_ms + interval_ms, quiet_ms)

    def advance_clock(self, clock_ms: int, out: StepOutputs) -> None:
        """Flush if the interval has passed; the first one begins now."""
        if not self._begun:
            self._begun = True
            self._rest.last_flush_ms = self._heard_ms = clock_ms
        self._clock_ms = clock_ms
        if self._config.holds and is_due(self._config, self._rest, clock_ms):
            self._flush(out)

    def attributes(self, attributes: RecordAttributes, out: StepOutputs) -> None:
        """Flush where backlog begins or ends, so that records stay on their side of it."""
        if attributes.backlog != self._rest.backlog:
            self._rest.backlog = attributes.backlog
            self._flush(out)
        _elements([attributes], out)

    def rows(self, rows: pa.RecordBatch, out: StepOutputs) -> None:
        """Hold records, and flush whenever that makes the buffer full."""
        if not self._config.holds:
            out.rows(RESULTS, rows)
            return
        most = self._config.max_entries if self._config.memory_buffer_only else None
        while rows.num_rows:
            count = rows.num_rows if most is None else self._held.room(rows, most)
            self._hold(rows.slice(0, count))
            rows = rows.slice(count)
            if most is not None and self._held.reaches(most):
                self._flush(out)

    def advance_watermark(self, watermark_ms: int, out: StepOutputs) -> None:
        """Hold it while a record is held; the last one flushes."""
        if watermark_ms == MAX_TIMESTAMP_MS:
            self._flush(out)
        self._control(Watermark(watermark_ms), out)

    def status(self, status: WatermarkStatus, out: StepOutputs) -> None:
        """Hold it while a record is held."""
        self._control(status, out)

    def marker(self, marker: LatencyMarker, out: StepOutputs) -> None:
        """Hold it while a record is held."""
        if self._held:
            hold(self._rest, marker)
        else:
            out.markers.append(marker)

    def finish(self, out: StepOutputs, *, idle: bool) -> None:
        """Flush if there has been nothing for long enough."""
        if not idle:
            self._heard_ms = self._clock_ms
        if self._config.holds and self._has_nothing_available(idle=idle):
            self._flush(out)
        out.gauges["held_records"] = len(self._held)
        if self._rest.waiting_since_ms is not None:
            out.gauges["held_since_ms"] = self._rest.waiting_since_ms

    def header(self) -> Mapping[str, Any]:
        """All but the records: also when something came last, and how many since the last flush."""
        return {
            "rest": snapshot(self._rest),
            "clock_ms": self._clock_ms,
            "heard_ms": self._heard_ms,
            "came": self._came,
        }

    def delta(self) -> bytes | None:
        """The records that have come since the last flush or delta, and whether there was a flush."""
        if not (self._new or self._flushed):
            return None
        written = _written(self._new.rows(), flushed=self._flushed)
        self._new.clear()
        self._flushed = False
        return written

    def snapshot(self) -> Iterator[bytes]:
        """All records."""
        self._new.clear()
        self._flushed = False
        for piece in self._held.pieces():
            yield _written(piece, flushed=False)

    def restore(self, header: Mapping[str, Any], pieces: Iterator[bytes]) -> None:
        """Take what was written."""
        self._begun = True
        self._rest = restore(header["rest"])
        self._clock_ms, self._heard_ms = header["clock_ms"], header["heard_ms"]
        self._came = header["came"]
        for piece in pieces:
            flushed, rows = _read(piece, self._of.rows)
            if flushed:
                self._held.clear()
            self._held.add(rows)
        self._new.clear()
        self._flushed = False

    def _has_nothing_available(self, *, idle: bool) -> bool:
        if self._of.quiet_ms is None:
            return not self._rest.backlog
        return idle and not 0 <= self._clock_ms - self._heard_ms < self._of.quiet_ms

    def _hold(self, rows: pa.RecordBatch) -> None:
        if self._rest.waiting_since_ms is None:
            self._rest.waiting_since_ms = self._clock_ms
        self._came += rows.num_rows
        self._held.add(rows)
        self._new.add(rows)

    def _control(self, element: Watermark | WatermarkStatus, out: StepOutputs) -> None:
        if self._held:
            hold(self._rest, element)
        else:
            _elements([element], out)

    def _flush(self, out: StepOutputs) -> None:
        watermark = self._rest.held.get(Watermark)
        released = flush(self._rest, self._clock_ms)
        if not self._held:
            return
        records = self._held.rows()
        out.count("saved_records", self._came - records.num_rows)
        later = records
        if isinstance(watermark, Watermark):
            times, last = records.column(self._of.timestamp), pa.scalar(watermark.timestamp_ms)
            covered: Any = pc.less_equal(times, last).fill_null(False)
            _records(records.filter(covered), out)
            later = records.filter(pc.invert(covered))
        _elements(released, out)
        _records(later, out)
        out.markers += [element for element in released if isinstance(element, LatencyMarker)]
        self._held.clear()
        self._new.clear()
        self._flushed = True
        self._came = 0


def _records(rows: pa.RecordBatch, out: StepOutputs) -> None:
    for begin in range(0, rows.num_rows, _ROWS_PER_BATCH):
        out.rows(RESULTS, rows.slice(begin, _ROWS_PER_BATCH))


def _elements(released: Iterable[StreamElement[Any]], out: StepOutputs) -> None:
    found = [each for each in released if isinstance(each, Watermark | WatermarkStatus | RecordAttributes)]
    written = pa.array([_SERIALIZER.encode(each) for each in found], pa.binary())
    out.rows(ELEMENTS, pa.record_batch([written], schema=_ELEMENT_ROWS))


def _written(rows: pa.RecordBatch, *, flushed: bool) -> bytes:
    return bytes([_VERSION, flushed]) + rows.serialize().to_pybytes()


def _read(piece: bytes, schema: pa.Schema) -> tuple[bool, pa.RecordBatch]:
    if piece[:1] != bytes([_VERSION]):
        msg = (
            f"a buffer's state of version {piece[0] if piece else 'none'}, this flowcore reads {_VERSION}: "
            "records held back in it would be lost; go on with the flowcore that wrote it, or start a new "
            "checkpoint"
        )
        raise StateError(msg)
    return bool(piece[1]), pa.ipc.read_record_batch(pa.py_buffer(piece)[2:], schema)
