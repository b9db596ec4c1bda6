"""Run an operator on bounded input, whose records are in order of time.

The state is in memory until the input ends. The watermark stays at its minimum until then, so that no record
is late, and becomes the maximum at the end. All records are backlog.
"""

from collections.abc import Iterable, Iterator

import pyarrow as pa

from flowcore.elements import MAX_TIMESTAMP_MS, RecordAttributes
from flowcore.keyed.operator import KeyGroup, KeyGroupOperator, StepOutputs

__all__ = ["run_on_bounded"]


def run_on_bounded(
    operator: KeyGroupOperator, batches: Iterable[pa.RecordBatch], *, processing_time_ms: int
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """``(output, rows)``, in order, of one key group, or of several as if they were one.

    Args:
        processing_time_ms: Processing time, which does not advance.
    """
    group: KeyGroup | None = None
    try:
        for batch in batches:
            out = StepOutputs()
            if group is None:
                group = operator.open()
                group.advance_processing_time(processing_time_ms, out)
                group.attributes(RecordAttributes(backlog=True), out)
            group.rows(batch, out)
            yield from out.batches
        if group is not None:
            out = StepOutputs()
            group.advance_watermark(MAX_TIMESTAMP_MS, out)
            group.finish(out, idle=False)
            yield from out.batches
    finally:
        operator.close()
