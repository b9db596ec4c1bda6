"""Columnar windows give the results of windows that process single records, for any batches."""

from __future__ import annotations

import ast
import itertools
import random
from collections import Counter
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flowcore.elements import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS, RecordAttributes
from flowcore.keyed.operator import KeyGroup, KeyGroupOperator, StepOutputs
from flowcore.testing.harness import WindowHarness
from flowcore.windows import (
    CountEvictor,
    DynamicSessionWindows,
    SessionWindows,
    SlidingWindows,
    TimeEvictor,
    TumblingWindows,
    WindowAggregate,
    WindowAssigner,
    WindowConfig,
    WindowContext,
    WindowProcess,
)
from flowcore.windows.built_in import BuiltIn, BuiltIns
from flowcore.windows.columnar.keyed import ColumnarWindows
from flowcore.windows.columnar.sessions import find_runs
from flowcore.windows.keyed import RecordWindows
from flowcore.windows.triggers import (
    ContinuousEventTime,
    ContinuousProcessingTime,
    Count,
    Purging,
)

ROWS = pa.schema(
    [
        ("user", pa.string()),
        ("site", pa.int32()),
        ("t", pa.int64()),
        ("v", pa.int64()),
        ("x", pa.float64()),
        ("ok", pa.bool_()),
    ]
)
AGGREGATES = (
    ("records", BuiltIn("count")),
    ("known", BuiltIn("count", ("v",))),
    ("total", BuiltIn("sum", ("v",))),
    ("least", BuiltIn("min", ("v",))),
    ("most", BuiltIn("max", ("v",))),
    ("mean", BuiltIn("avg", ("v",))),
    ("least_x", BuiltIn("min", ("x",))),
    ("most_x", BuiltIn("max", ("x",))),
    ("sum_x", BuiltIn("sum", ("x",))),
    ("good", BuiltIn("count_if", ("ok",))),
    ("all_good", BuiltIn("bool_and", ("ok",))),
    ("any_good", BuiltIn("bool_or", ("ok",))),
)
INFINITY, NAN = float("inf"), float("nan")

Row = tuple[str | None, int, int, int | None, float | None, bool | None]
Step = tuple[str, Any]

ends_of_time = st.sampled_from(
    [MIN_TIMESTAMP_MS, MIN_TIMESTAMP_MS + 1, MAX_TIMESTAMP_MS - 1, MAX_TIMESTAMP_MS]
)
near = st.integers(-8, 16)
times = st.one_of(near, near, near, ends_of_time)
rows = st.tuples(
    st.sampled_from(["a", "b", None]),
    st.integers(0, 1),
    times,
    st.none() | st.integers(-3, 3),
    st.none() | st.sampled_from([-1.5, 0.0, 2.0, INFINITY, NAN]),
    st.none() | st.booleans(),
)
finite_rows = st.tuples(
    st.sampled_from(["a", None]), st.just(0), near, st.none() | st.integers(1, 3), st.just(1.0), st.none()
)
steps: st.SearchStrategy[list[Step]] = st.lists(
    st.one_of(
        st.tuples(st.just("in"), st.lists(rows, min_size=1, max_size=6)),
        st.tuples(st.just("in"), st.lists(rows, min_size=1, max_size=6)),
        st.tuples(st.just("watermark"), st.one_of(near, near, near, ends_of_time)),
        st.tuples(st.sampled_from(["delta", "snapshot", "elsewhere"]), st.none()),
    ),
    max_size=16,
)
steps_of_both_clocks: st.SearchStrategy[list[Step]] = st.lists(
    st.one_of(
        st.tuples(st.just("in"), st.lists(finite_rows, min_size=1, max_size=4)),
        st.tuples(st.just("watermark"), near | st.just(MAX_TIMESTAMP_MS)),
        st.tuples(st.just("clock"), st.integers(0, 20)),
        st.tuples(st.just("backlog"), st.booleans()),
        st.tuples(st.sampled_from(["delta", "snapshot", "elsewhere"]), st.none()),
    ),
    max_size=16,
)


@st.composite
def configs(draw: st.DrawFn) -> WindowConfig:
    """Tumbling or sliding windows small enough for several records in one."""
    size = draw(st.integers(1, 6))
    offset = draw(st.integers(-15, 15))
    assigner: WindowAssigner = draw(
        st.sampled_from(
            [
                SessionWindows(size),
                TumblingWindows(size, offset),
                SlidingWindows(size, draw(st.integers(min(2, size), size)), offset),
            ]
        )
    )
    return WindowConfig(
        assigner=assigner,
        function=WindowAggregate(BuiltIns(AGGREGATES)),
        allowed_lateness_ms=draw(st.sampled_from([0, 0, 1, 4, 9])),
        late=draw(st.sampled_from(["side-output", "drop"])),
    )


