"""A buffer on key groups processes columns as the pure buffer processes records, over restarts too."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowcore.elements import (
    MAX_TIMESTAMP_MS,
    LatencyMarker,
    Record,
    RecordAttributes,
    Watermark,
    WatermarkStatus,
)
from flowcore.errors import StateError
from flowcore.flush import BufferOutput
from flowcore.flush.latest import LatestRecords
from flowcore.flush.operator import FlushBuffers
from flowcore.keyed.state_cache import StateCache
from flowcore.testing.record_buffer import RecordBuffer
from tests.unit.flush.buffer_steps import (
    ACTIVE,
    ROWS,
    Item,
    Worker,
    packed,
    purely,
    rising,
    workers,
)
from tests.unit.keyed.stored_group import read_state

BACKLOG, LIVE = RecordAttributes(backlog=True), RecordAttributes(backlog=False)


def buffers(config: BufferOutput, quiet_ms: int | None = 0) -> FlushBuffers:
    keys = ("key",) if config.keyed else ()
    return FlushBuffers(config=config, quiet_ms=quiet_ms, keys=keys, timestamp="t", rows=ROWS)


times = st.one_of(st.none(), st.integers(0, 30))
records = st.tuples(st.sampled_from("abcd"), st.integers(0, 99), times)
markers = st.builds(LatencyMarker, st.integers(0, 9), st.just("op"), st.integers(0, 1))
steps = st.lists(
    st.tuples(
        st.integers(0, 12),
        st.lists(
            st.one_of(
                records, records, records, markers,
                st.just("watermark"), st.builds(WatermarkStatus, st.booleans()),
                st.builds(RecordAttributes, st.booleans()),
            ),
            max_size=9,
        ),
    ),
    max_size=12,
)  # fmt: skip
configs = st.builds(
    BufferOutput,
    interval_ms=st.sampled_from([None, 0, 1, 10]),
    keyed=st.booleans(),
    memory_buffer_only=st.booleans(),
    max_entries=st.sampled_from([None, 1, 2, 3]),
    backlog_interval_ms=st.sampled_from([None, 0, 15]),
)


@given(configs, steps, workers, st.sampled_from([0, 200, 1 << 20]))
def test_buffer_emits_the_output_of_the_record_buffer_in_order(
    config: BufferOutput, happened: list[tuple[int, list[Any]]], taken_by: list[int], smallest_log: int
) -> None:
    """This holds for three workers in turn and for a snapshot after any step."""
    group = Worker(buffers(config), workers=3, smallest_log_bytes=smallest_log)
    now_ms, pure = 0, RecordBuffer[Any, Any](config)

    for number, (moves, items) in enumerate(rising([*happened, (0, [ACTIVE, Watermark(MAX_TIMESTAMP_MS)])])):
        now_ms += moves
        if number == 0:
            pure = RecordBuffer(config, now_ms)
        expected = purely(pure, items, now_ms)

        assert group.step(items, now_ms, taken_by[number]) == expected
    assert group.wakes_at() is None


def in_backlog(**settings: Any) -> Worker:
    group = Worker(buffers(BufferOutput(interval_ms=1_000, **settings), 400), workers=2)
    assert group.step([BACKLOG, ("a", 1, None)], 5_000) == [BACKLOG]
    return group


def test_buffer_in_backlog_is_flushed_when_the_backlog_ends() -> None:
    """The first flush has all buffered records, however long the backlog lasts, over a restart too."""
    group = in_backlog()

    for clock, key in enumerate("bcad", 6):
        assert group.step([(key, clock, None)], clock * 1_000, worker=clock % 2) == []
        assert group.wakes_at() == clock * 1_000 + 400
    latest = [Record((key, value), None) for key, value in [("b", 6), ("c", 7), ("a", 8), ("d", 9)]]
    assert group.step([LIVE, ("b", 10, None)], 10_000) == [*latest, LIVE]
    assert group.step([("b", 11, None)], 11_000) == [Record(("b", 10), None)]


def test_buffer_in_backlog_is_flushed_at_its_longer_interval_if_there_is_one() -> None:
    """It is also flushed when the input is quiet, since further waiting saves nothing."""
    group = in_backlog(backlog_interval_ms=3_000)

    assert group.step([("a", 2, None)], 7_900) == []
    assert group.wakes_at() == 8_000
    assert group.step([("a", 3, None)], 8_000) == [Record(("a", 2), None)]
    assert group.step([], 8_400) == [Record(("a", 3), None)]


def test_buffer_in_backlog_is_flushed_when_it_is_full() -> None:
    """Backlog does not raise the memory limit."""
    group = in_backlog(memory_buffer_only=True, max_entries=2)

    assert group.step([("b", 2, None)], 20_000) == [Record(("a", 1), None), Record(("b", 2), None)]


@pytest.mark.parametrize("most", [1, 2, 3, 4, 5, 9])
def test_restored_buffer_that_is_full_is_flushed_with_the_next_record(most: int) -> None:
    """Its capacity may be smaller than before, or shared by more key groups."""
    before = RecordBuffer[Any, Any](BufferOutput(interval_ms=1_000), 5_000)
    group = Worker(buffers(BufferOutput(interval_ms=1_000), 400), workers=2)
    first: list[Item] = [(key, 1, None) for key in "abcda"]
    assert group.step(first, 5_000) == purely(before, first, 5_000) == []

    smaller = BufferOutput(interval_ms=1_000, memory_buffer_only=True, max_entries=most)
    after = RecordBuffer[Any, Any](smaller)
    after.restore(before.snapshot())
    restored = Worker(buffers(smaller, 400))
    restored.store = group.store

    for now_ms, keys in enumerate(["bx", "xyzxyzab"], 5_001):
        items: list[Item] = [(key, now_ms, None) for key in keys]
        assert restored.step(items, now_ms) == purely(after, items, now_ms)


def test_buffer_of_a_slice_in_backlog_waits_for_its_end() -> None:
    """A slice emits when it has read all input; then nothing is buffered."""
    group = Worker(buffers(BufferOutput(interval_ms=1_000), None))
    group.step([BACKLOG, ("a", 1, None)], 5_000)

    assert group.step([("a", 2, None)], 9_000) == []
    assert group.step([LIVE], 9_100) == [Record(("a", 2), None), LIVE]
    assert group.step([("a", 3, None)], 9_200) == [Record(("a", 3), None)]


def test_flush_sends_the_records_that_a_watermark_covers_before_it() -> None:
    """A record at the watermark is covered; records without a timestamp and markers follow."""
    group = Worker(buffers(BufferOutput(interval_ms=1_000)))
    marker = LatencyMarker(5, "op", 0)
    group.step([("after", 1, 11), ("at", 2, 10), ("none", 3, None), Watermark(10), marker], 0)

    assert group.step([], 1) == [
        Record(("at", 2), 10),
        Watermark(10),
        Record(("after", 1), 11),
        Record(("none", 3), None),
        marker,
    ]


def each_second(quiet_ms: int | None = 400, **settings: Any) -> Worker:
    group = Worker(buffers(BufferOutput(interval_ms=1_000, **settings), quiet_ms))
    group.step([Watermark(1)], 5_000)
    return group


def test_buffer_asks_to_be_woken_for_the_flush_that_is_due_next() -> None:
    """The wake-up is at the end of the interval or of the quiet time, whichever is first."""
    group = each_second()
    assert group.wakes_at() is None

    group.step([("a", 1, None)], 5_100)
    assert group.wakes_at() == 5_500
    group.step([("a", 2, None)], 5_700)
    assert group.wakes_at() == 6_000
    assert group.step([("a", 3, None)], 6_000) == [Record(("a", 2), None)]
    assert group.wakes_at() == 6_400


def test_buffer_is_quiet_only_when_nothing_has_come_for_long_enough() -> None:
    """A step with input, or an earlier step without input, does not flush."""
    group = each_second()
    group.step([("a", 1, 7)], 5_100)

    assert group.step([], 5_499) == []
    assert group.step([LatencyMarker(1, "op", 0)], 5_500) == []
    assert group.step([], 5_899) == []
    assert group.step([], 5_900) == [Record(("a", 1), 7), LatencyMarker(1, "op", 0)]
    assert group.step([], 5_901) == []


def test_buffer_of_a_slice_is_flushed_by_each_step() -> None:
    """Each step may be the last; updates within a step are still combined."""
    group = each_second(quiet_ms=None)

    assert group.step([("a", 1, 7), ("a", 2, 8)], 5_100) == [Record(("a", 2), 8)]
    assert group.wakes_at() is None


def test_buffer_is_flushed_before_a_checkpoint() -> None:
    """Each step ends with a batch that is committed; in backlog too."""
    group = Worker(buffers(BufferOutput(interval_ms=60_000, at_checkpoint=True), quiet_ms=60_000))

    assert group.step([("a", 1, 7), ("a", 2, 8)], 5_100) == [Record(("a", 2), 8)]
    assert group.step([BACKLOG, ("a", 3, 9)], 5_200) == [BACKLOG, Record(("a", 3), 9)]
    assert group.wakes_at() is None


def test_buffer_begins_its_first_interval_with_its_first_step() -> None:
    """The first flush is not due at once, although the clock shows the time of day."""
    group = Worker(buffers(BufferOutput(interval_ms=1_000), quiet_ms=5_000))

    assert group.step([("a", 1, None)], 1_700_000_000_000) == []
    assert group.wakes_at() == 1_700_000_001_000


def test_buffer_reports_how_many_records_it_saved() -> None:
    """Replaced records are counted, over restarts too."""
    group = each_second()
    group.step([("a", 1, None), ("a", 2, None), ("b", 1, None)], 5_100)
    group.remembered[0] = StateCache()
    group.step([("a", 3, None)], 5_200)
    assert read_state(group.runtime, group.store)[0].counters == {}

    assert len(group.step([("c", 1, None)], 6_000)) == 2
    assert read_state(group.runtime, group.store)[0].counters == {"saved_records": 2}


def test_buffer_reports_its_size_and_age() -> None:
    """Both are reported after each step."""
    group = each_second()

    def gauges(items: Sequence[Item], now_ms: int) -> dict[str, int]:
        stepped = group.runtime.step(0, packed(items), now_ms, group.store, group.remembered[0])
        return stepped.outputs.gauges

    both = {"buffered_records": 2, "buffered_since_ms": 5_100}
    assert gauges([("a", 1, None), ("b", 1, None)], 5_100) == both
    assert gauges([("c", 1, None)], 5_200) == {"buffered_records": 3, "buffered_since_ms": 5_100}
    assert gauges([], 6_000) == {"buffered_records": 0}


def test_buffer_writes_in_proportion_to_its_input() -> None:
    """Written bytes do not grow with the buffered records, and emitted records are deleted."""
    group = each_second(quiet_ms=100_000)
    group.step([(f"key-{n}", n, None) for n in range(20_000)], 5_100)
    held = sum(map(len, group.store.segments.values()))

    before = set(group.store.segments)
    for clock in range(5_101, 5_150):
        group.step([("key-7", clock, None)], clock)
    written = sum(len(group.store.segments[number]) for number in set(group.store.segments) - before)

    assert written < held / 4


def test_state_of_another_version_or_another_buffer_is_refused() -> None:
    """Its buffered records would be lost."""
    group = each_second()
    group.step([("a", 1, None)], 5_100)
    other = Worker(buffers(BufferOutput(interval_ms=1_000, keyed=False)))
    other.store = group.store
    with pytest.raises(StateError, match="latest by"):
        other.step([], 5_200)

    ((number, segment),) = group.store.segments.items()
    group.store.segments[number] = bytes([9]) + segment[1:]
    group.remembered[0] = StateCache()
    with pytest.raises(StateError, match="version 9"):
        group.step([], 5_200)


@pytest.mark.parametrize("most", [1, 3, 5_000, 100_000])
def test_latest_records_count_keys(most: int) -> None:
    """Keys are counted by column, for rows one by one and for ten thousand at once."""
    chance = random.Random(5)  # noqa: S311 - no secret
    latest, held = LatestRecords(("key",), ROWS), dict[str, int]()
    left_over = 40_000 if most > 3 else 40
    while left_over:
        count = min(left_over, chance.choice([1, 10, 10_000]))
        keys = [f"k{chance.randrange(most + most // 2 + 2)}" for _ in range(count)]
        rows = pa.record_batch([keys, range(count), [None] * count], schema=ROWS)
        left_over -= count
        while rows.num_rows:
            room = latest.room(rows, most)
            latest.add(rows.slice(0, room))
            for key, value in zip(*(rows.slice(0, room).column(n).to_pylist() for n in (0, 1)), strict=True):
                held.pop(key, None)
                held[key] = value
                assert len(held) <= most
            rows = rows.slice(room)
            found = latest.rows().to_pydict()
            assert list(zip(found["key"], found["value"], strict=True)) == list(held.items())
            assert latest.reaches(most) == (len(held) == most)
            assert rows.num_rows == 0 or room >= 1
            if len(held) == most:
                latest.clear()
                held.clear()
