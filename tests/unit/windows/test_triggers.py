"""Triggers of event time, processing time, count and delta, and a custom one, in the harness."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from flowcore.errors import InvalidWindowError
from flowcore.windows import (
    Emissions,
    EndOfStreamWindows,
    GlobalWindows,
    SessionWindows,
    TumblingWindows,
)
from flowcore.windows.triggers import (
    ContinuousEventTime,
    ContinuousProcessingTime,
    Delta,
    ProcessingTimeTrigger,
    Purging,
    TriggerContext,
    TriggerResult,
)
from tests.unit.windows.harnesses import MAX, harness_of, values_of


@pytest.mark.parametrize(
    ("first_ms", "reached"),
    [(3000, [6000, 9000, 9999]), (2999, [3000, 6000, 9000, 9999]), (9500, [9999])],
    ids=["on-a-multiple", "before-a-multiple", "after-the-last"],
)
def test_continuous_trigger_emits_once_for_each_multiple(first_ms: int, reached: list[int]) -> None:
    """The watermark may stop at each or jump over all."""
    stepwise, at_once = (harness_of(TumblingWindows(10_000), ContinuousEventTime(3000)) for _ in range(2))
    seen = []

    for harness in (stepwise, at_once):
        harness.feed(("a", 1, first_ms))
    for watermark_ms in range(2000, 11_000, 1):
        stepwise.watermark(watermark_ms)
        seen += [watermark_ms] * (len(stepwise.results) - len(seen))

    assert seen == reached
    assert [r.firing for r in at_once.watermark(MAX).results] == list(range(1, len(reached) + 1))


def test_continuous_trigger_knows_multiples_below_zero() -> None:
    """The first multiple after -2500 is -2000."""
    harness = harness_of(TumblingWindows(10_000), ContinuousEventTime(1000))

    harness.feed(("a", 1, -2500))

    assert len(harness.watermark(-2001).results) == 0
    assert len(harness.watermark(-2000).results) == 1


def test_continuous_trigger_makes_up_for_multiples_when_the_watermark_moves_on() -> None:
    """A first record before the watermark does not emit immediately, nor does an equal watermark."""
    harness = harness_of(TumblingWindows(100), ContinuousEventTime(20))

    harness.watermark(45)
    assert values_of(harness.feed(("a", 1, 10))) == []
    assert values_of(harness.watermark(45)) == []
    assert values_of(harness.watermark(46)) == [[1], [1]]


def test_continuous_trigger_goes_by_the_record_that_came_first() -> None:
    """An older record does not change the next multiple."""
    harness = harness_of(GlobalWindows(), ContinuousEventTime(3000))

    harness.feed(("a", 1, 3000), ("a", 2, 1000), ("b", 3, 20))

    assert values_of(harness.watermark(3000)) == [[3]]
    assert values_of(harness.watermark(5999)) == []
    assert values_of(harness.watermark(6000)) == [[1, 2], [3]]


def test_continuous_trigger_of_a_window_without_end_emits_once_at_the_end_of_input() -> None:
    """It does not emit for each interval up to it."""
    harness = harness_of(GlobalWindows(), ContinuousEventTime(10))

    harness.feed(("a", 1, 5))

    assert values_of(harness.watermark(30)) == [[1], [1], [1]]
    assert values_of(harness.end_of_input()) == [[1]]


def test_continuous_trigger_of_a_session_keeps_to_multiples_when_it_grows() -> None:
    """After a merge, the former end of a session does not emit."""
    harness = harness_of(SessionWindows(100), ContinuousEventTime(80))

    harness.feed(("a", 1, 10), ("a", 2, 90))
    harness.restart()
    times = []
    for watermark_ms in range(300):
        times += [watermark_ms] * len(harness.watermark(watermark_ms).results)

    assert times == [80, 160, 189]


def test_continuous_trigger_of_merged_sessions_goes_on_at_the_earlier_multiple() -> None:
    """The order of the records does not matter."""
    harness = harness_of(SessionWindows(100), ContinuousEventTime(30))

    harness.feed(("a", 1, 150), ("a", 2, 0), ("a", 3, 80))

    assert values_of(harness.watermark(29)) == []
    assert values_of(harness.watermark(30)) == [[2, 1, 3]]


def test_continuous_purging_trigger_emits_what_is_new() -> None:
    """An interval without records emits nothing."""
    harness = harness_of(TumblingWindows(100), Purging(ContinuousEventTime(20)))

    harness.feed(("a", 1, 5))
    assert values_of(harness.watermark(45)) == [[1]]
    harness.feed(("a", 2, 50))
    assert values_of(harness.watermark(60)) == [[2]]
    assert values_of(harness.watermark(200)) == []


def test_continuous_trigger_after_the_end_emits_with_each_record() -> None:
    """The event-time trigger does the same."""
    harness = harness_of(TumblingWindows(100), ContinuousEventTime(60), allowed_lateness_ms=50)

    harness.feed(("a", 1, 5))
    harness.watermark(120)

    assert [(r.value, r.is_late, r.firing) for r in harness.feed(("a", 2, 5)).results] == [([1, 2], True, 3)]
    assert harness.watermark(200).results == []


def test_continuous_processing_time_trigger_emits_at_multiples() -> None:
    """It also emits when processing time reaches the window's end."""
    harness = harness_of(TumblingWindows(100), ContinuousProcessingTime(40), time="processing")

    harness.move_clock(10)
    harness.feed(("a", 1))
    counts = []
    for processing_time_ms in (39, 40, 79, 98, 99, 100):
        counts.append(len(harness.move_clock(processing_time_ms).results))
        assert all(
            due_ms > processing_time_ms
            for key in harness.snapshot()["keys"]
            for window in key["windows"]
            for due_ms in window["processing_timers"]
        )
        harness.restart()

    assert counts == [0, 1, 0, 1, 1, 0]