class Restarted:
    """A key group that is restored at chosen steps."""

    def __init__(self, operator: KeyGroupOperator) -> None:
        self.operator = operator
        self.group: KeyGroup = self.operator.open()
        self.other: KeyGroup = self.operator.open()  # a worker that hears of deltas only
        self.pieces: list[bytes] = []
        self.heard = 0

    def step(self, action: str, argument: Any) -> StepOutputs:
        out = StepOutputs()
        match action:
            case "in":
                self.group.rows(batch(argument), out)
            case "watermark":
                if argument > self.group.header()["watermark_ms"]:
                    self.group.advance_watermark(argument, out)
            case "clock":
                self.group.advance_processing_time(argument, out)
            case "backlog":
                self.group.attributes(RecordAttributes(argument), out)
            case "delta":
                self._write()
                self.group = self.operator.open()
                self.group.restore(self._header, iter(self.pieces))
            case "snapshot":
                self.pieces, self.heard = list(self.group.snapshot()), 0
                self.other = self.operator.open()
            case "elsewhere":
                self._write()
                self.other.restore(self._header, islice(self.pieces, self.heard, None))
                self.heard = len(self.pieces)
                self.group, self.other = self.other, self.group
                self.other = self.operator.open()
                self.heard = 0
        return out

    def _write(self) -> None:
        delta = self.group.delta()
        self.pieces += [delta] if delta is not None else []
        self._header = self.group.header()


def batch(given: list[Row]) -> pa.RecordBatch:
    columns = list(zip(*given, strict=True))
    return pa.record_batch(
        [pa.array(values, field.type) for values, field in zip(columns, ROWS, strict=True)], schema=ROWS
    )


def shown(value: Any) -> str:
    return repr(value)


def by_column(out: StepOutputs) -> tuple[Counter[str], Counter[str], int]:
    results, late = Counter[str](), Counter[str]()
    for output, rows in out.batches:
        for row in rows.to_pylist():
            (results if output == "results" else late)[shown(list(row.values()))] += 1
    return results, late, out.counters.get("dropped_records", 0)


def by_record(harness: WindowHarness, action: str, argument: Any) -> tuple[Counter[str], Counter[str], int]:
    match action:
        case "in":
            seen = harness.feed(
                *(
                    ((user, site), dict(zip(ROWS.names, (user, site, t, *rest), strict=True)), t)
                    for user, site, t, *rest in argument
                )
            )
        case "watermark":
            seen = harness.watermark(argument)
        case "clock":
            seen = harness.move_clock(argument)
        case _:
            if action == "backlog":
                harness.backlog(backlog=argument)
            return Counter(), Counter(), 0
    results = Counter(
        shown(
            [
                *result.key,
                *result.value.values(),
                result.window_start_ms,
                result.window_end_ms,
                result.timestamp_ms,
                result.firing,
                result.is_late,
            ]
        )
        for result in seen.results
    )
    late = Counter(shown([record.value[name] for name in ("user", "site", "v", "t")]) for record in seen.late)
    return results, late, seen.dropped_records


OF_ONE_MS = WindowConfig(
    assigner=SessionWindows(1), function=WindowAggregate(BuiltIns(AGGREGATES)), late="side-output"
)
FROM_END_TO_END: list[Step] = [
    ("in", [("a", 0, MAX_TIMESTAMP_MS, 1, None, None), ("a", 0, MIN_TIMESTAMP_MS, 1, None, None)])
]
LARGE: list[Step] = [("in", [("a", 0, 1, 2**62, None, None)] * 3), ("watermark", 8)]
LARGE += [*LARGE, ("elsewhere", None), *LARGE]
"""Sums above 64 bits, also in firings for late records, and after a restart."""


def _of_large(assigner: WindowAssigner) -> WindowConfig:
    function = WindowAggregate(BuiltIns(AGGREGATES))
    return WindowConfig(assigner=assigner, function=function, allowed_lateness_ms=9)


@example(_of_large(TumblingWindows(5)), LARGE)
@example(_of_large(SlidingWindows(6, 3)), LARGE)
@example(_of_large(SessionWindows(4)), LARGE)
@example(OF_ONE_MS, FROM_END_TO_END)
@settings(max_examples=300, deadline=None)
@given(configs(), steps)
def test_windows_by_column_are_windows_by_record(config: WindowConfig, taken: list[Step]) -> None:
    """The same results, late and dropped records in each step, also after a restore."""
    assert (
        ColumnarWindows.refusal(config, {field.name: field.type for field in ROWS}, latest_only=False) is None
    )
    operator = ColumnarWindows(
        config=config, keys=("user", "site"), timestamp="t", rows=ROWS, late=("user", "site", "v", "t")
    )
    columns, records = Restarted(operator), WindowHarness(config)

    for action, argument in taken:
        expected = by_record(records, action, argument)

        assert by_column(columns.step(action, argument)) == expected


