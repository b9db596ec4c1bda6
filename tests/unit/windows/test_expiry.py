"""Windows that never end, with a time to live: a key is removed after it, and begins anew."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowcore.errors import InvalidWindowError
from flowcore.keyed.state_cache import StateCache
from flowcore.testing.harness import WindowHarness
from flowcore.testing.memory_store import MemoryStore
from flowcore.testing.window_functions import CollectList, Sum
from flowcore.windows import (
    EndOfStreamWindows,
    GlobalWindows,
    TumblingWindows,
    WindowAggregate,
    WindowConfig,
    WindowProcess,
)
from flowcore.windows.codec import window_state_layout
from flowcore.windows.triggers import ContinuousProcessingTime, Count, Trigger
from flowcore.windows.window import ALL_TIME
from tests.unit.keyed.test_inspection import inspected
from tests.unit.keyed.test_runtime import by_record, results, rows, runtime_of
from tests.unit.keyed.test_runtime import windows as totals_of

TTL_MS = 100


def harness(trigger: Trigger | None = None, ttl_ms: int | None = TTL_MS) -> WindowHarness:
    return WindowHarness(
        WindowConfig(
            assigner=GlobalWindows(),
            function=WindowAggregate(Sum()),
            trigger=trigger or Count(1),
            ttl_ms=ttl_ms,
        )
    )


def values(seen: Iterable[Any]) -> list[tuple[str, int]]:
    return [(each.key, each.value) for each in seen]


@pytest.mark.parametrize("restarts", [False, True], ids=["in one run", "over a restart"])
def test_key_expires_its_time_to_live_after_its_last_record(restarts: bool) -> None:
    """Each record begins the time anew; at its end the key has gone."""
    windows = harness()
    windows.feed(("a", 1), ("b", 10))
    windows.move_clock(60)
    windows.feed(("a", 2))
    if restarts:
        windows.restart()
    windows.move_clock(159)
    assert set(windows._state.keys) == {"a"}

    windows.move_clock(160)

    assert not windows._state.keys
    assert windows._state.processing_timers.next_ms is None
    assert values(windows.feed(("a", 4)).results) == [("a", 4)]


@pytest.mark.parametrize("restarts", [False, True], ids=["in one run", "over a restart"])
def test_key_fires_before_it_expires_also_if_the_clock_passes_both_at_once(restarts: bool) -> None:
    windows = harness(ContinuousProcessingTime(140))
    windows.feed(("a", 1))
    windows.move_clock(50)
    windows.feed(("a", 2))  # expires at 150
    if restarts:
        windows.restart()

    assert values(windows.move_clock(300).results) == [("a", 3)]
    assert not windows._state.keys


def test_key_that_begins_anew_has_another_start() -> None:
    """Its firings count from 1 again, and record ids are made of start and firing."""
    windows = harness()
    windows.move_clock(7)
    first = windows.feed(("a", 1, 30), ("a", 2, 20)).results
    windows.move_clock(107)
    (second,) = windows.feed(("a", 4)).results

    assert [(each.window_start_ms, each.firing) for each in (*first, second)] == [(7, 1), (7, 2), (107, 1)]
    assert [each.timestamp_ms for each in (*first, second)] == [30, 30, None]


def test_timers_of_an_expired_key_do_not_fire() -> None:
    """A trigger's timer after the end finds nothing; one before it fires."""
    windows = harness(ContinuousProcessingTime(80))
    windows.move_clock(1)
    windows.feed(("a", 1))

    assert values(windows.move_clock(1_000).results) == [("a", 1)]
    assert not windows._state.keys


def test_state_that_a_function_keeps_of_the_key_expires_too() -> None:
    """It would be kept for ever otherwise."""
    cleared: list[object] = []

    class Counting(CollectList):
        def process(self, context: Any, values: Any) -> Any:
            context.key_state["seen"] = len(values)
            return [len(values)]

        def clear(self, context: Any) -> None:
            cleared.append(context.key)

    config = WindowConfig(
        assigner=GlobalWindows(), function=WindowProcess(Counting()), trigger=Count(1), ttl_ms=TTL_MS
    )
    windows = WindowHarness(config)
    windows.feed(("a", 1))
    windows.move_clock(TTL_MS)

    assert (windows._state.keys, cleared) == ({}, ["a"])


