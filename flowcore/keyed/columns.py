"""Selecting and concatenating rows of Arrow columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flowcore.errors import NoTimestampError, StateError
from flowcore.serializers.python_values import first_row

if TYPE_CHECKING:
    from flowcore.keyed.key_index import Ints

__all__ = [
    "KeyColumns", "RowMask", "complete_batch", "concat_batches", "in_parts", "rows_not_null", "runs",
    "take_rows", "timestamps_of",
]  # fmt: skip

KeyColumns = list["pa.Array[Any]"]
"""The columns of a key, for some rows."""
RowMask = npt.NDArray[np.bool_]
"""Which of some rows."""


def rows_not_null(column: pa.Array[Any]) -> RowMask:
    """Which values of a column are not null."""
    found: RowMask = column.is_valid().to_numpy(zero_copy_only=False)
    return found


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
        row = first_row(rows.filter(times.is_null()).select(list(shown)))
        msg = (
            f"the record with {row!r} has no timestamp: {unknown}; set event_time on its source so that it "
            f"always has one{instead}"
        )
        raise NoTimestampError(msg)
    times_ms: Ints = times.to_numpy()
    return times_ms


def concat_batches(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Concatenate at least one batch.

    Raises:
        StateError: A column of text or bytes is larger than an Arrow array can be.
    """
    if len(batches) == 1:
        return batches[0]
    # A table without rows has no chunk.
    first, *others = pa.Table.from_batches(batches).combine_chunks().to_batches() or batches[:1]
    if others:
        msg = (
            f"{sum(each.num_rows for each in batches):,} rows that belong together have more than 2 GiB in a "
            "column of text or bytes, which Arrow cannot hold; drop or shorten that column before the "
            "operator, or read fewer records at once (execution.max-records-per-batch); if it is state, "
            "spread the keys over more key groups (flowcore rescale)"
        )
        raise StateError(msg)
    return first


def in_parts(batches: Iterable[pa.RecordBatch], rows: int, size_bytes: int) -> Iterator[pa.RecordBatch]:
    """Concatenate batches that follow each other until a part has enough rows or bytes.

    Args:
        rows: A part is complete with so many rows,
        size_bytes: or with so many bytes.
    """
    waiting: list[pa.RecordBatch] = []
    waiting_rows = waiting_bytes = 0
    for batch in batches:
        waiting.append(batch)
        waiting_rows += batch.num_rows
        waiting_bytes += batch.nbytes
        if waiting_rows >= rows or waiting_bytes >= size_bytes:
            yield concat_batches(waiting)
            waiting, waiting_rows, waiting_bytes = [], 0, 0
    if waiting:
        yield concat_batches(waiting)


def runs(numbers: Ints) -> Iterator[tuple[int, int]]:
    """The begin and end of each run of equal numbers."""
    if len(numbers):
        yield from pairwise([0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)])


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
