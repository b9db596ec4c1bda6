"""An operator with a flush buffer downstream, as one operator with one state.

Results go into the buffer, and so do the elements between them. Other outputs are emitted at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from flowcore.elements import LatencyMarker, RecordAttributes, WatermarkStatus
from flowcore.flush.operator import BufferGroup, FlushBuffers
from flowcore.keyed.operator import KeyGroup, KeyGroupOperator, StepOutputs
from flowcore.keyed.output_columns import RESULTS
from flowcore.keyed.segments import join_pieces, split_piece

__all__ = ["BufferedOperator"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferedOperator(KeyGroupOperator):
    """Configuration of an operator with a buffer downstream, whose rows are the operator's results."""

    operator: KeyGroupOperator
    buffer: FlushBuffers

    @property
    def memory_factor(self) -> int:
        return max(self.operator.memory_factor, self.buffer.memory_factor)

    @property
    def layout(self) -> str:
        return f"{self.operator.layout}; {self.buffer.layout}"

    @property
    def outputs(self) -> Mapping[str, pa.Schema]:
        return {**self.operator.outputs, **self.buffer.outputs}

    def open(self) -> _Group:
        return _Group(self.operator.open(), self.buffer.open())

    def close(self) -> None:
        self.operator.close()


class _Group(KeyGroup):
    emits_control = True

    def __init__(self, inner: KeyGroup, buffer: BufferGroup) -> None:
        self._inner = inner
        self._buffer = buffer

    @property
    def wake_ms(self) -> int | None:
        times = (self._inner.wake_ms, self._buffer.wake_ms)
        return min((time for time in times if time is not None), default=None)

    def advance_processing_time(self, processing_time_ms: int, out: StepOutputs) -> None:
        self._buffer.advance_processing_time(processing_time_ms, out)
        self._run(out, self._inner.advance_processing_time, processing_time_ms)

    def attributes(self, attributes: RecordAttributes, out: StepOutputs) -> None:
        self._run(out, self._inner.attributes, attributes)
        self._buffer.attributes(attributes, out)

    def rows(self, rows: pa.RecordBatch, out: StepOutputs) -> None:
        self._run(out, self._inner.rows, rows)

    def advance_watermark(self, watermark_ms: int, out: StepOutputs) -> None:
        self._run(out, self._inner.advance_watermark, watermark_ms)
        self._buffer.advance_watermark(watermark_ms, out)

    def status(self, status: WatermarkStatus, out: StepOutputs) -> None:
        self._run(out, self._inner.status, status)
        self._buffer.status(status, out)

    def marker(self, marker: LatencyMarker, out: StepOutputs) -> None:
        self._run(out, self._inner.marker, marker)

    def upstream_flushed(self, out: StepOutputs) -> None:
        """The results of what an upstream buffer emitted are in the buffer."""
        self._buffer.upstream_flushed(out)

    def finish(self, out: StepOutputs, *, idle: bool) -> None:
        self._run(out, self._inner.finish, idle=idle)
        self._buffer.finish(out, idle=idle)

    def isolate_failures(self) -> bool:
        return self._inner.isolate_failures()

    def header(self) -> Mapping[str, Any]:
        return {"operator": self._inner.header(), "buffer": self._buffer.header()}

    def delta(self) -> bytes | None:
        """The deltas of both; empty bytes where nothing has changed."""
        inner, buffered = self._inner.delta(), self._buffer.delta()
        return None if inner is None and buffered is None else join_pieces(inner or b"", buffered or b"")

    def snapshot(self) -> Iterator[bytes]:
        yield from (join_pieces(piece, b"") for piece in self._inner.snapshot())
        yield from (join_pieces(b"", piece) for piece in self._buffer.snapshot())

    def restore(self, header: Mapping[str, Any], pieces: Iterator[bytes]) -> None:
        buffered: list[bytes] = []

        def operator_pieces() -> Iterator[bytes]:
            for inner, own in map(split_piece, pieces):
                if own:
                    buffered.append(own)
                if inner:
                    yield inner

        self._inner.restore(header["operator"], operator_pieces())
        self._buffer.restore(header["buffer"], iter(buffered))

    def _run(self, out: StepOutputs, method: Callable[..., None], *inputs: Any, **options: bool) -> None:
        """Call a method of the operator, and buffer its results."""
        results = StepOutputs()
        method(*inputs, results, **options)
        for output, batch in results.batches:
            if output == RESULTS:
                self._buffer.rows(batch, out)
            else:
                out.rows(output, batch)
        for marker in results.markers:
            self._buffer.marker(marker, out)
        for name, times in results.counters.items():
            out.count(name, times)
