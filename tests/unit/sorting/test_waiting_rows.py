"""Rows that wait for the watermark: laws, against a list."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from flowcore.sorting.waiting_rows import WaitingRows

SCHEMA = pa.schema([("t", pa.int64()), ("text", pa.string())])


def _batch(rows: list[tuple[int, str]]) -> pa.RecordBatch:
    return pa.record_batch([[t for t, _ in rows], [text for _, text in rows]], schema=SCHEMA)


def _rows(batch: pa.RecordBatch | None) -> list[tuple[int, str]]:
    return [] if batch is None else [(row["t"], row["text"]) for row in batch.to_pylist()]


def _address(waiting: WaitingRows) -> int:
    """Where the first batch is in memory."""
    buffer = waiting.batches()[0].column(0).buffers()[1]
    assert buffer is not None
    return buffer.address


@given(st.lists(st.one_of(st.lists(st.integers(0, 30), max_size=20), st.integers(0, 30)), max_size=30))
def test_rows_are_taken_by_time_and_arrival(history: list[list[int] | int]) -> None:
    """Each part that waits has twice the rows of the next one, so there are few."""
    waiting, model, number = WaitingRows("t"), list[tuple[int, str]](), 0
    for each in history:
        if isinstance(each, list):
            rows = [(t, f"row {number + place}") for place, t in enumerate(each)]
            number += len(rows)
            waiting.add(_batch(rows))
            model += rows
            continue
        due = sorted((row for row in model if row[0] <= each), key=lambda row: row[0])
        model = [row for row in model if row[0] > each]
        assert _rows(waiting.take_due(each)) == due
        batches = waiting.batches()
        sizes = [batch.num_rows for batch in batches]
        assert all(size >= 2 * after for size, after in pairwise(sizes))
        assert sorted(row for batch in batches for row in _rows(batch)) == sorted(model)


def test_rows_that_left_use_no_memory() -> None:
    """A part is copied when more than half of it has left."""
    waiting = WaitingRows("t")
    waiting.add(_batch([(t, "x" * 1_000) for t in range(1_000)]))

    for watermark_ms in (400, 800, 989):
        waiting.take_due(watermark_ms)

    (rest,) = waiting.batches()
    assert (rest.num_rows, _rows(rest)[0][0]) == (10, 990)
    assert rest.get_total_buffer_size() < 30_000


def test_a_watermark_copies_only_the_rows_that_it_reaches() -> None:
    """Others stay where they are in memory."""
    waiting = WaitingRows("t")
    waiting.add(_batch([(t, "x") for t in range(10_000)]))
    waiting.take_due(0)
    before = _address(waiting)

    for t in range(1, 100):
        waiting.add(_batch([(t, "y")]))
        assert _rows(waiting.take_due(t)) == [(t, "x"), (t, "y")]
        assert _address(waiting) == before