def test_continuous_clock_trigger_goes_on_when_a_session_grows() -> None:
    harness = harness_of(SessionWindows(100), ContinuousProcessingTime(40), time="processing")

    harness.move_clock(10)
    harness.feed(("a", 1))
    harness.move_clock(30)
    harness.feed(("a", 2))
    counts = [
        len(harness.move_clock(processing_time_ms).results)
        for processing_time_ms in (39, 40, 80, 109, 120, 128, 129)
    ]

    assert counts == [0, 1, 1, 0, 1, 0, 1]


@pytest.mark.parametrize("processing_time_ms", [1010, 10], ids=["after the window's end", "in the window"])
def test_continuous_clock_trigger_of_event_time_windows_emits_at_multiples_only(
    processing_time_ms: int,
) -> None:
    """The clock may be far beyond the end of a window of event time, as where history is read."""
    harness = harness_of(TumblingWindows(100), ContinuousProcessingTime(40))
    multiple = processing_time_ms - processing_time_ms % 40 + 40

    harness.move_clock(processing_time_ms)
    at_once = [values_of(harness.feed(("a", number, 5))) for number in range(3)]
    harness.restart()
    seen = [len(harness.move_clock(multiple + after_ms).results) for after_ms in (-1, 0, 39, 40, 80, 120)]

    assert at_once == [[], [], []]
    assert seen == [0, 1, 0, 1, 1, 1]
    assert values_of(harness.watermark(200)) == []
    assert values_of(harness.move_clock(multiple + 500)) == []


def test_continuous_event_trigger_of_processing_time_windows_emits_at_multiples_only() -> None:
    harness = harness_of(TumblingWindows(100), ContinuousEventTime(40), time="processing")

    harness.watermark(1000)
    assert values_of(harness.feed(("a", 1, 1010), ("a", 2, 1020))) == []
    assert values_of(harness.watermark(1040)) == [[1, 2]]
    assert values_of(harness.watermark(MAX)) == [[1, 2]]
    assert values_of(harness.move_clock(200)) == []


def test_processing_time_window_emits_at_once_in_its_last_millisecond() -> None:
    """A record after the window's end emits immediately, and only once."""
    harness = harness_of(TumblingWindows(100), time="processing")

    harness.move_clock(99)

    assert values_of(harness.feed(("a", 1))) == [[1]]
    assert values_of(harness.move_clock(500)) == []
    assert harness.snapshot()["keys"] == []


def test_processing_time_windows_are_never_late() -> None:
    """Watermarks and timestamps do not matter there."""
    harness = harness_of(TumblingWindows(100), time="processing")

    harness.watermark(MAX)
    harness.feed(("a", 1, 5), ("a", 2, None))

    assert values_of(harness.move_clock(99)) == [[1, 2]]