def test_records_of_both_ends_of_time_make_no_session_together() -> None:
    """A record that may be late stays alone, also where a difference of times overflows 64 bits."""
    order, begins = find_runs(
        np.array([0, 0]),
        np.array([MAX_TIMESTAMP_MS - 1, MIN_TIMESTAMP_MS]),
        np.array([False, True]),
        gap_ms=2,
    )

    assert (order.tolist(), begins.tolist()) == ([0, 1], [0, 1])


@pytest.mark.parametrize("lateness_ms", [0, 9])
def test_many_sessions_of_many_keys_come_and_go(lateness_ms: int) -> None:
    """Places are reused, a key has several sessions, and the state is restored while it has."""
    chance = random.Random(5)  # noqa: S311
    config = WindowConfig(
        assigner=SessionWindows(3),
        function=WindowAggregate(BuiltIns(AGGREGATES)),
        allowed_lateness_ms=lateness_ms,
        late="side-output",
    )
    operator = ColumnarWindows(
        config=config, keys=("user", "site"), timestamp="t", rows=ROWS, late=("user", "site", "v", "t")
    )
    columns, records = Restarted(operator), WindowHarness(config)
    again = itertools.cycle(["delta", "none", "snapshot", "elsewhere", "none"])
    for now_ms in range(0, 100, 4):
        came: list[Row] = [
            (f"user {chance.randrange(60)}", 0, now_ms + chance.randint(-12, 25), 1, None, None)
            for _ in range(150)
        ]
        for action, argument in (("in", came), ("watermark", now_ms), (next(again), None)):
            expected = by_record(records, action, argument)

            assert by_column(columns.step(action, argument)) == expected


class Values:
    """Every value, and the number of firings of the key's windows; negative in backlog."""

    def process(self, context: WindowContext, values: Any, /) -> list[dict[str, Any]]:
        seen = context.key_state["seen"] = context.key_state.get("seen", 0) + 1
        shown = -seen if context.is_backlog else seen
        return [{"values": [value["v"] for value in values], "seen": shown}, {"values": None, "seen": seen}]

    def clear(self, context: WindowContext, /) -> None:
        if context.key_state.get("seen", 0) > 3:
            context.key_state.clear()


@st.composite
def configs_by_record(draw: st.DrawFn) -> WindowConfig:
    """Windows of any kind, by event time or processing time."""
    size = draw(st.integers(2, 6))
    sessions = DynamicSessionWindows(lambda _key, value: abs(value["v"] or size))
    assigner: WindowAssigner = draw(
        st.sampled_from([TumblingWindows(size), SlidingWindows(size, 1), SessionWindows(size), sessions])
    )
    triggers = [None, Count(2), Purging(Count(3)), ContinuousEventTime(3), ContinuousProcessingTime(3)]
    evictors = [None, CountEvictor(2), TimeEvictor(3, after=True)]
    return WindowConfig(
        assigner=assigner,
        function=WindowProcess(Values()),
        time=draw(st.sampled_from(["event", "event", "processing"])),
        trigger=draw(st.sampled_from(triggers)),
        evictor=draw(st.sampled_from(evictors)),
        allowed_lateness_ms=draw(st.sampled_from([0, 3])),
        late="side-output",
    )


@settings(max_examples=200, deadline=None)
@given(configs_by_record(), steps_of_both_clocks)
def test_windows_by_record_continue_in_another_worker(config: WindowConfig, taken: list[Step]) -> None:
    """Triggers, evictors and a function with state, restored at any point."""
    results = pa.schema([pa.field("values", pa.list_(pa.int64())), pa.field("seen", pa.int64())])
    operator = RecordWindows(
        name="windows", config=config, keys=("user", "site"), key_of=lambda key: key,
        values=tuple(ROWS.names), timestamp="t", rows=ROWS, results=results, late=("user", "site", "v", "t"),
    )  # fmt: skip
    group, records = Restarted(operator), WindowHarness(config)

    for action, argument in taken:
        expected = by_record(records, action, argument)
        found, late, dropped = by_column(group.step(action, argument))

        without_place = Counter(repr(ast.literal_eval(row)[:-1]) for row in found.elements())
        assert (without_place, late, dropped) == expected
