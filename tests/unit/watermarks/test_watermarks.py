"""The watermark is the minimum over active partitions, and never decreases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowcore.elements import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS, Watermark, WatermarkStatus
from flowcore.errors import ConfigurationError
from flowcore.watermarks import (
    WatermarkStrategy,
    bounded_out_of_orderness,
    monotonous,
    no_watermarks,
    punctuated,
)
from flowcore.watermarks.generators import GeneratorState, advance, watermark_ms
from flowcore.watermarks.merge import MergedWatermark, PartitionId, PartitionWatermark, merge
from flowcore.watermarks.strategies import BoundedOutOfOrderness, Generator, NoWatermarks, Punctuated
from flowcore.watermarks.tracking import (
    Emitted,
    IdleTimer,
    Tracking,
    add_record,
    end_of_input,
    poll,
    poll_timer,
    restart_timer,
    start_tracking,
)

BOUNDED = BoundedOutOfOrderness(10)
MARKED = Punctuated("is_marker")
IDLE, ACTIVE = WatermarkStatus(idle=True), WatermarkStatus(idle=False)

laws = settings(deadline=None)  # the first use of Arrow takes long
timestamps = st.none() | st.integers(MIN_TIMESTAMP_MS, MAX_TIMESTAMP_MS) | st.integers(-20, 20)
records = st.lists(st.tuples(timestamps, st.none() | st.booleans()))
generators = st.sampled_from([BOUNDED, BoundedOutOfOrderness(0), MARKED, NoWatermarks()])


def test_functions_return_their_strategies() -> None:
    """`monotonous` has no delay; strategies are plain values."""
    assert monotonous() == bounded_out_of_orderness(timedelta(0))
    assert bounded_out_of_orderness(timedelta(seconds=4)).generator == BoundedOutOfOrderness(4000)
    assert punctuated("is_marker").generator == MARKED
    assert monotonous().with_idleness(timedelta(minutes=1)).idle_after_ms == 60_000
    assert [s.generates for s in (no_watermarks(), monotonous(), punctuated("x"))] == [False, True, True]


@pytest.mark.parametrize(
    ("strategy", "text"),
    [
        (no_watermarks(), "no watermarks"),
        (monotonous(), "monotonous"),
        (bounded_out_of_orderness(timedelta(seconds=4)), "out of order by up to 4 s"),
        (punctuated("a > 1").with_idleness(timedelta(hours=2)), "punctuated by a > 1, idle after 2 h"),
    ],
)
def test_strategy_has_a_description(strategy: WatermarkStrategy, text: str) -> None:
    """A plan shows this text."""
    assert str(strategy) == text


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: bounded_out_of_orderness(timedelta(milliseconds=-1)), "delay_ms=-1 is negative"),
        (lambda: bounded_out_of_orderness(4000), "delay=4000 is not a number of whole milliseconds"),
        (lambda: bounded_out_of_orderness(timedelta(microseconds=1)), "delay=.* whole milliseconds"),
        (lambda: monotonous().with_idleness(timedelta(0)), "idle_after_ms=0 is not positive"),
        (lambda: monotonous().with_idleness(timedelta(milliseconds=-1)), "idle_after_ms=-1 is not positive"),
        (lambda: monotonous().with_idleness(timedelta(microseconds=999)), "idle_after=.*whole milliseconds"),
        (lambda: no_watermarks().with_idleness(timedelta(1)), "it would have no effect"),
        (lambda: punctuated(" "), "has no expression: no record would be a marker"),
        (lambda: punctuated(None), "has no expression: no record would be a marker"),
    ],
    ids=str,
)  # fmt: skip
def test_strategy_refuses(build: Callable[[], object], message: str) -> None:
    """An invalid strategy is an error when it is declared."""
    with pytest.raises(ConfigurationError, match=message):
        build()


def test_watermark_stops_at_the_first_millisecond_there_is() -> None:
    """It saturates instead of underflowing."""
    assert watermark_ms(BOUNDED, GeneratorState(MIN_TIMESTAMP_MS + 11)) == MIN_TIMESTAMP_MS
    assert watermark_ms(BOUNDED, GeneratorState(MIN_TIMESTAMP_MS + 10)) == MIN_TIMESTAMP_MS
    assert watermark_ms(BOUNDED, GeneratorState(MIN_TIMESTAMP_MS + 12)) == MIN_TIMESTAMP_MS + 1
    assert watermark_ms(BOUNDED, GeneratorState()) is None


@given(generators, records)
def test_generator_follows_the_newest_record_that_counts(
    generator: Generator, rows: list[tuple[int | None, bool | None]]
) -> None:
    """The expected value is the definition over all records."""
    seen = _advance(generator, GeneratorState(), rows)

    counting = {NoWatermarks: [], Punctuated: [t for t, marker in rows if marker and t is not None]}
    times: list[int] = counting.get(type(generator), [t for t, _ in rows if t is not None])
    delay = generator.delay_ms + 1 if isinstance(generator, BoundedOutOfOrderness) else 0
    assert watermark_ms(generator, seen) == (max(max(times) - delay, MIN_TIMESTAMP_MS) if times else None)


def _advance(
    generator: Generator, seen: GeneratorState, rows: list[tuple[int | None, bool | None]]
) -> GeneratorState:
    for timestamp_ms, marker in rows:
        seen = advance(generator, seen, timestamp_ms, marker=bool(marker))
    return seen


def test_idleness_is_noticed_counted_and_found() -> None:
    """A poll sees the record, the next poll starts the timeout, and a poll after it finds it idle."""
    timer, idle = poll_timer(restart_timer(), 100, 10)
    assert (timer, idle) == (IdleTimer(), False)
    timer, idle = poll_timer(timer, 150, 10)
    assert (timer, idle) == (IdleTimer(quiet_since_ms=150), False)
    assert poll_timer(timer, 160, 10) == (timer, False)
    assert poll_timer(timer, 161, 10) == (timer, True)
    assert poll_timer(restart_timer(), 999, 10) == (IdleTimer(), False)


def test_idleness_counts_from_a_clock_at_zero_too() -> None:
    """Zero is a valid time."""
    timer, _ = poll_timer(IdleTimer(), 0, 10)

    assert poll_timer(timer, 11, 10) == (timer, True)


def test_partition_without_time_out_is_never_idle() -> None:
    """This holds for any time without records."""
    assert poll_timer(IdleTimer(quiet_since_ms=0), 10**15, None) == (IdleTimer(), False)


def _now(**partitions: tuple[int, bool]) -> dict[PartitionId, PartitionWatermark]:
    return {name: PartitionWatermark(*each) for name, each in partitions.items()}


def _merged(**partitions: tuple[int, bool]) -> MergedWatermark:
    return merge(MergedWatermark(), _now(**partitions))


@pytest.mark.parametrize(
    ("merged", "watermark", "idle"),
    [
        (MergedWatermark(), MIN_TIMESTAMP_MS, False),
        (_merged(a=(5, False)), 5, False),
        (_merged(a=(5, False), b=(3, False)), 3, False),
        (_merged(a=(5, False), b=(3, True)), 5, False),
        (_merged(a=(5, True), b=(3, True)), MIN_TIMESTAMP_MS, True),
        (_merged(a=(5, False), b=(MIN_TIMESTAMP_MS, False)), MIN_TIMESTAMP_MS, False),
        (merge(_merged(a=(5, False)), {"a": PartitionWatermark(3)}), 5, False),
        (merge(_merged(a=(5, False)), {"b": PartitionWatermark(3)}), 5, False),
        (merge(_merged(a=(5, False), b=(3, True)), {"b": PartitionWatermark(3)}), 5, False),
        (merge(_merged(a=(5, False), b=(3, True)), _now(b=(4, False), a=(9, False))), 5, False),
        (merge(_merged(a=(5, False), b=(3, True)), _now(b=(7, False), a=(9, False))), 7, False),
        (merge(_merged(a=(5, False), b=(3, False)), _now(a=(5, True), b=(5, True))), 3, True),
    ],
    ids=["nobody", "one", "smallest", "idle-not-waited-for", "all-idle", "silent-holds", "older-is-ignored",
         "new-partition-behind", "resumed-behind", "still-behind", "caught-up", "all-idle-holds"],
)  # fmt: skip
def test_merge_is_the_smallest_of_the_active(merged: MergedWatermark, watermark: int, idle: bool) -> None:
    """The merged watermark never decreases."""
    assert (merged.watermark_ms, merged.idle) == (watermark, idle)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(-5, 5), st.booleans()), max_size=30))
def test_merge_is_the_highest_minimum_there_ever_was(updates: list[tuple[str, int, bool]]) -> None:
    """The expected value is computed from all updates instead of from state."""
    merged, minima = MergedWatermark(), [MIN_TIMESTAMP_MS]
    for count, (partition, time_ms, idle) in enumerate(updates, 1):
        merged = merge(merged, {partition: PartitionWatermark(time_ms, idle)})
        past = updates[:count]
        highest = {p: max(t for name, t, _ in past if name == p) for p, _, _ in past}
        waiting = [t for p, t in highest.items() if not [i for name, _, i in past if name == p][-1]]
        minima += [min(waiting)] if waiting else []
        assert merged.watermark_ms == max(minima)


def _run(strategy: WatermarkStrategy, *steps: Any, partitions: int = 1) -> list[Emitted]:
    """Output of each step: an int is a poll, ``"end"`` the end, a tuple a record."""
    state: Tracking = start_tracking(range(partitions))
    shown = []
    for step in steps:
        match step:
            case int():
                state, emitted = poll(strategy, state, step)
            case "end":
                state, emitted = end_of_input(state)
            case (partition, timestamp_ms, *marker):
                state, emitted = add_record(strategy, state, partition, timestamp_ms, marker=bool(marker))
        shown.append(emitted)
    return shown


def test_nothing_is_emitted_between_two_polls() -> None:
    """A poll emits only changes."""
    assert _run(monotonous(), (0, 5), (0, 9), 1, 2, (0, 9), 3) == [(), (), (Watermark(8),), (), (), ()]


def test_source_without_watermarks_emits_only_its_end() -> None:
    """This holds for any records and processing times; nothing is emitted after the end."""
    emitted = _run(no_watermarks(), (0, 5, "marker"), 1, 10**9, "end", "end", 2)

    assert emitted == [(), (), (), (Watermark(MAX_TIMESTAMP_MS),), (), ()]


def test_nothing_is_emitted_after_the_end() -> None:
    """An ended input does not become idle."""
    strategy = monotonous().with_idleness(timedelta(milliseconds=10))

    assert _run(strategy, 0, "end", 5, 99) == [(), (Watermark(MAX_TIMESTAMP_MS),), (), ()]


def test_idle_partition_is_ignored_until_it_is_active_again() -> None:
    """Partition 1 is silent from 10, so partition 0 counts; at 20 it is active and holds 99."""
    strategy = monotonous().with_idleness(timedelta(milliseconds=10))

    script = [(0, 50), (1, 11), 0, (0, 60), 1, (0, 100), 12, (1, 20), (0, 200), 13, (1, 151), 14]

    emitted = _run(strategy, *script, partitions=2)

    polls = [(Watermark(10),), (), (Watermark(99),), (), (Watermark(150),)]
    assert [one for one, step in zip(emitted, script, strict=True) if isinstance(step, int)] == polls


def test_status_comes_before_the_watermark() -> None:
    """A reader that ignores idle inputs would otherwise miss the watermark."""
    strategy = monotonous().with_idleness(timedelta(milliseconds=10))

    assert _run(strategy, 0, 11, (0, 5), 12) == [(), (IDLE,), (), (ACTIVE, Watermark(4))]


def test_marker_emits_at_once_and_activates_its_partition() -> None:
    """If the marker is older than the watermark, only the status changes."""
    strategy = punctuated("x").with_idleness(timedelta(milliseconds=10))

    emitted = _run(strategy, (0, 5, "marker"), 0, 1, 12, (0, 9), (0, 4, "marker"), (0, 7, "marker"))

    assert emitted == [(Watermark(5),), (), (), (IDLE,), (), (ACTIVE,), (Watermark(7),)]


@st.composite
def _scripts(draw: st.DrawFn) -> list[Any]:
    now_ms, steps = 0, []
    for kind in draw(st.lists(st.sampled_from(["poll", "record", "marker"]), max_size=40)):
        if kind == "poll":
            now_ms += draw(st.integers(0, 8))
            steps.append(now_ms)
        else:
            row = (draw(st.integers(0, 2)), draw(st.none() | st.integers(-9, 9)))
            steps.append(row if kind == "record" else (*row, "marker"))
    return [*steps, "end"]


@given(
    st.sampled_from([monotonous(), bounded_out_of_orderness(timedelta(milliseconds=3)), punctuated("x")]),
    st.none() | st.integers(1, 9),
    _scripts(),
)
def test_emitted_watermarks_rise_and_statuses_change(
    strategy: WatermarkStrategy, idle_after_ms: int | None, script: list[Any]
) -> None:
    """Watermarks strictly rise, statuses alternate beginning with idle, and the end is the last of all."""
    strategy = WatermarkStrategy(strategy.generator, idle_after_ms)

    emitted = [element for step in _run(strategy, *script, partitions=3) for element in step]

    watermarks = list(_watermarks(emitted))
    assert watermarks == sorted(set(watermarks))
    assert watermarks[-1] == MAX_TIMESTAMP_MS
    statuses = [element for element in emitted if isinstance(element, WatermarkStatus)]
    assert statuses == [(IDLE, ACTIVE)[n % 2] for n in range(len(statuses))]
    assert idle_after_ms is not None or not statuses


def _watermarks(emitted: list[Any]) -> Iterator[int]:
    for element in emitted:
        if isinstance(element, Watermark):
            yield element.timestamp_ms
