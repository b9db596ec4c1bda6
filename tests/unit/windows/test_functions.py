"""Functions of windows keep state, and what they change reaches no other window."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest

from flowcore.errors import StateError
from flowcore.testing.window_functions import Sum
from flowcore.windows import (
    CountEvictor,
    Emissions,
    SessionWindows,
    SlidingWindows,
    TumblingWindows,
    WindowAggregate,
    WindowContext,
    WindowProcess,
    WindowReduce,
)
from flowcore.windows.functions import PlainProcess
from flowcore.windows.triggers import Count
from tests.unit.windows.harnesses import harness_of, values_of


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
