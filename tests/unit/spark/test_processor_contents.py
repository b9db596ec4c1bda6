"""What leaves a step of a key group is in parts: an Arrow array cannot hold 2 GiB of text or bytes."""

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowcore.spark.operators import processor


def _stepped(*batches: pa.RecordBatch) -> Any:
    outputs = SimpleNamespace(
        batches=[("results", batch) for batch in batches], markers=[], emitted=0, counters={}, gauges={}
    )
    stepped = SimpleNamespace(outputs=outputs, manifest=SimpleNamespace(sizes=dict))
    return SimpleNamespace(steps=[(0, stepped)], passing=[])


@given(lengths=st.lists(st.integers(0, 300), max_size=5))
def test_rows_of_a_step_leave_in_order_and_in_parts(lengths: list[int]) -> None:
    """No part is much larger than the limit, and none is empty but the last."""
    limit = 1_000
    starts = [sum(lengths[:place]) for place in range(len(lengths))]
    batches = [
        pa.record_batch({"n": pa.array(range(start, start + length), pa.int64())})
        for start, length in zip(starts, lengths, strict=True)
    ]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processor, "_BYTES_AT_ONCE", limit)
        parts = list(processor._in_parts(processor._contents(_stepped(*batches), ["windows/0"])))

    contents = [each for part in parts for each in part]
    tables = [pa.ipc.read_record_batch(c, b.schema) for (b, c) in _results(batches, contents)]
    assert [row["n"] for table in tables for row in table.to_pylist()] == list(range(sum(lengths)))
    assert all(table.nbytes <= limit for table in tables)
    assert all(parts[:-1])
    assert all(sum(len(content) for _, _, content in part[:-1]) < limit for part in parts)


def _results(batches: list[pa.RecordBatch], contents: list[tuple[int, str, bytes]]) -> Any:
    return [(batches[0], content) for _, output, content in contents if output == "results"]
