"""Sorting by event time: laws, against an oracle that keeps a list."""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowcore.elements import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from flowcore.errors import NoTimestampError
from flowcore.keyed.operator import StepOutputs
from flowcore.keyed.output_columns import LATE, RESULTS
from flowcore.sorting.keyed import Sorting
from tests.unit.keyed.stored_group import StoredGroup

ROWS = pa.schema([("key", pa.string()), ("t", pa.int64()), ("number", pa.int64())])


class Row(NamedTuple):
    """A record; its number says when it arrived."""

    key: str | None
    t: int
    number: int


def sorting(late: tuple[str, ...] | None = ("number",)) -> Sorting:
    return Sorting(keys=("key",), timestamp="t", rows=ROWS, passed=("number", "t"), late=late)


def batch_of(rows: list[Row]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([row._asdict() for row in rows], schema=ROWS)


def numbers_in(out: StepOutputs, output: str = RESULTS) -> list[int]:
    batches = (batch for name, batch in out.batches if name == output)
    return [number for batch in batches for number in batch.column("number").to_pylist()]


Step = tuple[list[Row], int | None, str]


@st.composite
def histories(draw: st.DrawFn) -> list[Step]:
    """Records in random batches, the watermark after some of them, and the fate of the worker."""
    found: list[Step] = []
    watermark_ms, number = 0, 0
    for _ in range(draw(st.integers(0, 14))):
        rows = []
        for key, after_ms in draw(
            st.lists(st.tuples(st.sampled_from([None, "a", "b"]), st.integers(-3, 9)), max_size=7)
        ):
            rows.append(Row(key, watermark_ms + after_ms, number))
            number += 1
        advance_ms = draw(st.sampled_from([None, None, 1, 2, 4, 20]))
        if advance_ms is not None:
            watermark_ms += advance_ms
        fate = draw(st.sampled_from(["delta", "delta", "snapshot", "restart", "former worker"]))
        found.append((rows, None if advance_ms is None else watermark_ms, fate))
    return [*found, ([], MAX_TIMESTAMP_MS, "delta")]


@settings(max_examples=400, deadline=None)
@given(histories())
def test_records_leave_in_order_in_the_step_in_which_the_oracle_says(history: list[Step]) -> None:
    """By timestamp, then by arrival, through restarts; late records leave at once, and none is lost."""
    stored, waiting, watermark_ms = StoredGroup(sorting()), list[Row](), MIN_TIMESTAMP_MS
    emitted: list[int] = []
    for rows, advance_ms, fate in history:
        out = StepOutputs()
        late = [row.number for row in rows if row.t <= watermark_ms]
        waiting += [row for row in rows if row.t > watermark_ms]
        stored.group.rows(batch_of(rows), out)
        due: list[Row] = []
        if advance_ms is not None:
            watermark_ms = advance_ms
            due = sorted((row for row in waiting if row.t <= advance_ms), key=lambda row: row.t)
            waiting = [row for row in waiting if row.t > advance_ms]
            stored.group.advance_watermark(advance_ms, out)
        stored.store(fate)

        assert numbers_in(out) == [row.number for row in due]
        assert numbers_in(out, LATE) == late
        assert out.counters == ({"late_records": len(late)} if late else {})
        emitted += [*numbers_in(out), *late]
    assert sorted(emitted) == [row.number for rows, _, _ in history for row in rows]


@settings(max_examples=200, deadline=None)
@given(histories(), st.data())
def test_the_order_does_not_depend_on_how_records_are_cut_into_batches(
    history: list[Step], data: st.DataObject
) -> None:
    """Between two watermarks."""
    whole, cut = sorting().open(), sorting().open()
    outs = StepOutputs(), StepOutputs()
    for rows, advance_ms, _ in history:
        whole.rows(batch_of(rows), outs[0])
        place = data.draw(st.integers(0, len(rows)))
        for part in (rows[:place], rows[place:]):
            cut.rows(batch_of(part), outs[1])
        for group, out in zip((whole, cut), outs, strict=True):
            if advance_ms is not None:
                group.advance_watermark(advance_ms, out)

    assert numbers_in(outs[0]) == numbers_in(outs[1])


def test_late_records_are_dropped_and_counted_if_nobody_reads_them() -> None:
    group, out = sorting(late=None).open(), StepOutputs()
    group.advance_watermark(10, out)
    group.rows(batch_of([Row("a", 10, 1), Row("a", 11, 2)]), out)
    group.advance_watermark(11, out)

    assert numbers_in(out) == [2]
    assert out.counters == {"dropped_records": 1}
    assert numbers_in(out, LATE) == []


def test_late_records_whose_side_output_has_no_reader_are_counted_as_late() -> None:
    group, out = sorting(late=()).open(), StepOutputs()
    group.advance_watermark(10, out)
    group.rows(batch_of([Row("a", 9, 1)]), out)

    assert (out.counters, out.batches) == ({"late_records": 1}, [])


def test_a_record_without_timestamp_is_an_error() -> None:
    rows = pa.RecordBatch.from_pylist([{"key": "a", "number": 1}], schema=ROWS)

    with pytest.raises(NoTimestampError, match="its place in the order is not known"):
        sorting().open().rows(rows, StepOutputs())


def test_state_is_what_waits() -> None:
    """A step without new records writes nothing; a snapshot has no record that has left."""
    stored, out = StoredGroup(sorting()), StepOutputs()
    stored.group.rows(batch_of([Row("a", t, t) for t in range(100)]), out)
    assert stored.group.delta() is not None
    stored.group.advance_watermark(97, out)
    assert stored.group.delta() is None

    again: Any = sorting().open()
    again.restore(stored.group.header(), stored.group.snapshot())
    rest = StepOutputs()
    again.advance_watermark(MAX_TIMESTAMP_MS, rest)
    assert numbers_in(rest) == [98, 99]
    assert not [*again.snapshot()]
