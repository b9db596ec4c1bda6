"""The task of one slot: turn Arrow batches into messages, and write them in one transaction.

It runs in a Python worker, so it imports neither the API nor Spark's SQL.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from flowcore.kafka.transactions import Message, MessageBatch, TransactionalWriter

__all__ = ["RESULT_TYPES", "write_slot"]

RESULT_TYPES = "written STRING, refusal STRING"
_ROWS = 8192
"""The number of rows that are Python objects at the same time."""


def write_slot(
    batches: Iterable[pa.RecordBatch], writer: TransactionalWriter, batch: int, *, compares: bool
) -> Iterator[pa.RecordBatch]:
    """Write or compare the rows of this task as one slot of a batch; yields one row with what was done."""
    context = TaskContext.get()
    if context is None:
        msg = "write_slot was called outside of a task"
        raise RuntimeError(msg)
    result = writer.write(context.partitionId(), batch, _chunks(batches), compares=compares)
    columns = {"written": [json.dumps(result.written)], "refusal": [result.refusal or ""]}
    yield pa.RecordBatch.from_pydict(columns)


def _chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[MessageBatch]:
    for batch in batches:
        for start in range(0, batch.num_rows, _ROWS):
            rows = batch.slice(start, _ROWS)
            hashes = rows["hash"].drop_null().to_numpy(zero_copy_only=False)
            digest = int(np.sum(hashes.astype(np.uint64), dtype=np.uint64))
            yield MessageBatch(_messages(rows), len(hashes), digest)


def _messages(rows: pa.RecordBatch) -> Iterator[Message]:
    headers: Any = rows["headers"]
    flat = headers.flatten()
    pairs = list(zip(flat.field("key").to_pylist(), flat.field("value").to_pylist(), strict=True))
    counts = pc.list_value_length(headers).fill_null(0).to_pylist()
    columns = (rows[name].to_pylist() for name in ("topic", "key", "value", "partition"))
    end = 0
    for topic, key, value, partition, count in zip(*columns, counts, strict=True):
        begin, end = end, end + count
        yield topic, key, value, pairs[begin:end], partition
