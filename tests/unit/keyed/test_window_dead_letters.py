"""A failing call of a window's function or trigger is rolled back, and its input becomes a dead letter."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowcore.errors import FunctionError
from flowcore.keyed.dead_letters import DEAD_LETTERS
from flowcore.keyed.runtime import StepResult
from flowcore.keyed.state_cache import StateCache
from flowcore.testing.memory_store import MemoryStore
from flowcore.windows import (
    CountEvictor,
    SessionWindows,
    SlidingWindows,
    TumblingWindows,
    WindowAggregate,
    WindowConfig,
    WindowProcess,
    WindowReduce,
)
from flowcore.windows.functions import PlainProcess
from flowcore.windows.triggers import Count, EventTimeTrigger, TriggerResult
from tests.unit.keyed.stored_group import read_state
from tests.unit.keyed.test_dead_letters import (
    Gathered,
    left,
    packed,
    row,
    runtime,
    seen,
    windows,
)


class Fussy:
    """A trigger that raises for some records and times, after all possible changes."""

    mergeable = True

    def __init__(self, every: int | None = None) -> None:
        self.inner = Count(every) if every else EventTimeTrigger()

    def on_element(self, value: Any, timestamp_ms: int | None, context: Any) -> TriggerResult:
        found = self.inner.on_element(value, timestamp_ms, context)
        if value["number"] == -3:
            context.register_event_timer(7)
            context.register_processing_timer(3)
            raise ValueError
        return found

    def on_event_time(self, time_ms: int, context: Any) -> TriggerResult:
        return self.inner.on_event_time(time_ms, context)

    def on_processing_time(self, time_ms: int, context: Any) -> TriggerResult:
        return self.inner.on_processing_time(time_ms, context)

    def on_merge(self, kept: Sequence[Any], context: Any) -> None:
        self.inner.on_merge(kept, context)


def reduced(kept: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    if new["number"] == -1:
        raise ValueError
    return {**kept, "number": kept["number"] + new["number"]}


CONFIGS = {
    "gathered": lambda: WindowConfig(assigner=SlidingWindows(6, 3), function=WindowAggregate(Gathered())),
    "reduced": lambda: WindowConfig(
        assigner=TumblingWindows(5), function=WindowReduce(reduced), allowed_lateness_ms=20, trigger=Fussy()
    ),
    "sessions": lambda: WindowConfig(
        assigner=SessionWindows(4), function=WindowAggregate(Gathered()), late="side-output", trigger=Fussy(),
        allowed_lateness_ms=2,
    ),
    "counted": lambda: WindowConfig(
        assigner=SlidingWindows(6, 3), trigger=Fussy(2), evictor=CountEvictor(3),
        function=WindowProcess(PlainProcess(lambda _, values: [list(values)])),
    ),
}  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(CONFIGS)),
    st.lists(
        st.lists(
            st.tuples(st.sampled_from("ab"), st.integers(0, 40), st.integers(-3, 4)), min_size=1, max_size=6
        ),
        max_size=8,
    ),
)
def test_record_whose_window_call_raises_is_rolled_back(config: str, steps: Any) -> None:
    """Folds, merges and triggers may raise; the dead letters name the records."""
    store, remembered, good_store, good_remembered = MemoryStore(), StateCache(), MemoryStore(), StateCache()
    task, good_task = (runtime(windows(CONFIGS[config]())) for _ in range(2))
    for clock, given_rows in enumerate(steps):
        rows = [row(u, t, "", n, place) for place, (u, t, n) in enumerate(given_rows)]
        rows.append(row("c", max(t for _, t, _ in given_rows), "", 0, -1))  # both know how far time has come
        stepped = task.step(0, packed(rows), clock, store, remembered)
        bad = {each["offset"] for each in left(stepped)}
        assert {each for each in bad if each is not None} == bad
        good = [each for each in rows if each[6] not in bad]

        expected = good_task.step(0, packed(good), clock, good_store, good_remembered)

        assert seen_by_windows(stepped) == seen_by_windows(expected)
        assert not left(expected)
        if config in ("reduced", "counted"):
            assert all(rows[place][3] < 0 for place in bad)


def seen_by_windows(stepped: StepResult) -> Counter[Any]:
    return Counter(
        (
            output,
            *(str(each.get(name)) for name in ("user", "number", "seen", "@start_ms", "@firing", "@is_late")),
        )
        for output, batch in stepped.outputs.batches
        if output != DEAD_LETTERS
        for each in batch.to_pylist()
    )


def picky(context: Any, values: Sequence[Mapping[str, Any]]) -> list[Any]:
    numbers = [each["number"] for each in values]
    context.key_state["n"] = context.key_state.get("n", 0) + 1
    context.window_state["n"] = context.window_state.get("n", 0) + 1
    for each in values:
        each["number"] += 100  # type: ignore[index]
    if len(numbers) == 2:
        raise ValueError(numbers)
    return [[numbers, context.firing, context.key_state["n"], context.window_state["n"]]]


def test_a_window_that_cannot_fire_becomes_a_dead_letter_and_keeps_its_records() -> None:
    """A later record can make the window emit again."""
    config = WindowConfig(
        assigner=TumblingWindows(10), function=WindowProcess(PlainProcess(picky)), allowed_lateness_ms=50
    )
    store, remembered, task = MemoryStore(), StateCache(), runtime(windows(config))
    first = task.step(
        0, packed([row("a", 1, "x", 1), row("a", 2, "x", 2), row("b", 20, "x", 0)]), 0, store, remembered
    )

    (dead_letter,) = left(first)
    assert json.loads(dead_letter["@content"]) == {
        "key": {"user": "a"}, "window_start_ms": 0, "window_end_ms": 10, "firing": 1,
        "values": [{"do": "x", "number": 1}, {"do": "x", "number": 2}],
    }  # fmt: skip
    assert dead_letter["@reason"] == (
        "operator 'watch': its function raised ValueError: [1, 2] for key 'a', window from 0 to 10 ms"
    )
    second = task.step(0, packed([row("a", 3, "x", 3)]), 0, store, remembered)
    assert [json.loads(each[1]) for each in seen(second)] == [[[1, 2, 3], 1, 1, 1]]
    assert not left(second)


class Late(Fussy):
    """A trigger that raises when the window is complete."""

    def on_event_time(self, time_ms: int, context: Any) -> TriggerResult:
        context.state = {"asked": time_ms}
        context.register_event_timer(time_ms + 1)
        raise KeyError(time_ms)


class Untidy:
    """A process function that raises when it clears its state."""

    def process(self, _context: Any, values: Sequence[Any]) -> list[Any]:
        return [len(values)]

    def clear(self, context: Any) -> None:
        context.key_state["n"] = 1
        raise RuntimeError


def test_a_trigger_or_a_clearing_that_fails_becomes_a_dead_letter() -> None:
    """The window is deleted at its end nevertheless."""
    reasons = []
    for config in (
        WindowConfig(assigner=TumblingWindows(10), function=WindowAggregate(Gathered()), trigger=Late()),
        WindowConfig(assigner=TumblingWindows(10), function=WindowProcess(Untidy())),
    ):
        store, task = MemoryStore(), runtime(windows(config))
        stepped = task.step(0, packed([row("a", 1, "", 5), row("b", 30, "", 6)]), 0, store, StateCache())
        (dead_letter,) = left(stepped)
        reasons.append(dead_letter["@reason"])
        assert json.loads(dead_letter["@content"])["window_end_ms"] == 10
        assert json.loads(dead_letter["@content"])["values"] in ([[5]], [{"do": "", "number": 5}])
        _, group = read_state(task, store)
        (piece,) = group.snapshot()
        assert [each["key"] for each in json.loads(piece[1:])["keys"]] == ["b"]
    assert (
        reasons[0] == "operator 'watch': its function raised KeyError: 9 for key 'a', window from 0 to 10 ms"
    )
    assert (
        reasons[1] == "operator 'watch': its function raised RuntimeError for key 'a', window from 0 to 10 ms"
    )


def test_trigger_that_raises_at_its_timer_is_not_called_again() -> None:
    """Its changes and timers are rolled back, and the window is kept."""
    config = WindowConfig(
        assigner=TumblingWindows(10),
        function=WindowAggregate(Gathered()),
        trigger=Late(),
        allowed_lateness_ms=90,
    )
    store, remembered, task = MemoryStore(), StateCache(), runtime(windows(config))
    stepped = task.step(0, packed([row("a", 1, "", 5), row("b", 30, "", 6)]), 0, store, remembered)
    later = task.step(0, packed([row("b", 31, "", 6)]), 0, store, remembered)
    assert [len(left(each)) for each in (stepped, later)] == [1, 0]


def test_windows_that_stop_name_key_and_record_or_window() -> None:
    """Without dead letters the error names them."""
    config = WindowConfig(assigner=TumblingWindows(10), function=WindowReduce(reduced))
    with pytest.raises(FunctionError, match=r"ValueError for key 'a', record \{'do': '', 'number': -1\}"):
        runtime(windows(config, None)).step(
            0, packed([row("a", 1, "", 5), row("a", 1, "", -1)]), 0, MemoryStore(), StateCache()
        )
    config = WindowConfig(assigner=TumblingWindows(10), function=WindowProcess(PlainProcess(picky)))
    with pytest.raises(FunctionError, match=r"ValueError: \[5, 6\] for key 'a', window from 0 to 10 ms"):
        runtime(windows(config, None)).step(
            0,
            packed([row("a", 1, "", 5), row("a", 1, "", 6), row("a", 30, "", 6)]),
            0,
            MemoryStore(),
            StateCache(),
        )


def test_a_large_window_becomes_several_dead_letters() -> None:
    """Each dead letter is at most a megabyte."""
    config = WindowConfig(assigner=TumblingWindows(10), function=WindowProcess(PlainProcess(picky)))
    rows = [row("a", 1, "x" * 600_000, 1), row("a", 1, "y" * 600_000, 2), row("b", 30, "", 0)]
    found = left(runtime(windows(config)).step(0, packed(rows), 0, MemoryStore(), StateCache()))
    assert [json.loads(each["@content"])["values"][0]["do"][0] for each in found] == ["x", "y"]
