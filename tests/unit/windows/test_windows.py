"""Windows emit, merge, keep and refuse, as the harness shows."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import chain
from typing import Any

import pytest

from flowcore.elements import MIN_TIMESTAMP_MS
from flowcore.errors import ElementError, InvalidWindowError, NoTimestampError, StateError
from flowcore.testing.window_functions import Sum
from flowcore.windows import (
    CountEvictor,
    DeltaEvictor,
    DynamicSessionWindows,
    Emissions,
    Evictor,
    GlobalWindows,
    SessionWindows,
    SlidingWindows,
    TimeEvictor,
    TumblingWindows,
    WindowAggregate,
    WindowConfig,
    WindowContext,
    WindowProcess,
    WindowReduce,
)
from flowcore.windows.functions import PlainProcess
from flowcore.windows.triggers import (
    ContinuousEventTime,
    ContinuousProcessingTime,
    Count,
    Delta,
    EventTimeTrigger,
    Never,
    ProcessingTimeTrigger,
    Purging,
)
from tests.unit.windows.harnesses import LISTS, MAX, harness_of, values_of


def test_windows_at_the_end_of_time_emit_when_the_input_ends() -> None:
    """Their last millisecond is the maximum timestamp; no sum of times exceeds it."""
    harness = harness_of(TumblingWindows(1000), allowed_lateness_ms=5000)

    harness.feed(("a", 1, MAX), ("a", 2, MAX - 1))
    assert values_of(harness.watermark(MAX - 1)) == []
    (result,) = harness.end_of_input().results

    assert (result.value, result.timestamp_ms, result.window_end_ms) == ([1, 2], MAX, MAX)
    assert harness.snapshot()["keys"] == []


def test_sessions_at_the_end_of_time_merge() -> None:
    """Two sessions that are cut off there are merged."""
    harness = harness_of(SessionWindows(1000))

    harness.feed(("a", 1, MAX - 1500), ("a", 2, MAX - 700), ("a", 3, MAX))

    assert values_of(harness.end_of_input()) == [[1, 2, 3]]


def test_lateness_that_overflows_keeps_windows_until_the_input_ends() -> None:
    """A cleanup time that is cut off at the end of time is not in the past."""
    harness = harness_of(TumblingWindows(1000), allowed_lateness_ms=2000, late="side-output")

    harness.feed(("a", 1, MAX - 1750))
    assert values_of(harness.watermark(MAX - 1500)) == []
    assert values_of(harness.watermark(MAX - 808)) == [[1]]
    assert values_of(harness.feed(("a", 2, MAX - 1700))) == [[1, 2]]
    assert harness.watermark(MAX).results == []
    assert harness.feed(("a", 3, MAX - 1700)).late == [("a", 3, MAX - 1700)]


def test_windows_at_the_beginning_of_time_are_in_order() -> None:
    harness = harness_of(SlidingWindows(4, 2))

    harness.feed(("a", 1, MIN_TIMESTAMP_MS))
    results = harness.watermark(MIN_TIMESTAMP_MS + 10).results

    assert [r.timestamp_ms - MIN_TIMESTAMP_MS for r in results] == [1, 3]
    assert all(r.window_start_ms == MIN_TIMESTAMP_MS for r in results)


def test_sliding_record_counts_only_in_its_windows_that_are_not_late() -> None:
    """A record that is late for some of its windows is not a late record."""
    harness = harness_of(SlidingWindows(3000, 1000), late="side-output")

    harness.feed(("a", 1, 2500))
    harness.watermark(3000)
    seen = harness.feed(("a", 2, 2500))
    ended = harness.end_of_input()

    assert (seen.results, seen.late) == ([], [])
    assert [(r.window_start_ms, r.value) for r in ended.results] == [(1000, [1, 2]), (2000, [1, 2])]


def test_record_of_late_windows_only_is_neither_counted_nor_dropped() -> None:
    """A session of gap zero ends one millisecond before its record: it is neither counted nor dropped."""
    harness = harness_of(DynamicSessionWindows(lambda *_: 0), late="side-output")

    harness.watermark(4)

    assert harness.feed(("a", 1, 5)) == Emissions()
    assert harness.feed(("a", 2, 4)).late == [("a", 2, 4)]
    assert harness.snapshot()["keys"] == []


def test_late_session_that_merges_into_a_live_one_counts() -> None:
    """Alone it would be late; after merging, the end of the whole session counts."""
    harness = harness_of(SessionWindows(100), late="side-output")

    harness.feed(("a", 1, 50))
    harness.watermark(120)
    merged, late = harness.feed(("a", 2, 0)), harness.feed(("a", 3, -101))
    ended = harness.end_of_input().results

    assert (merged, late.late) == (Emissions(), [("a", 3, -101)])
    assert [(r.window_start_ms, r.window_end_ms, r.value) for r in ended] == [(0, 150, [1, 2])]


def test_session_that_has_emitted_continues_within_its_lateness() -> None:
    """If a record moves the end past the watermark, the session waits; otherwise it emits immediately."""
    harness = harness_of(SessionWindows(100), allowed_lateness_ms=1000)

    harness.feed(("a", 1, 0))
    on_time = harness.watermark(150).results
    at_once = harness.feed(("a", 2, 40)).results
    grown = harness.feed(("a", 3, 90)).results
    ended = harness.watermark(189).results

    assert [(r.value, r.firing, r.is_late, r.window_end_ms) for r in on_time] == [([1], 1, False, 100)]
    assert [(r.value, r.firing, r.is_late, r.window_end_ms) for r in at_once] == [([1, 2], 2, True, 140)]
    assert grown == []
    assert [(r.value, r.firing, r.is_late, r.window_end_ms) for r in ended] == [([1, 2, 3], 3, False, 190)]


def test_two_sessions_that_emitted_are_joined_late() -> None:
    """The record between them emits all records, the earlier session first; former timers do not emit."""
    harness = harness_of(SessionWindows(100), allowed_lateness_ms=1000)

    harness.feed(("a", 1, 150), ("a", 2, 0))
    assert sorted(values_of(harness.watermark(400))) == [[1], [2]]
    joined = harness.feed(("a", 3, 80)).results

    assert [(r.value, r.firing, r.is_late) for r in joined] == [([2, 1, 3], 2, True)]
    assert harness.watermark(1248).results == []
    assert len(harness.snapshot()["keys"]) == 1
    assert harness.end_of_input() == Emissions()
    assert harness.snapshot()["keys"] == []


def test_merged_session_continues_from_its_highest_firing() -> None:
    """One part has emitted twice, the other not yet."""
    harness = harness_of(SessionWindows(100), allowed_lateness_ms=1000)

    harness.feed(("a", 1, 0))
    harness.watermark(120)
    harness.feed(("a", 2, 5), ("a", 3, 200))
    harness.feed(("a", 4, 100))

    assert [(r.value, r.firing) for r in harness.watermark(299).results] == [([1, 2, 3, 4], 3)]


def test_merged_counts_emit_with_the_next_record_only() -> None:
    """Two and two records, and the one that merges them."""
    harness = harness_of(SessionWindows(10), Count(4))

    harness.feed(("a", 1, 0), ("a", 2, 0), ("a", 3, 15), ("a", 4, 15))
    harness.restart()
    assert values_of(harness.feed(("a", 5, 8))) == [[1, 2, 3, 4, 5]]
    assert values_of(harness.feed(("a", 6, 8), ("a", 7, 8), ("a", 8, 8))) == []
    assert values_of(harness.feed(("a", 9, 8))) == [[1, 2, 3, 4, 5, 6, 7, 8, 9]]


@pytest.mark.parametrize(
    ("evictor", "first", "second"),
    [
        (CountEvictor(2), [3, 4], [4, 5]),
        (CountEvictor(2, after=True), [1, 2, 3, 4], [3, 4, 5]),
        (CountEvictor(0, after=True), [1, 2, 3, 4], [5]),
        (TimeEvictor(10), [3, 4], [3, 4, 5]),
        (TimeEvictor(10, after=True), [1, 2, 3, 4], [3, 4, 5]),
        (DeltaEvictor(3), [2, 3, 4], [3, 4, 5]),
        (DeltaEvictor(3, after=True), [1, 2, 3, 4], [2, 3, 4, 5]),
    ],
    ids=["count", "count-after", "count-none-after", "time", "time-after", "delta", "delta-after"],
)  # fmt: skip
def test_evictors_remove_records_permanently(evictor: Evictor, first: list[int], second: list[int]) -> None:
    """An evictor before the function changes this firing; one after it changes later firings."""
    harness = harness_of(TumblingWindows(1000), evictor=evictor, allowed_lateness_ms=1000)

    harness.feed(("a", 1, 10), ("a", 2, 5), ("a", 3, 20), ("a", 4, 11))
    assert values_of(harness.watermark(999)) == [first]
    harness.restart()
    assert values_of(harness.feed(("a", 5, 15))) == [second]


def test_a_difference_that_is_not_a_number_neither_fires_nor_removes() -> None:
    """As in Flink, only a difference above the threshold fires, and only one of at least it removes."""
    nan = float("nan")
    fired = harness_of(GlobalWindows(), Delta(5, lambda old, new: new - old))
    kept = harness_of(TumblingWindows(10), evictor=DeltaEvictor(3))

    assert values_of(fired.feed(("a", 1), ("a", nan), ("a", 2))) == []
    assert len(values_of(fired.feed(("a", 7)))) == 1
    kept.feed(("a", 1, 0), ("a", nan, 0), ("a", 5, 0))
    assert repr(values_of(kept.watermark(9))) == "[[nan, 5]]"


def test_window_that_an_evictor_has_emptied_emits_nothing() -> None:
    harness = harness_of(TumblingWindows(10), evictor=CountEvictor(0))

    harness.feed(("a", 1, 1))

    assert harness.watermark(9) == Emissions()


class _Totals:
    """A process function that numbers a key's results and remembers what a window gave before."""

    def process(self, context: WindowContext, values: Sequence[Any], /) -> Iterable[Any]:
        before = context.window_state.get("total")
        context.window_state["total"] = sum(values)
        context.key_state["number"] = context.key_state.get("number", 0) + 1
        yield (context.key_state["number"], before, sum(values), context.firing, context.is_late)

    def clear(self, context: WindowContext, /) -> None:
        if context.window.start_ms >= 100:
            context.key_state.clear()


