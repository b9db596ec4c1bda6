"""Runs an operator on bounded input, whose records come in order of time.

The state is in memory until the input ends. The watermark stays at its minimum until then, so that no record
is late, and becomes the maximum at the end. All records are backlog.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from flowcore.elements import MAX_TIMESTAMP_MS, RecordAttributes
from flowcore.keyed.operator import Closing, KeyGroup, KeyGroupOperator, StepOutputs

__all__ = ["BoundedRun"]


@dataclass(frozen=True, slots=True)
class BoundedRun:
    """A run over one key group, or over several as if they were one.

    Args:
        clock_ms: Processing time, which does not advance.
    """

    operator: KeyGroupOperator
    clock_ms: int

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, pa.RecordBatch]]:
        """``(output, rows)``, in order, for records in order of time."""
        try:
            yield from self._run(batches)
        finally:
            if isinstance(self.operator, Closing):
                self.operator.close()

    def _run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, pa.RecordBatch]]:
        group: KeyGroup | None = None
        for batch in batches:
            out = StepOutputs()
            if group is None:
                group = self.operator.open()
                group.advance_clock(self.clock_ms, out)
                group.attributes(RecordAttributes(backlog=True), out)
            group.rows(batch, out)
            yield from out.batches
        if group is None:
            return
        out = StepOutputs()
        group.advance_watermark(MAX_TIMESTAMP_MS, out)
        group.finish(out, idle=False)
        yield from out.batches
