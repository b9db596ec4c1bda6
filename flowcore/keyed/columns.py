"""Selecting and concatenating rows of Arrow columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from flowcore.errors import NoTimestampError
from flowcore.keyed.key_index import Ints

__all__ = ["KeyColumns", "complete_batch", "concat_batches", "take_rows", "timestamps_of"]

KeyColumns = list["pa.Array[Any]"]
"""The columns of a key, for some rows."""


def take_rows(columns: Sequence[pa.Array[Any]], rows: Ints) -> KeyColumns:
    """Select rows of columns."""
    return [column.take(rows) for column in columns]


def timestamps_of(
    rows: pa.RecordBatch, column: str, shown: Sequence[str], unknown: str, instead: str = ""
) -> Ints:
    """The timestamps of rows: a column of 64-bit integers.

    Args:
        shown: The columns of a row that the error shows.
        unknown: What cannot be decided for a row without timestamp.
        instead: The way out where not all rows can have one.

    Raises:
        NoTimestampError: A row has none.
    """
    times = rows.column(column)
    if times.null_count:
        (row,) = rows.filter(times.is_null()).slice(0, 1).select(list(shown)).to_pylist()
        msg = (
            f"the record with {row!r} has no timestamp: {unknown}; set event_time on its source so that it "
            f"always has one{instead}"
        )
        raise NoTimestampError(msg)
    times_ms: Ints = times.to_numpy()
    return times_ms


def concat_batches(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Concatenate at least one batch."""
    if len(batches) == 1:
        return batches[0]
    # A batch has one chunk; a table without rows has none.
    chunks = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return chunks[0] if chunks else batches[0]


def complete_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of a schema; those that the batch does not have are null."""
    known = {*batch.schema.names}
    if len(known) == len(schema):
        return batch
    columns = [
        batch.column(field.name) if field.name in known else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
