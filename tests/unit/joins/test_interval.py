"""The interval join by key group agrees with nested loops over all rows, over restarts and any batches."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowcore.elements import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS, Watermark
from flowcore.errors import NoTimestampError
from flowcore.joins import side_rows
from flowcore.joins.interval import IntervalJoin
from flowcore.keyed.control import Channel
from flowcore.keyed.operator import CONTROL, StepOutputs
from flowcore.keyed.output_columns import DELETED, LATE_LEFT, LATE_RIGHT, RESULTS
from flowcore.keyed.packed import Packed
from flowcore.keyed.runtime import Runtime
from flowcore.keyed.state_cache import StateCache
from flowcore.serializers.formats import RawFormat
from flowcore.serializers.tagged import TaggedSerializer
from flowcore.testing.memory_store import MemoryStore
from flowcore.watermarks.merge import delay_watermark
from flowcore.watermarks.progress import WatermarkSource
from flowcore.watermarks.strategies import BoundedOutOfOrderness, WatermarkStrategy
from tests.unit.joins.sided_rows import (
    ROWS,
    Row,
    batch_of,
    found_in,
    histories,
    left,
    right,
    run_until_idle,
)
from tests.unit.keyed.stored_group import StoredGroup

How = Literal["inner", "left", "right", "full", "semi", "anti"]
Pair = tuple[str | None, int | None, str | None, int]
"""Key, left value, right value, timestamp."""


def join(how: How = "inner", before_ms: int = 3, after_ms: int = 5, **changed: Any) -> IntervalJoin:
    given: dict[str, Any] = {
        "keys": ("key",), "side": "is_right", "timestamp": "t", "rows": ROWS, "left": {"l": "l"},
        "right": {} if how in ("semi", "anti") else {"r": "r"}, **changed,
    }  # fmt: skip
    return IntervalJoin(how=how, before_ms=before_ms, after_ms=after_ms, **given)


@dataclass
class Oracle:
    """Compares each row with all rows of the other side, one by one, and forgets none."""

    config: IntervalJoin
    watermark_ms: int = MIN_TIMESTAMP_MS
    rows: list[Row] = field(default_factory=list)
    done: set[int] = field(default_factory=set)
    """The numbers of rows that have a partner, or have left."""

    def is_over(self, time_ms: int) -> bool:
        """Whether the watermark has passed a time by the allowed lateness."""
        ends_ms = min(time_ms + self.config.allowed_lateness_ms, MAX_TIMESTAMP_MS)
        return ends_ms <= self.watermark_ms

    def take(self, row: Row) -> list[Pair]:
        if self.is_over(row.t):
            return []
        self.rows.append(row)
        found = []
        for other in self.rows:
            one, two = (other, row) if row.is_right else (row, other)
            near = one.t - self.config.before_ms <= two.t <= one.t + self.config.after_ms
            if other.is_right != row.is_right and row.key is not None and one.key == two.key and near:
                if self.config.how == "semi" and one.number not in self.done:
                    found.append(self._alone(one))
                elif self.config.how not in ("semi", "anti"):
                    found.append((one.key, one.number, str(two.number), max(one.t, two.t)))
                self.done |= {one.number, two.number}
        if row.key is None and self.config.keeps_unmatched[row.is_right]:
            found.append(self._alone(row))
        return found

    def advance(self, watermark_ms: int) -> list[Pair]:
        self.watermark_ms = watermark_ms
        found = []
        for row in self.rows:
            last_ms = row.t + (self.config.before_ms if row.is_right else self.config.after_ms)
            if (
                self.is_over(last_ms)
                and row.number not in self.done
                and self.config.keeps_unmatched[row.is_right]
            ):
                found.append(self._alone(row))
        return found

    def _alone(self, row: Row) -> Pair:
        self.done.add(row.number)
        return (row.key, None, str(row.number), row.t) if row.is_right else (row.key, row.number, None, row.t)


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(["inner", "left", "right", "full", "semi", "anti"]),
    histories(),
    st.sampled_from([(0, 0), (0, 4), (4, 0), (3, 5)]),
    st.sampled_from([0, 1, 4, 20]),
    st.booleans(),
)
def test_rows_leave_in_the_step_in_which_the_oracle_says(
    how: How, history: Any, interval: tuple[int, int], lateness_ms: int, ends: bool
) -> None:
    """Pairs, unmatched rows and late rows; and none is late by the watermark that was emitted before.

    The row of a semi-join may be, unless it has the time of its partner, as those of windows have: it leaves
    with its own timestamp, when its partner comes.
    """
    late: dict[str, Any] = {"late_left": ("key", "t"), "late_right": ("key", "t")}
    config = join(how, *interval, allowed_lateness_ms=lateness_ms, **late)
    oracle, stored = Oracle(config), StoredGroup(config)
    processing_time_ms, number = 0, 0
    for given_rows, advance_ms, fate in [*history, *([([], -1, "delta")] * ends)]:
        rows = []
        for is_right, key, after_ms in given_rows:
            number += 1
            rows.append(Row(is_right, key, processing_time_ms + after_ms, number))
        emitted_ms = delay_watermark(oracle.watermark_ms, config.watermark_delay_ms)
        out = StepOutputs()
        late_rows = [row for row in rows if oracle.is_over(row.t)]
        expected = [pair for row in rows for pair in oracle.take(row)]
        stored.group.rows(batch_of(rows), out)
        if advance_ms:
            processing_time_ms = processing_time_ms + advance_ms if advance_ms > 0 else MAX_TIMESTAMP_MS
            expected += oracle.advance(processing_time_ms)
            stored.group.advance_watermark(processing_time_ms, out)
        stored.store(fate)

        assert Counter(found_in(out)) == Counter(expected)
        assert (how == "semi" and any(interval)) or all(pair[-1] > emitted_ms for pair in found_in(out))
        for output, is_right in ((LATE_LEFT, False), (LATE_RIGHT, True)):
            assert found_in(out, output) == [
                (row.key, row.t) for row in late_rows if row.is_right == is_right
            ]
        assert out.counters.get("late_records", 0) == len(late_rows)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(["inner", "semi"]), histories(), st.sampled_from([0, 3, 8, MAX_TIMESTAMP_MS]))
def test_in_processing_time_a_row_meets_those_that_arrive_within_the_time_to_live(
    how: How, history: Any, ttl_ms: int
) -> None:
    """The timestamps of rows mean nothing, the clock does; watermarks remove nothing."""
    config = join(how, ttl_ms, ttl_ms, time="processing")
    oracle, stored = Oracle(config), StoredGroup(config)
    processing_time_ms, number = 1, 0
    for given_rows, advance_ms, fate in history:
        rows = []
        for is_right, key, time_ms in given_rows:
            number += 1
            rows.append(Row(is_right, key, time_ms, number))
        out = StepOutputs()
        oracle.advance(processing_time_ms - 1)
        expected = [pair[:-1] for row in rows for pair in oracle.take(row._replace(t=processing_time_ms))]
        stored.group.advance_processing_time(processing_time_ms, out)
        stored.group.rows(batch_of(rows), out)
        stored.group.advance_watermark(MAX_TIMESTAMP_MS, out)
        stored.store(fate)
        processing_time_ms += advance_ms

        assert Counter(found_in(out)) == Counter((*pair, None) for pair in expected)
        assert out.counters == {}
    if ttl_ms < MAX_TIMESTAMP_MS:
        stored.group.advance_processing_time(processing_time_ms + ttl_ms + 1, StepOutputs())
        assert [*stored.group.snapshot()] == []


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(["left", "right", "full", "anti"]),
    histories(),
    st.sampled_from([0, 3, 8, MAX_TIMESTAMP_MS]),
)
def test_in_processing_time_emitted_and_deleted_rows_are_the_join_of_what_has_arrived(
    how: How, history: Any, ttl_ms: int
) -> None:
    """After each step, over any batches; a row is deleted once, and none is emitted twice."""
    config = join(how, ttl_ms, ttl_ms, time="processing")
    stored, arrived, table = StoredGroup(config), list[Row](), set[tuple[Any, ...]]()
    processing_time_ms = 1
    for given_rows, advance_ms, fate in history:
        rows = [
            Row(is_right, key, processing_time_ms, len(arrived) + number)
            for number, (is_right, key, _) in enumerate(given_rows, 1)
        ]
        arrived += rows
        out = StepOutputs()
        stored.group.advance_processing_time(processing_time_ms, out)
        stored.group.rows(batch_of(rows), out)
        stored.group.advance_watermark(MAX_TIMESTAMP_MS, out)
        stored.store(fate)
        processing_time_ms += advance_ms
        for row in (row for _, batch in out.batches for row in batch.to_pylist()):
            value = row["key"], row["l"], row.get("r")
            assert (value in table) == row[DELETED]
            (table.remove if row[DELETED] else table.add)(value)

        assert row_table(how, arrived, ttl_ms) == table
    assert config.watermark_delay_ms == 0


def row_table(how: How, arrived: list[Row], ttl_ms: int) -> set[tuple[Any, ...]]:
    """The rows of a regular join by nested loops."""
    found, alone = set(), {row.number: row for row in arrived}
    for one in arrived:
        for two in arrived:
            near = abs(one.t - two.t) <= ttl_ms
            if two.is_right > one.is_right and one.key is not None and one.key == two.key and near:
                found |= {(one.key, one.number, str(two.number))} if how != "anti" else set()
                alone.pop(one.number, None)
                alone.pop(two.number, None)
    keeps = join(how).keeps_unmatched
    for row in alone.values():
        if keeps[row.is_right]:
            found.add((row.key, None, str(row.number)) if row.is_right else (row.key, row.number, None))
    return found


def test_bounds_of_the_interval_are_included() -> None:
    """One millisecond beyond them there is no pair."""
    out = StepOutputs()
    rights = [right("a", t, t) for t in (96, 97, 100, 105, 106)]
    join().open().rows(batch_of([left("a", 100, 1), *rights]), out)

    assert sorted(found_in(out)) == [("a", 1, "100", 100), ("a", 1, "105", 105), ("a", 1, "97", 100)]


def test_an_unmatched_row_leaves_when_the_watermark_reaches_the_end_of_its_interval() -> None:
    """It does so with no other input: a side that is idle does not hold it."""
    group, out = join("full").open(), StepOutputs()
    group.rows(batch_of([left("a", 100, 1), right("b", 100, 2)]), out)
    alone = {103: [("b", None, "2", 100)], 105: [("a", 1, None, 100)]}
    for watermark_ms in (102, 103, 104, 105, 106):
        out = StepOutputs()
        group.advance_watermark(watermark_ms, out)
        assert found_in(out) == alone.get(watermark_ms, [])


def test_a_row_up_to_the_watermark_is_late_and_dropped() -> None:
    group, out = join("full").open(), StepOutputs()
    group.advance_watermark(100, out)
    group.rows(batch_of([left("a", 100, 1), right("a", 101, 2), right("a", 99, 3)]), out)
    group.advance_watermark(MAX_TIMESTAMP_MS, out)

    assert found_in(out) == [("a", None, "2", 101)]
    assert out.counters == {"dropped_records": 2}


def test_state_is_dropped_when_no_partner_can_come() -> None:
    """Snapshots, rows in memory and the index of keys have little more than what may find a partner."""
    stored = StoredGroup(join("full", 50, 50))
    sizes = []
    for start in range(0, 60_000, 500):
        out = StepOutputs()
        rows = [each(f"k{n}", n, n) for n in range(start, start + 500, 5) for each in (left, right)]
        stored.group.rows(batch_of(rows), out)
        stored.group.advance_watermark(start + 450, out)
        stored.store("snapshot")
        if start == 5_000:
            stored.store("restart")
        sizes.append(sum(map(len, stored.pieces)))

    assert max(sizes[10:]) <= 1.2 * sizes[3]
    assert len(stored.group._index) < 2_000
    assert all(len(side) < 400 for side in stored.group._sides)
    stored.group.advance_watermark(MAX_TIMESTAMP_MS, StepOutputs())
    assert [*stored.group.snapshot()] == []


def test_many_partners_of_one_row_are_emitted_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory for pairs does not grow with their number."""
    monkeypatch.setattr(side_rows, "PAIRS_AT_ONCE", 10)
    group, out = join("inner", 1_000, 1_000).open(), StepOutputs()
    group.rows(batch_of([left("a", n, n) for n in range(17)]), out)
    group.rows(batch_of([right("a", n, n) for n in range(13)]), out)

    assert max(batch.num_rows for _, batch in out.batches) <= 17
    assert Counter(found_in(out)) == Counter(
        ("a", one, str(two), max(one, two)) for one in range(17) for two in range(13)
    )