@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from("ab"), st.integers(1, 3)),
            st.tuples(st.just("clock"), st.integers(1, 2 * TTL_MS)),
            st.tuples(st.just("restart"), st.just(0)),
        ),
        max_size=20,
    )
)
def test_results_are_those_of_a_dict_with_times(script: list[tuple[str, int]]) -> None:
    """The oracle looks at the time of a key's last record when the next one arrives."""
    windows, expected, kept, now_ms = harness(), [], {}, 0
    for what, number in script:
        if what == "clock":
            now_ms += number
            windows.move_clock(now_ms)
        elif what == "restart":
            windows.restart()
        else:
            total, last_ms = kept.get(what, (0, now_ms))
            total = number if now_ms - last_ms >= TTL_MS else total + number
            kept[what] = total, now_ms
            expected.append((what, total))
            windows.feed((what, number))

    assert values(windows.results) == expected


def test_expired_keys_leave_the_store() -> None:
    """The next record of a key starts anew, also in a worker without the key's state."""
    config = totals_of(assigner=GlobalWindows(), trigger=Count(1), ttl_ms=TTL_MS)
    runtime = runtime_of(replace(by_record(config), latest_only=True), strategy=None)
    store = MemoryStore()

    def step(processing_time_ms: int, *batch: tuple[str, int, int]) -> list[tuple[Any, ...]]:
        items = rows(*batch) if batch else []
        return [each[:3] for each in results(runtime.step(0, items, processing_time_ms, store, StateCache()))]

    assert step(1, ("a", 1, 1), ("b", 1, 10), ("a", 1, 2)) == [("a", 2, 3), ("b", 1, 10)]
    assert {key.key["user"] for key in inspected(store).keys or ()} == {"a", "b"}
    assert inspected(store).wake_ms == 1 + TTL_MS
    assert step(1 + TTL_MS) == []
    assert inspected(store).keys == []
    assert inspected(store).wake_ms is None
    assert step(2 + TTL_MS, ("a", 1, 5)) == [("a", 1, 5)]


@pytest.mark.parametrize("assigner", [TumblingWindows(10), EndOfStreamWindows()], ids=repr)
def test_windows_that_end_have_no_time_to_live(assigner: Any) -> None:
    """They would lose records before their end."""
    with pytest.raises(InvalidWindowError, match="removed at their end"):
        WindowConfig(assigner=assigner, function=WindowAggregate(Sum()), ttl_ms=5)
    with pytest.raises(InvalidWindowError, match="ttl=0 is not positive"):
        WindowConfig(assigner=GlobalWindows(), function=WindowAggregate(Sum()), ttl_ms=0)


def _newest(ttl_ms: int | None) -> WindowHarness:
    config = WindowConfig(
        assigner=GlobalWindows(), function=WindowAggregate(Sum()), trigger=Count(1), ttl_ms=ttl_ms,
        newest_timestamp=True,
    )  # fmt: skip
    return WindowHarness(config)


def test_result_may_have_the_time_of_the_newest_record() -> None:
    """Without a time to live the window stays that of all time."""
    windows = _newest(None)

    found = windows.feed(("a", 1, 7_000), ("a", 2, 5_000), ("b", 3, None)).results

    assert [each.timestamp_ms for each in found[:2]] == [7_000, 7_000]
    assert {each.window for each in found} == {ALL_TIME}


def test_time_to_live_may_be_added_and_removed() -> None:
    """A key that was kept without one counts from its last record."""
    kept, expiring, again = _newest(None), _newest(TTL_MS), _newest(None)
    kept.feed(("a", 1, 5))
    assert window_state_layout(kept.config) == window_state_layout(expiring.config)

    expiring._state = kept._state
    expiring.restart()
    expiring.move_clock(TTL_MS - 1)
    assert set(expiring._state.keys) == {"a"}
    expiring.move_clock(TTL_MS)
    assert not expiring._state.keys

    expiring.feed(("a", 1, 5))
    again._state = expiring._state
    again.restart()
    again.move_clock(10 * TTL_MS)
    assert [each.timestamp_ms for each in again.feed(("a", 2, 900)).results] == [900]