def test_event_time_window_with_a_processing_time_trigger_ends_by_the_watermark() -> None:
    """Its records and its timer are deleted."""
    harness = harness_of(TumblingWindows(100), ProcessingTimeTrigger())

    harness.feed(("a", 1, 5), ("b", 2, 150))
    harness.watermark(99)

    assert values_of(harness.move_clock(1000)) == [[2]]


def test_delta_trigger_emits_above_its_threshold() -> None:
    """A difference equal to the threshold does not emit; it is taken to the record that emitted last."""
    harness = harness_of(GlobalWindows(), Purging(Delta(5, lambda old, new: abs(new - old))))

    assert values_of(harness.feed(("a", 0, 1), ("a", 5, 2), ("a", -5, 3))) == []
    harness.restart()
    assert values_of(harness.feed(("a", 6, 4))) == [[0, 5, -5, 6]]
    assert values_of(harness.feed(("a", 1, 5), ("a", 12, 6))) == [[1, 12]]


def test_global_window_without_trigger_emits_nothing() -> None:
    """It keeps all records."""
    harness = harness_of(GlobalWindows())

    harness.feed(("a", 1, 5))

    assert harness.end_of_input() == Emissions()
    assert harness.snapshot()["keys"] != []


def test_end_of_stream_windows_emit_when_the_input_has_ended() -> None:
    """Records need no timestamp."""
    harness = harness_of(EndOfStreamWindows())

    harness.feed(("a", 1), ("a", 2, 7))

    assert harness.watermark(MAX - 1).results == []
    assert values_of(harness.end_of_input()) == [[1, 2]]


class _AtThousands:
    """A custom trigger that fires at each full thousand of the watermark, and not at the end."""

    mergeable = True

    def on_element(self, value: Any, timestamp_ms: int | None, context: TriggerContext) -> TriggerResult:  # noqa: ARG002
        if context.state:
            context.delete_event_timer(context.state)
        context.state = context.watermark_ms // 1000 * 1000 + 1000
        context.register_event_timer(context.state)
        return TriggerResult.PURGE if value == "purge" else TriggerResult.CONTINUE

    def on_event_time(self, time_ms: int, context: TriggerContext) -> TriggerResult:  # noqa: ARG002
        return TriggerResult.FIRE

    def on_processing_time(self, time_ms: int, context: TriggerContext) -> TriggerResult:  # noqa: ARG002
        raise AssertionError

    def on_merge(self, states: Sequence[Any], context: TriggerContext) -> None:
        assert context.state is None
        context.state = max(states)
        context.register_event_timer(context.state)


class _AtRecords:
    """A custom trigger that fires at each record, and says nothing about windows that merge."""

    def on_element(self, *_: Any) -> TriggerResult:
        return TriggerResult.FIRE

    def on_event_time(self, *_: Any) -> TriggerResult:
        return TriggerResult.CONTINUE

    on_processing_time = on_event_time


class _Mergeable(_AtRecords):
    mergeable = True


@pytest.mark.parametrize("wrap", [lambda trigger: trigger, Purging])
@pytest.mark.parametrize("trigger", [_AtRecords(), _Mergeable()])
def test_custom_trigger_without_what_a_merge_needs_is_refused_for_sessions(wrap: Any, trigger: Any) -> None:
    """It is one that does not merge, as in Flink; other windows take it."""
    with pytest.raises(InvalidWindowError, match="one of your own says mergeable = True and has on_merge"):
        harness_of(SessionWindows(10_000), wrap(trigger))

    assert values_of(harness_of(TumblingWindows(10_000), wrap(trigger)).feed(("a", 1, 500))) == [[1]]


def test_custom_trigger_decides_by_its_own_timers() -> None:
    """Deleted timers do not fire, a purge clears the window, and a merge calls the trigger."""
    harness = harness_of(SessionWindows(10_000), _AtThousands())

    harness.watermark(100)
    harness.feed(("a", 1, 500), ("a", "purge", 500))
    assert values_of(harness.watermark(1000)) == []
    harness.feed(("a", 2, 9000))
    harness.restart()
    assert values_of(harness.watermark(3000)) == [[2]]
    assert values_of(harness.end_of_input()) == []
