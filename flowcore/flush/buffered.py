"""Buffered operators: one that keeps state by key group, and a buffer behind its results.

Both are one operator to the runtime, with one state: what goes in together is kept together. Results go into
the buffer, and what travels between them follows them there; other outputs leave at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from flowcore.elements import LatencyMarker, RecordAttributes, WatermarkStatus
from flowcore.flush.keyed import BufferGroup, FlushBuffers
from flowcore.keyed.operator import KeyGroup, KeyGroupOperator, StepOutputs, SupportsFailureIsolation
from flowcore.keyed.output_columns import RESULTS

__all__ = ["Buffered"]

_SIZE_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffered:
    """Configuration of an operator with a buffer behind it.

    Attributes:
        operator: The operator.
        buffer: The buffer; its rows are the operator's results.
    """

    operator: KeyGroupOperator
    buffer: FlushBuffers

    @property
    def layout(self) -> str:
        """What both keep."""
        return f"{self.operator.layout}; {self.buffer.layout}"

    @property
    def outputs(self) -> Mapping[str, pa.Schema]:
        """Those of both."""
        return {**self.operator.outputs, **self.buffer.outputs}

    def open(self) -> _Group:
        """A key group without state."""
        return _Group(self.operator.open(), self.buffer.open())


class _Group:
    def __init__(self, inner: KeyGroup, buffer: BufferGroup) -> None:
        self._inner = inner
        self._buffer = buffer

    @property
    def wake_ms(self) -> int | None:
        """When one of them wants a step."""
        times = (self._inner.wake_ms, self._buffer.wake_ms)
        return min((time for time in times if time is not None), default=None)

    def advance_clock(self, clock_ms: int, out: StepOutputs) -> None:
        """A flush that is due, then what the clock makes the operator put out."""
        self._buffer.advance_clock(clock_ms, out)
        found = StepOutputs()
        self._inner.advance_clock(clock_ms, found)
        self._pass(found, out)

    def attributes(self, attributes: RecordAttributes, out: StepOutputs) -> None:
        """Through both."""
        found = StepOutputs()
        self._inner.attributes(attributes, found)
        self._pass(found, out)
        self._buffer.attributes(attributes, out)

    def rows(self, rows: pa.RecordBatch, out: StepOutputs) -> None:
        """Records for the operator."""
        found = StepOutputs()
        self._inner.rows(rows, found)
        self._pass(found, out)

    def advance_watermark(self, watermark_ms: int, out: StepOutputs) -> None:
        """What it makes the operator put out, then the watermark itself."""
        found = StepOutputs()
        self._inner.advance_watermark(watermark_ms, found)
        self._pass(found, out)
        self._buffer.advance_watermark(watermark_ms, out)

    def status(self, status: WatermarkStatus, out: StepOutputs) -> None:
        """Through both."""
        found = StepOutputs()
        self._inner.status(status, found)
        self._pass(found, out)
        self._buffer.status(status, out)

    def marker(self, marker: LatencyMarker, out: StepOutputs) -> None:
        """Through both."""
        found = StepOutputs()
        self._inner.marker(marker, found)
        self._pass(found, out)

    def finish(self, out: StepOutputs, *, idle: bool) -> None:
        """Of both."""
        found = StepOutputs()
        self._inner.finish(found, idle=idle)
        self._pass(found, out)
        self._buffer.finish(out, idle=idle)

    def isolate_failures(self) -> bool:
        """The operator's functions; a buffer has none."""
        return isinstance(self._inner, SupportsFailureIsolation) and self._inner.isolate_failures()

    def header(self) -> Mapping[str, Any]:
        """Of both."""
        return {"operator": self._inner.header(), "buffer": self._buffer.header()}

    def delta(self) -> bytes | None:
        """Of both; without bytes where nothing has changed."""
        inner, held = self._inner.delta(), self._buffer.delta()
        return None if inner is None and held is None else _together(inner or b"", held or b"")

    def snapshot(self) -> Iterator[bytes]:
        """The operator's pieces, then the buffer's."""
        yield from (_together(piece, b"") for piece in self._inner.snapshot())
        yield from (_together(b"", piece) for piece in self._buffer.snapshot())

    def restore(self, header: Mapping[str, Any], pieces: Iterator[bytes]) -> None:
        """Take what was written."""
        held: list[bytes] = []

        def operator_pieces() -> Iterator[bytes]:
            for piece in pieces:
                inner, mine = _apart(piece)
                held.extend([mine] if mine else ())
                if inner:
                    yield inner

        self._inner.restore(header["operator"], operator_pieces())
        self._buffer.restore(header["buffer"], iter(held))

    def _pass(self, found: StepOutputs, out: StepOutputs) -> None:
        for output, batch in found.batches:
            if output == RESULTS:
                self._buffer.rows(batch, out)
            else:
                out.rows(output, batch)
        for marker in found.markers:
            self._buffer.marker(marker, out)
        for what, often in found.counters.items():
            out.count(what, often)


def _together(inner: bytes, held: bytes) -> bytes:
    return len(inner).to_bytes(_SIZE_BYTES, "big") + inner + held


def _apart(piece: bytes) -> tuple[bytes, bytes]:
    end = _SIZE_BYTES + int.from_bytes(piece[:_SIZE_BYTES], "big")
    return piece[_SIZE_BYTES:end], piece[end:]