def test_the_ends_of_time_do_not_overflow() -> None:
    group, out = join("full", 10, 10).open(), StepOutputs()
    least, most = MIN_TIMESTAMP_MS + 1, MAX_TIMESTAMP_MS
    group.rows(
        batch_of([left("a", least, 1), right("a", least + 9, 2), left("b", most, 3), right("b", most, 4)]),
        out,
    )
    group.advance_watermark(MIN_TIMESTAMP_MS + 3, out)
    assert sorted(found_in(out)) == [("a", 1, "2", least + 9), ("b", 3, "4", most)]  # fmt: skip

    group.advance_watermark(most, out)
    assert len(found_in(out)) == 2


def test_emitted_watermark_is_held_back_by_the_interval() -> None:
    """By that of the sides whose unmatched rows leave; the end of time is not delayed."""
    delays = {how: join(how).watermark_delay_ms for how in ("inner", "left", "right", "full")}
    assert delays == {"inner": 0, "left": 5, "right": 3, "full": 5}

    channel, serializer = Channel("in", "0"), TaggedSerializer(RawFormat())
    runtime = Runtime(
        operator=join("left"), query="q", key_groups=1, rows=ROWS, emits_control=True,
        sources={"in": WatermarkSource(WatermarkStrategy(BoundedOutOfOrderness(0)), ("0",))},
    )  # fmt: skip
    items = [
        Packed.of_rows(channel, 0, batch_of([left("a", 100, 1)])),
        Packed.of_control(channel, {channel: 121}),
    ]
    result = runtime.step(0, items, 0, MemoryStore(), StateCache())

    assert [output for output, _ in result.outputs.batches] == [RESULTS, CONTROL]
    (element,) = result.outputs.batches[1][1].column(0).to_pylist()
    assert serializer.decode(element) == Watermark(115)
    assert result.outputs.emitted == {"watermark_ms": 115}


