"""Windows with contradictions are refused before the first record."""

from __future__ import annotations

import copy
from datetime import timedelta
from typing import Any

import pytest

from flowcore.errors import InvalidWindowError
from flowcore.windows import (
    CountEvictor,
    GlobalWindows,
    SessionWindows,
    TimeEvictor,
    TumblingWindows,
    WindowConfig,
)
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
from tests.unit.windows.harnesses import LISTS


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"time": "wall"}, "time='wall'"),
        ({"late": "keep"}, "late='keep'"),
        ({"allowed_lateness_ms": -1}, "allowed_lateness=-1 ms is negative"),
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
