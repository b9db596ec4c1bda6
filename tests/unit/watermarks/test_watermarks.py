"""The watermark is the minimum over active partitions, and never decreases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import numpy as np
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
    periodic,
    punctuated,
)
from flowcore.watermarks.generated import GeneratedWatermarks, NewestTimes, watermarks_ms
from flowcore.watermarks.merge import ChannelElements, Emitted, MergedWatermark
from flowcore.watermarks.progress import WatermarkProgress, WatermarkSource
from flowcore.watermarks.strategies import BoundedOutOfOrderness, Generator, NoWatermarks, Punctuated

BOUNDED = BoundedOutOfOrderness(10)
MARKED = Punctuated("is_marker")
IDLE, ACTIVE = WatermarkStatus(idle=True), WatermarkStatus(idle=False)

laws = settings(deadline=None)  # the first use of Arrow takes long
timestamps = st.none() | st.integers(MIN_TIMESTAMP_MS, MAX_TIMESTAMP_MS) | st.integers(-20, 20)
generators = st.sampled_from([BOUNDED, BoundedOutOfOrderness(0), MARKED, NoWatermarks()])


def test_functions_return_their_strategies() -> None:
    """`monotonous` has no delay; strategies are plain values."""
    assert monotonous() == bounded_out_of_orderness(timedelta(0))
    assert bounded_out_of_orderness(timedelta(seconds=4)).generator == BoundedOutOfOrderness(4000)
    assert punctuated("is_marker").generator == MARKED
    assert monotonous().with_idleness(timedelta(minutes=1)).idle_after_ms == 60_000
    assert [s.generates for s in (no_watermarks(), monotonous(), punctuated("x"))] == [False, True, True]
    by_timestamp = [no_watermarks(), monotonous(), periodic(max), periodic("x"), punctuated("x")]
    assert [s.by_timestamp for s in by_timestamp] == [False, True, True, False, False]


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
        (lambda: bounded_out_of_orderness(timedelta(milliseconds=-1)), "a delay of -1 ms is negative"),
        (
            lambda: bounded_out_of_orderness(5),  # type: ignore[arg-type]
            r"delay=5 \(a number: pass timedelta\(seconds=5\)\) is not a time in whole milliseconds",
        ),
        (lambda: bounded_out_of_orderness(timedelta(microseconds=1)), "delay=.* whole milliseconds"),
        (lambda: monotonous().with_idleness(timedelta(0)), "idle_after=0 is not positive"),
        (lambda: monotonous().with_idleness(timedelta(milliseconds=-1)), "idle_after=-1 ms is not positive"),
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
    newest_ms = MIN_TIMESTAMP_MS + np.array([0, 10, 11, 12, 100])

    found = watermarks_ms(BOUNDED, newest_ms) - MIN_TIMESTAMP_MS

    assert found.tolist() == [0, 0, 0, 1, 89]


@laws
@given(generators, st.lists(timestamps))
def test_generator_follows_the_newest_time_that_counts(generator: Generator, rows: list[int | None]) -> None:
    """The expected value is the definition over all times."""
    source = GeneratedWatermarks(WatermarkStrategy(generator), "0")
    for time_ms in rows:
        source.take(NewestTimes.of({"0": time_ms}))
    source.poll(0)

    times = [] if isinstance(generator, NoWatermarks) else [t for t in rows if t is not None]
    delay = generator.delay_ms + 1 if isinstance(generator, BoundedOutOfOrderness) else 0
    assert source.watermark_ms == max(max(times, default=MIN_TIMESTAMP_MS) - delay, MIN_TIMESTAMP_MS)


def _idle_after(*times: int | None, idle_after_ms: int | None = 10) -> list[bool]:
    """Whether a partition is idle after each poll; None is a record."""
    source, found = GeneratedWatermarks(WatermarkStrategy(BOUNDED, idle_after_ms), "0"), []
    for now_ms in times:
        if now_ms is None:
            source.take(NewestTimes.of({"0": None}))
            continue
        source.poll(now_ms)
        found.append(source.idle)
    return found


def test_idleness_is_noticed_counted_and_found() -> None:
    """A poll sees the record, the next poll starts the timeout, and a poll after it finds it idle."""
    assert _idle_after(None, 100, 150, 160, 161, None, 999) == [False, False, False, True, False]


def test_idleness_counts_from_a_clock_at_zero_too() -> None:
    """Zero is a valid time."""
    assert _idle_after(0, 11) == [False, True]


def test_clock_that_goes_back_begins_the_time_out_anew() -> None:
    """Without that, a silent partition would hold the watermark until the clock is where it was."""
    assert _idle_after(1_000_000, 500, 510, 511) == [False, False, False, True]


def test_partition_without_time_out_is_never_idle() -> None:
    """This holds for any time without records."""
    assert _idle_after(0, 10**15, idle_after_ms=None) == [False, False]


def _now(**partitions: tuple[int, bool]) -> dict[str, tuple[int, bool]]:
    return partitions


def _update(merged: MergedWatermark, partitions: dict[str, tuple[int, bool]]) -> MergedWatermark:
    times, idle = zip(*partitions.values(), strict=True)
    merged.update(merged.ensure_channels(tuple(partitions)), np.array(times, np.int64), np.array(idle))
    return merged


def _merged(**partitions: tuple[int, bool]) -> MergedWatermark:
    return _update(MergedWatermark(), partitions)


@pytest.mark.parametrize(
    ("merged", "watermark", "idle"),
    [
        (MergedWatermark(), MIN_TIMESTAMP_MS, False),
        (_merged(a=(5, False)), 5, False),
        (_merged(a=(5, False), b=(3, False)), 3, False),
        (_merged(a=(5, False), b=(3, True)), 5, False),
        (_merged(a=(5, True), b=(3, True)), MIN_TIMESTAMP_MS, True),
        (_merged(a=(5, False), b=(MIN_TIMESTAMP_MS, False)), MIN_TIMESTAMP_MS, False),
        (_update(_merged(a=(5, False)), _now(a=(3, False))), 5, False),
        (_update(_merged(a=(5, False)), _now(b=(3, False))), 5, False),
        (_update(_merged(a=(5, False), b=(3, True)), _now(b=(3, False))), 5, False),
        (_update(_merged(a=(5, False), b=(3, True)), _now(b=(4, False), a=(9, False))), 5, False),
        (_update(_merged(a=(5, False), b=(3, True)), _now(b=(7, False), a=(9, False))), 7, False),
        (_update(_merged(a=(5, False), b=(3, False)), _now(a=(5, True), b=(5, True))), 3, True),
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
        _update(merged, {partition: (time_ms, idle)})
        past = updates[:count]
        highest = {p: max(t for name, t, _ in past if name == p) for p, _, _ in past}
        waiting = [t for p, t in highest.items() if not [i for name, _, i in past if name == p][-1]]
        minima += [min(waiting)] if waiting else []
        assert merged.watermark_ms == max(minima)


def _run(strategy: WatermarkStrategy, *steps: Any, partitions: int = 1) -> list[Emitted]:
    """Output of each step: an int is a poll, ``"end"`` the end, a tuple a record."""
    source = WatermarkProgress({"in": WatermarkSource(strategy, tuple(map(str, range(partitions))))})
    punctuated = isinstance(strategy.generator, Punctuated)
    shown = []
    for step in steps:
        emitted: Emitted = ()
        match step:
            case int():
                emitted = source.poll(step)
            case "end":
                ends = ((str(number), Watermark(MAX_TIMESTAMP_MS)) for number in range(partitions))
                source.arrive("in", ChannelElements.from_elements(ends)[0])
                emitted = source.emit()
            case (partition, timestamp_ms, *marker):
                counts = marker or not punctuated
                source.take("in", NewestTimes.of({str(partition): timestamp_ms if counts else None}))
                if marker and punctuated:
                    emitted = source.emit()
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


def test_records_of_an_added_partition_are_followed() -> None:
    """A running query reads a partition that did not exist when it was started, and it holds event time."""
    source = WatermarkSource(bounded_out_of_orderness(timedelta(0)), ("0",))
    progress = WatermarkProgress({"s": source})
    for newest in (NewestTimes.of({"0": 5_000}), NewestTimes.of({"0": 9_000, "1": 3_000})):
        assert [*progress.follow({}, {"s": newest})] == []
        progress.take("s", newest)
        progress.poll(1)

    assert progress.watermark_ms == 4_999
