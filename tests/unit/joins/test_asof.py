"""The as-of join by key group agrees with nested loops over all rows, over restarts and any batches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowcore.elements import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS, Watermark
from flowcore.errors import NoTimestampError
from flowcore.joins.asof import AsOfJoin
from flowcore.joins.side_rows import PAIRS_AT_ONCE
from flowcore.keyed.control import Channel
from flowcore.keyed.operator import CONTROL, StepOutputs
from flowcore.keyed.output_columns import LATE_LEFT, LATE_RIGHT, RESULTS
from flowcore.keyed.packed import Packed
from flowcore.keyed.runtime import Runtime
from flowcore.keyed.state_cache import StateCache
from flowcore.serializers.formats import RawFormat
from flowcore.serializers.tagged import TaggedSerializer
from flowcore.testing.memory_store import MemoryStore
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

How = Literal["inner", "left"]
Output = tuple[str | None, int, str | None, int]
"""Key, left value, right value, timestamp."""


def join(how: How = "left", tolerance_ms: int | None = None, **changed: Any) -> AsOfJoin:
    given: dict[str, Any] = {
        "keys": ("key",), "side": "is_right", "timestamp": "t", "rows": ROWS, "left": {"l": "l"},
        "right": {"r": "r"}, **changed,
    }  # fmt: skip
    return AsOfJoin(how=how, tolerance_ms=tolerance_ms, **given)


def run(config: AsOfJoin, *batches: list[Row] | int) -> list[Output]:
    """What a group emits for rows, and for watermarks."""
    group, out = config.open(), StepOutputs()
    for each in batches:
        if isinstance(each, int):
            group.advance_watermark(each, out)
        else:
            group.rows(batch_of(each), out)
    return found_in(out)


@dataclass
class Oracle:
    """Compares each left row with all right rows, one by one, when the watermark reaches it; forgets none."""

    config: AsOfJoin
    watermark_ms: int = MIN_TIMESTAMP_MS
    rows: list[Row] = field(default_factory=list)

    def take(self, row: Row) -> list[Output]:
        if row.t <= self.watermark_ms:
            return []
        self.rows.append(row)
        alone = row.key is None and not row.is_right and self.config.how == "left"
        return [(None, row.number, None, row.t)] if alone else []

    def advance(self, watermark_ms: int) -> list[Output]:
        before_ms, self.watermark_ms = self.watermark_ms, watermark_ms
        found: list[Output] = []
        for one in self.rows:
            if one.is_right or one.key is None or not before_ms < one.t <= watermark_ms:
                continue
            newest: Row | None = None
            for other in self.rows:
                tolerance_ms = self.config.tolerance_ms
                near = other.t <= one.t and (tolerance_ms is None or one.t - other.t <= tolerance_ms)
                if (
                    other.is_right
                    and other.key == one.key
                    and near
                    and (newest is None or other.t >= newest.t)
                ):
                    newest = other
            if newest is not None or self.config.how == "left":
                found.append((one.key, one.number, None if newest is None else str(newest.number), one.t))
        return found


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(["inner", "left"]), histories(), st.sampled_from([None, 0, 3, 9]), st.booleans())
def test_rows_leave_in_the_step_in_which_the_oracle_says(
    how: How, history: Any, tolerance_ms: int | None, ends: bool
) -> None:
    """Joined and unmatched rows in order of time, and late rows; none is late by the watermark before."""
    config = join(how, tolerance_ms, late_left=("key", "t"), late_right=("key", "t"))
    oracle, stored = Oracle(config), StoredGroup(config)
    processing_time_ms, number = 0, 0
    for given_rows, advance_ms, fate in [*history, *([([], -1, "delta")] * ends)]:
        rows = []
        for is_right, key, after_ms in given_rows:
            number += 1
            rows.append(Row(is_right, key, processing_time_ms + after_ms, number))
        emitted_ms, out = oracle.watermark_ms, StepOutputs()
        late = [row for row in rows if row.t <= emitted_ms]
        expected = [pair for row in rows for pair in oracle.take(row)]
        stored.group.rows(batch_of(rows), out)
        if advance_ms:
            processing_time_ms = processing_time_ms + advance_ms if advance_ms > 0 else MAX_TIMESTAMP_MS
            expected += sorted(oracle.advance(processing_time_ms), key=lambda pair: pair[-1])
            stored.group.advance_watermark(processing_time_ms, out)
        stored.store(fate)

        assert found_in(out) == expected
        assert all(pair[-1] > emitted_ms for pair in found_in(out))
        for output, is_right in ((LATE_LEFT, False), (LATE_RIGHT, True)):
            assert found_in(out, output) == [(row.key, row.t) for row in late if row.is_right == is_right]
        assert out.counters.get("late_records", 0) == len(late)


def test_newest_right_row_up_to_the_left_one_is_its_partner() -> None:
    """A right row at the same time counts, whichever came first; a later one does not."""
    rights = [right("a", 101, 1), right("a", 90, 2), right("a", 100, 3), right("b", 99, 4)]
    found = run(join(), [left("a", 100, 1), left("a", 99, 2), left("a", 89, 3)], rights, 200)

    assert found == [("a", 3, None, 89), ("a", 2, "2", 99), ("a", 1, "3", 100)]


def test_tolerance_is_included() -> None:
    rows = [right("a", 95, 1), left("a", 100, 1), left("a", 101, 2)]

    assert run(join("left", 5), rows, 200) == [("a", 1, "1", 100), ("a", 2, None, 101)]
    assert run(join("inner", 5), rows, 200) == [("a", 1, "1", 100)]


def test_of_right_rows_at_the_same_time_the_one_that_arrived_last_is_the_partner() -> None:
    """In one batch and over several, and over a restart."""
    stored, out = StoredGroup(join()), StepOutputs()
    stored.group.rows(batch_of([right("a", 10, 1), right("a", 10, 2), left("a", 11, 1)]), out)
    stored.store("restart")
    stored.group.rows(batch_of([right("a", 10, 3), left("b", 11, 2), right("b", 10, 4)]), out)
    stored.store("former worker")
    stored.group.advance_watermark(12, out)

    assert sorted(found_in(out)) == [("a", 1, "3", 11), ("b", 2, "4", 11)]


def test_a_left_row_leaves_when_the_watermark_reaches_it() -> None:
    """Until then a right row may still come that is newer than those that are there."""
    group, out = join().open(), StepOutputs()
    group.rows(batch_of([left("a", 100, 1), left("b", 100, 2), right("a", 50, 1)]), out)
    group.advance_watermark(99, out)
    group.rows(batch_of([right("a", 100, 2)]), out)
    assert found_in(out) == []

    group.advance_watermark(100, out)
    assert found_in(out) == [("a", 1, "2", 100), ("b", 2, None, 100)]


def test_a_row_up_to_the_watermark_is_late_and_dropped() -> None:
    group, out = join().open(), StepOutputs()
    group.advance_watermark(100, out)
    group.rows(batch_of([left("a", 100, 1), left("a", 101, 2), right("a", 100, 3)]), out)
    group.advance_watermark(MAX_TIMESTAMP_MS, out)

    assert found_in(out) == [("a", 2, None, 101)]
    assert out.counters == {"dropped_records": 2}


@pytest.mark.parametrize(("tolerance_ms", "old"), [(None, [("c", 60), ("d", 70)]), (30, [])])
def test_state_has_the_newest_right_row_of_each_key_and_later_ones(
    tolerance_ms: int | None, old: list[tuple[str, int]]
) -> None:
    """Of equal timestamps one; with a tolerance, none that is too old for each left row that may come."""
    stored = StoredGroup(join("left", tolerance_ms))
    rights = [right(key, t, t) for t in (50, 90, 95, 110, 110, 120) for key in "ab"]
    stored.group.rows(batch_of([*rights, right("c", 60, 1), right("d", 70, 1)]), StepOutputs())
    stored.store("delta")
    stored.group.rows(batch_of([left("a", 100, 1), left("a", 101, 2)]), StepOutputs())
    stored.group.advance_watermark(100, StepOutputs())
    stored.store("delta")
    restored = stored.config.open()
    restored.restore(stored.header, iter(stored.pieces))

    expected = [(key, t) for key in "ab" for t in (95, 110, 120)] + old
    for group in (stored.group, restored):
        left_rows, right_rows = (side.take_all().to_pylist() for side in group._sides)
        assert sorted((row["key0"], row["@time_ms"]) for row in right_rows) == expected
        assert [row["l"] for row in left_rows] == [2]


def test_state_does_not_grow_while_keys_come_back() -> None:
    """Of 100 keys, whose right rows are replaced; and of new keys within the tolerance."""
    for keys, tolerance_ms in ((100, None), (60_000, 50)):
        stored, sizes = StoredGroup(join("left", tolerance_ms)), []
        for start in range(0, 60_000, 500):
            rows = [
                each(f"k{n % keys}", n, n) for n in range(start, start + 500, 5) for each in (right, left)
            ]
            stored.group.rows(batch_of(rows), StepOutputs())
            stored.group.advance_watermark(start + 450, StepOutputs())
            stored.store("snapshot")
            if start == 5_000:
                stored.store("restart")
            sizes.append(sum(map(len, stored.pieces)))

        assert max(sizes[10:]) <= 1.2 * sizes[3]
        assert len(stored.group._index) < 2_000
        assert all(len(side) < 500 for side in stored.group._sides)
        stored.group.advance_watermark(MAX_TIMESTAMP_MS, StepOutputs())
        assert [*stored.group.snapshot()] == []


@pytest.mark.parametrize("tolerance_ms", [None, 10])
def test_the_ends_of_time_do_not_overflow(tolerance_ms: int | None) -> None:
    least, most = MIN_TIMESTAMP_MS + 1, MAX_TIMESTAMP_MS
    rows = [right("a", least, 1), left("a", least, 1), right("b", most, 2), left("b", most, 2)]

    found = run(join("left", tolerance_ms), rows, MIN_TIMESTAMP_MS + 3, most)

    assert found == [("a", 1, "1", least), ("b", 2, "2", most)]


def test_emitted_watermark_is_the_one_that_arrives() -> None:
    """The left rows up to it leave before it."""
    channel, serializer = Channel("in", "0"), TaggedSerializer(RawFormat())
    runtime = Runtime(
        operator=join(), query="q", key_groups=1, rows=ROWS, emits_control=True,
        sources={"in": WatermarkSource(WatermarkStrategy(BoundedOutOfOrderness(0)), ("0",))},
    )  # fmt: skip
    items = [
        Packed.of_rows(channel, 0, batch_of([left("a", 120, 1), left("a", 121, 2)])),
        Packed.of_control(channel, {channel: 121}),
    ]
    result = runtime.step(0, items, 0, MemoryStore(), StateCache())

    assert [output for output, _ in result.outputs.batches] == [RESULTS, CONTROL]
    assert found_in(result.outputs) == [("a", 1, None, 120)]
    (element,) = result.outputs.batches[1][1].column(0).to_pylist()
    assert serializer.decode(element) == Watermark(120)


def test_left_rows_leave_while_the_right_side_is_idle() -> None:
    """Its partitions hold the watermark until they are idle; then a step without input releases the rows."""
    found = run_until_idle(join(), [left("a", 100, 1), left("a", 120, 2)])

    assert found == [[], [], [("a", 1, None, 100)]]


def test_a_row_without_timestamp_is_named() -> None:
    rows = pa.RecordBatch.from_pylist([{"is_right": True, "key": "a"}], schema=ROWS)

    with pytest.raises(NoTimestampError, match=r"with \{'key': 'a'\} has no timestamp"):
        join().open().rows(rows, StepOutputs())


def test_many_rows_leave_in_limited_batches() -> None:
    """The columns of a partner that all of them have would not fit one batch."""
    group, out = join().open(), StepOutputs()
    group.rows(batch_of([right("a", 1, 7)]), out)
    rows = batch_of([left("a", 2, 0)])
    group.rows(pa.Table.from_batches([rows] * (PAIRS_AT_ONCE + 1)).combine_chunks().to_batches()[0], out)
    group.advance_watermark(2, out)

    batches = [batch for name, batch in out.batches if name == RESULTS]
    assert [batch.num_rows for batch in batches] == [PAIRS_AT_ONCE, 1]
    assert {value for batch in batches for value in batch.column("r").unique().to_pylist()} == {"7"}