def test_unmatched_rows_leave_while_the_other_side_is_idle() -> None:
    """Its partitions hold the watermark until they are idle; then a step without input releases the rows."""
    found = run_until_idle(join("left"), [left("a", 100, 1), left("a", 120, 2)])

    assert found == [[], [], [("a", 1, None, 100)]]


def test_keys_have_parts_and_null_in_any_part_matches_nothing() -> None:
    schema = pa.schema([("other", pa.int32()), *ROWS])
    group, out = join("left", keys=("key", "other"), rows=schema).open(), StepOutputs()
    rows: list[dict[str, Any]] = [
        {"is_right": is_right, "key": key, "other": other, "t": 10, "l": 1, "r": "2"}
        for is_right in (False, True)
        for key, other in (("a", 1), ("a", None), (None, 1))
    ]
    group.rows(pa.RecordBatch.from_pylist(rows, schema=schema), out)

    found = [row for _, batch in out.batches for row in batch.to_pylist()]
    expected = [("a", None, None), (None, 1, None), ("a", 1, "2")]
    assert [(row["key"], row["other"], row["r"]) for row in found] == expected


def test_a_row_without_timestamp_is_named() -> None:
    rows = pa.RecordBatch.from_pylist([{"is_right": False, "key": "a"}], schema=ROWS)

    with pytest.raises(NoTimestampError, match=r"with \{'key': 'a'\} has no timestamp"):
        join().open().rows(rows, StepOutputs())