def test_process_function_keeps_state_of_window_and_key() -> None:
    """State of a window is deleted with it; state of a key stays until the function empties it."""
    harness = harness_of(
        TumblingWindows(100), function=WindowAggregate(Sum(), then=_Totals()), allowed_lateness_ms=50
    )

    harness.feed(("a", 1, 5), ("a", 10, 105))
    seen = values_of(harness.watermark(99))
    harness.restart()
    seen += values_of(harness.feed(("a", 2, 6)))
    harness.watermark(149)
    assert harness.snapshot()["keys"][0]["own"] == {"dict": [["number", 2]]}
    seen += values_of(harness.watermark(220))

    assert seen == [(1, None, 1, 1, False), (2, 1, 3, 2, True), (3, None, 10, 1, False)]
    assert harness.end_of_input() == Emissions()
    assert harness.snapshot()["keys"] == []


def test_process_function_can_read_the_backlog_status() -> None:
    """The input is live at first; the status survives a restart."""
    function = WindowProcess(PlainProcess(lambda context, _: [context.is_backlog]))
    harness = harness_of(TumblingWindows(100), function=function)

    harness.feed(("a", 1, 5))
    harness.watermark(100)
    harness.backlog(backlog=True)
    harness.restart()
    harness.feed(("a", 1, 105))
    harness.watermark(200)

    assert [result.value for result in harness.results] == [False, True]


