"""Windows by processing time: the clock of a machine can go back, processing time cannot."""

from __future__ import annotations

import pytest

from flowcore.testing.harness import WindowHarness
from flowcore.testing.window_functions import Sum
from flowcore.windows import (
    KeyedRecord,
    SessionWindows,
    TumblingWindows,
    WindowAggregate,
    WindowConfig,
    WindowOperator,
    WindowState,
)
from flowcore.windows.codec import decode_windows, encode_windows
from flowcore.windows.panes import copy_key

SECONDS = WindowConfig(assigner=TumblingWindows(1_000), function=WindowAggregate(Sum()), time="processing")
SESSIONS = WindowConfig(assigner=SessionWindows(100), function=WindowAggregate(Sum()), time="processing")


@pytest.mark.parametrize("restarts", [False, True], ids=["in one run", "over a restart"])
def test_closed_window_does_not_fire_again_when_the_clock_goes_back(restarts: bool) -> None:
    """A record that arrives at an earlier time of the clock belongs to the current window."""
    operator, state = WindowOperator(SECONDS), WindowState()
    operator.advance_processing_time(state, 500)
    operator.process(state, [KeyedRecord("a", 1, None)])
    (first,) = operator.advance_processing_time(state, 1_000).results
    if restarts:
        written, state = (
            encode_windows(state.keys, state),
            WindowState(processing_time_ms=state.processing_time_ms),
        )
        decode_windows(written, state, SECONDS)

    assert not operator.advance_processing_time(state, 400).results
    operator.process(state, [KeyedRecord("a", 2, None)])
    assert not operator.advance_processing_time(state, 999).results
    (second,) = operator.advance_processing_time(state, 2_000).results

    assert [(each.window_start_ms, each.value) for each in (first, second)] == [(0, 1), (1_000, 2)]


@pytest.mark.parametrize(
    ("config", "last_ms"), [(SECONDS, 999), (SESSIONS, 599)], ids=["tumbling", "session"]
)
@pytest.mark.parametrize("restarts", [False, True], ids=["in one run", "over a restart"])
def test_window_that_fired_in_its_last_millisecond_goes_on(
    config: WindowConfig, last_ms: int, restarts: bool
) -> None:
    """Begun anew, it would emit another value under the same record id."""
    harness = WindowHarness(config)
    harness.move_clock(500)
    harness.feed(("a", 1))
    harness.move_clock(last_ms)
    if restarts:
        harness.restart()
    harness.feed(("a", 10))
    harness.move_clock(5_000)

    ids = [(each.window_start_ms, each.window_end_ms, each.firing) for each in harness.results]
    assert [each.value for each in harness.results] == [1, 11]
    assert len(ids) == len(set(ids))
    assert not harness.snapshot()["keys"]


def test_copy_of_a_key_keeps_its_processing_timers_when_the_key_changes() -> None:
    """The copy is what a failing call is rolled back to."""
    operator, state = WindowOperator(SESSIONS), WindowState()
    operator.advance_processing_time(state, 0)
    operator.process(state, [KeyedRecord("a", 1, None)])
    before = copy_key(state.keys["a"], SESSIONS)
    timers = [set(pane.processing_timers) for pane in before.panes.values()]

    operator.advance_processing_time(state, 50)
    operator.process(state, [KeyedRecord("a", 2, None)])

    assert any(timers)
    assert [pane.processing_timers for pane in before.panes.values()] == timers