def test_process_function_has_no_window_state_where_windows_merge() -> None:
    """Such states could not be merged."""
    harness = harness_of(SessionWindows(100), function=WindowProcess(_Totals()))

    harness.feed(("a", 1, 5))

    with pytest.raises(StateError, match="windows that merge have no state of their own"):
        harness.end_of_input()


def test_step_with_one_bad_record_changes_nothing() -> None:
    """The records before it are not processed either."""
    harness = harness_of(TumblingWindows(10))
    before = harness.snapshot()

    with pytest.raises(NoTimestampError, match="record 2 of key 'a' has no timestamp"):
        harness.feed(("a", 1, 5), ("a", 2, None))
    with pytest.raises(ElementError, match="out of range"):
        harness.feed(("a", 1, 5), ("a", 2, 2**63))

    assert harness.snapshot() == before


def test_windows_need_no_key() -> None:
    """Without a key, all records have the key None."""
    harness = harness_of(TumblingWindows(10), function=WindowReduce(max))

    harness.feed((None, 4, 5), (None, 7, 6))
    harness.restart()

    assert [(r.key, r.value) for r in harness.watermark(9).results] == [(None, 7)]


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"time": "wall"}, "time='wall'"),
        ({"late": "keep"}, "late='keep'"),
        ({"allowed_lateness_ms": -1}, "allowed_lateness_ms=-1 is negative"),
        ({"assigner": SessionWindows(5), "trigger": Delta(1, max)}, "cannot continue when windows merge"),
        ({"assigner": SessionWindows(5), "trigger": Purging(Delta(1, max))}, "when windows merge"),
    ],
    ids=["time", "late", "lateness", "delta-sessions", "purging-delta-sessions"],
)  # fmt: skip
def test_config_refuses_contradictions(others: dict[str, Any], message: str) -> None:
    """The error is raised before the first record."""
    with pytest.raises(InvalidWindowError, match=message):
        WindowConfig(**{"assigner": TumblingWindows(5), "function": LISTS, **others})


@pytest.mark.parametrize(
    "build",
    [
        lambda: Count(0), lambda: ContinuousEventTime(0), lambda: ContinuousProcessingTime(-1),
        lambda: CountEvictor(-1), lambda: TimeEvictor(-1),
    ],
    ids=["count", "continuous", "continuous-clock", "count-evictor", "time-evictor"],
)  # fmt: skip
def test_triggers_and_evictors_refuse_what_cannot_be(build: Any) -> None:
    with pytest.raises(InvalidWindowError):
        build()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: {"trigger": Count}, "trigger=Count is a class.*pass for instance Count"),
        (
            lambda: {"trigger": "count"},
            "trigger='count' has no on_element, on_event_time, on_processing_time",
        ),
        (lambda: {"trigger": Purging(Count)}, "inside=Count is a class"),
        (lambda: {"trigger": Count("5")}, "count='5' is not a whole number"),
        (lambda: {"trigger": ContinuousEventTime("5 s")}, "interval_ms='5 s' is not a whole number of milli"),
        (lambda: {"trigger": ContinuousEventTime(timedelta(microseconds=5))}, "interval_ms=.*not a whole"),
        (lambda: {"evictor": CountEvictor}, "evictor=CountEvictor is a class"),
        (lambda: {"evictor": Count(5)}, r"evictor=Count\(count=5\) has no keep"),
        (lambda: {"evictor": CountEvictor(2.5)}, "keep_records=2.5 is not a whole number"),
        (lambda: {"evictor": TimeEvictor("5 s")}, "window_ms='5 s' is not a whole number of milliseconds"),
    ],
)
def test_config_refuses_what_is_not_a_trigger_or_an_evictor(build: Any, message: str) -> None:
    """It would fail in a worker, at the first record."""
    with pytest.raises(InvalidWindowError, match=message):
        WindowConfig(assigner=TumblingWindows(5), function=LISTS, **build())


def test_triggers_and_evictors_take_lengths_of_time() -> None:
    """A timedelta is as good as its milliseconds."""
    span = timedelta(seconds=2)

    assert ContinuousEventTime(span) == ContinuousEventTime(2_000)
    assert ContinuousProcessingTime(interval_ms=span) == ContinuousProcessingTime(2_000)
    assert copy.copy(TimeEvictor(span, after=True)) == TimeEvictor(2_000, after=True)
    assert repr(ContinuousEventTime(span)) == "ContinuousEventTime(interval_ms=2000)"


def test_config_takes_the_trigger_of_its_windows() -> None:
    """Event time, processing time, the end of the stream, or never."""
    triggers = [
        WindowConfig(assigner=TumblingWindows(5), function=LISTS).effective_trigger,
        WindowConfig(assigner=TumblingWindows(5), function=LISTS, time="processing").effective_trigger,
        WindowConfig(assigner=GlobalWindows(), function=LISTS).effective_trigger,
    ]

    assert triggers == [EventTimeTrigger(), ProcessingTimeTrigger(), Never()]


class _Mutating:
    """A fold and a process function that change everything they get."""

    def create(self) -> list[Any]:
        return []

    def add(self, accumulator: list[Any], value: Any, /) -> list[Any]:
        value["seen"].append("add")
        accumulator.append(value)
        return accumulator

    def merge(self, first: list[Any], second: list[Any], /) -> list[Any]:
        return first + second

    def result(self, accumulator: list[Any], /) -> list[Any]:
        return list(accumulator)

    def reduce(self, kept: Any, new: Any) -> Any:
        new["seen"].append("new")
        kept["n"] += new["n"]
        kept["seen"] += new["seen"]
        return kept

    def process(self, _context: Any, values: Any, /) -> list[Any]:
        found = json.dumps(values)
        for record in chain.from_iterable(each if isinstance(each, list) else [each] for each in values):
            record["seen"].append("then")
            record["n"] = -1
        return [found]

    def clear(self, context: Any, /) -> None:
        pass


@pytest.mark.parametrize("evictor", [None, CountEvictor(10)], ids=["folded", "buffered"])
@pytest.mark.parametrize("then", [None, _Mutating()], ids=["alone", "then"])
@pytest.mark.parametrize(
    "function",
    [
        WindowReduce(_Mutating().reduce),
        WindowAggregate(_Mutating()),
        WindowProcess(_Mutating()),
    ],
    ids=["reduce", "aggregate", "process"],
)
def test_functions_that_change_records_change_no_other_window_and_no_later_firing(
    function: Any, then: Any, evictor: Any
) -> None:
    """Results are those of a run that restarts after each record, which shares no objects."""
    if not isinstance(function, WindowProcess):
        function = replace(function, then=then)
    at_once, restarting = (
        harness_of(SlidingWindows(20, 5), Count(1), function=function, evictor=evictor) for _ in range(2)
    )
    records = [("a", {"n": number, "seen": ["in"]}, number) for number in range(3)]
    expected = []
    for record in copy.deepcopy(records):
        expected += [repr(result) for result in restarting.feed(record).results]
        restarting.restart()

    assert [repr(result) for result in at_once.feed(*records).results] == expected
    assert len(expected) == 12
