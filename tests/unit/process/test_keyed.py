"""Keyed process functions on key groups emit what the harness does, over restarts and repeats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flowcore.elements import RecordAttributes
from flowcore.errors import FunctionError, StateError
from flowcore.flush.buffered import BufferedOperator
from flowcore.flush.config import BufferOutput
from flowcore.flush.operator import FlushBuffers
from flowcore.keyed.control import QUERY, Channel, ControlElement
from flowcore.keyed.operator import StepOutputs
from flowcore.keyed.output_columns import RESULTS, TIMESTAMP
from flowcore.keyed.packed import Packed
from flowcore.keyed.runtime import Runtime, StepResult
from flowcore.keyed.state_cache import StateCache
from flowcore.process import KeyedProcessFunction
from flowcore.process.keyed import KeyedProcesses
from flowcore.testing.harness import ProcessHarness
from flowcore.testing.memory_store import MemoryStore
from flowcore.watermarks.progress import WatermarkSource
from flowcore.watermarks.strategies import BoundedOutOfOrderness, WatermarkStrategy
from tests.unit.process.test_oracle import Everything

ROWS = pa.schema(
    [
        ("user", pa.string()),
        ("t", pa.int64()),
        ("do", pa.string()),
        ("number", pa.int64()),
        ("at", pa.int64()),
    ]
)
SEEN = pa.schema([pa.field("seen", pa.string())])
GROUPS = {"a": 0, "b": 0, "c": 1}
STRATEGY = WatermarkStrategy(BoundedOutOfOrderness(0))

Row = tuple[str, int, str, int, int]


class Shown(Everything):
    """Emits all that it can read as text, and some of it to a side output."""

    def process(self, record: Any, context: Any) -> Any:
        if context.is_backlog:
            context.side_output("odd", {"seen": f"{context.key} {record['number']} is backlog"})
        if record["number"] % 2:
            context.side_output("odd", {"seen": f"{context.key} {record['number']} {context.timestamp_ms}"})
        return [{"seen": repr(each)} for each in super().process(record, context) or ()] * 2

    def on_timer(self, time_ms: int, context: Any) -> Any:
        context.side_output("odd", {"seen": f"{context.key} timer {time_ms}"})
        return [{"seen": repr(each)} for each in super().on_timer(time_ms, context) or ()]


class Sums(KeyedProcessFunction):
    """Processes batches."""

    def open(self, context: Any) -> None:
        self.sum = context.value_state("sum", "BIGINT")

    def process_batch(self, keys: Any, batch: pa.RecordBatch, context: Any) -> Iterator[pa.RecordBatch]:
        for place, number in enumerate(batch.column("number").to_pylist()):
            context.key = keys[place]
            self.sum.set(self.sum.get(0) + number)
            context.register_event_timer(number)
            yield pa.record_batch([[f"{keys[place]} {self.sum.get()}"]], names=["seen"])

    def on_timer(self, time_ms: int, context: Any) -> Any:
        return [{"seen": f"{context.key} at {time_ms}: {self.sum.get()}"}]


def processes(function: KeyedProcessFunction, **changed: Any) -> KeyedProcesses:
    configured: dict[str, Any] = {
        "name": "watch", "function": function, "keys": ("user",), "values": ("do", "number"),
        "timestamp": "t", "rows": ROWS, "places": ("at",), "results": SEEN, "side_outputs": {"odd": SEEN},
    }  # fmt: skip
    return KeyedProcesses(**{**configured, **changed})


def runtime(function: KeyedProcessFunction, **changed: Any) -> Runtime:
    return Runtime(
        operator=processes(function, **changed), query="q", key_groups=2,
        sources={"in": WatermarkSource(STRATEGY, ("0",))}, rows=ROWS, smallest_log_bytes=1000,
    )  # fmt: skip


def packed(given_rows: Sequence[Row], group: int, *, backlog: bool | None = None) -> list[Packed]:
    attributes = []
    if backlog is not None:
        element = ControlElement(QUERY, "", "", 0, RecordAttributes(backlog))
        attributes.append(Packed.of_control(Channel(QUERY, ""), elements=[element]))
    if not given_rows:
        return attributes
    channel = Channel("in", "0")
    newest = max(t for _, t, *_ in given_rows)
    mine = [row for row in given_rows if GROUPS[row[0]] == group]
    columns = [list(column) for column in zip(*mine, strict=True)]
    rows = [Packed.of_rows(channel, 0, pa.record_batch(columns, schema=ROWS))] if mine else []
    return [*attributes, *rows, Packed.of_control(channel, {channel: newest})]


def emitted(stepped: StepResult | StepOutputs) -> list[tuple[Any, ...]]:
    """Output, side outputs, timestamp; and the origin: record or timer, and ordinal."""
    out = stepped.outputs if isinstance(stepped, StepResult) else stepped
    return [
        (output, *(row[name] for name in ("seen", "@timestamp_ms", "at", "@timer", "@ordinal")))
        for output, batch in out.batches
        for row in batch.to_pylist()
    ]


DO = ["set", "add", "put", "read", "remove", "clear", "event timer", "clock timer", "no timer"]


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[list[Row], int, int, str, bool, bool | None]]:
    """Steps: records, advance of the clock, worker, failure, new task, and backlog."""
    places = iter(range(1000))
    record = st.tuples(
        st.sampled_from("abc"), st.integers(0, 40), st.sampled_from(DO), st.integers(0, 60),
        st.builds(lambda: next(places)),
    )  # fmt: skip
    fate = st.sampled_from(["done", "done", "done", "failed", "repeated"])
    attributes = st.sampled_from([None, None, True, False])
    step = st.tuples(
        st.lists(record, max_size=5), st.integers(0, 12), st.integers(0, 2), fate, st.booleans(), attributes
    )
    return draw(st.lists(step, max_size=14))


EMPTY_SNAPSHOT = [
    ([], 0, 0, "done", False, None),
    *(([("a", 0, "set", 0, place)], 0, 0, "done", False, None) for place in range(3)),
    ([("a", 0, "add", 0, 3)], 0, 0, "done", False, None),
    ([("a", 0, "clock timer", 1, 4)], 3, 1, "done", False, None),
    ([], 0, 0, "done", False, None),
    ([("a", 0, "clear", 0, 5)], 7, 0, "done", False, None),
    ([], 0, 1, "done", False, None),
]
"""The first worker removes the last key in an empty snapshot; the second still has it cached."""


@settings(max_examples=200, deadline=None)
@given(histories())
@example(EMPTY_SNAPSHOT)
def test_key_groups_emit_what_the_harness_does(history: Any) -> None:
    """This holds for two groups, three workers, failing tasks and repeated batches; record ids are unique."""
    harness = ProcessHarness(Shown(), ["odd"])
    stores = [MemoryStore(), MemoryStore()]
    workers: list[StateCache] = [StateCache() for _ in range(3)]
    tasks = [runtime(Shown()) for _ in workers]
    clock, newest, ids = 0, None, Counter[Any]()

    for given_rows, passed, worker, fate, new, backlog in history:
        clock += passed
        seen = [harness.move_clock(clock)]
        if backlog is not None:
            harness.backlog(backlog=backlog)
        seen.append(harness.feed(*((u, {"do": do, "number": n}, t) for u, t, do, n, _ in given_rows)))
        newest = max([t for _, t, *_ in given_rows] + ([] if newest is None else [newest]), default=None)
        if newest is not None:
            seen.append(harness.watermark(newest - 1))
        expected = Counter(
            (output, result.value["seen"], result.timestamp_ms)
            for each in seen
            for output, results in (("results", each.results), ("side odd", each.side_outputs.get("odd", [])))
            for result in results
        )
        if new:
            tasks[worker] = runtime(Shown())
        found: list[Any] = []
        for group, store in enumerate(stores):
            items = packed(given_rows, group, backlog=backlog)
            first = None
            if fate != "done":
                other, thrown_away = (worker + 1) % 3, store.copy()
                first = emitted(tasks[other].step(group, items, clock, thrown_away, workers[other]))
                if fate == "failed":
                    tasks[other].step(group, [], clock, thrown_away, workers[other])
            mine = emitted(tasks[worker].step(group, items, clock, store, workers[worker]))
            assert first is None or Counter(first) == Counter(mine)
            found += mine
        assert Counter((output, seen, time) for output, seen, time, *_ in found) == expected
        ids.update((output, *identity) for output, _, _, *identity in found)

    assert not ids or max(ids.values()) == 1


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=4), max_size=6))
def test_a_function_of_batches_has_batches(steps: list[list[int]]) -> None:
    """Its outputs have the batch's first record as origin and no timestamp; its timers have one."""
    harness, store = ProcessHarness(Sums(), ["odd"]), MemoryStore()
    place = 0
    for clock, numbers in enumerate(steps):
        rows = [("ab"[n % 2], 2 * clock + n, "", n, place + i) for i, n in enumerate(numbers)]
        seen = harness.feed(*((u, {"number": n}, t) for u, t, _, n, _ in rows))
        texts = [batch["seen"][0].as_py() for batch in seen.batches]
        expected = [("results", text, None, place, None, nth) for nth, text in enumerate(texts)]
        due = harness.watermark(max(t for _, t, *_ in rows) - 1).results
        timers = [(each.value["seen"], each.timestamp_ms) for each in due]

        found = emitted(runtime(Sums()).step(0, packed(rows, 0), clock, store, StateCache()))

        assert found[: len(expected)] == expected
        assert Counter(each[1:3] for each in found[len(expected) :]) == Counter(timers)
        place += len(numbers)


def batch(*given_rows: Row) -> pa.RecordBatch:
    return pa.record_batch([list(column) for column in zip(*given_rows, strict=True)], schema=ROWS)


def test_process_is_woken_by_processing_time_timers_and_expiry() -> None:
    """The earlier of both wakes it; without either there is no wake-up."""
    group = processes(Shown()).open()
    group.advance_processing_time(100, StepOutputs())
    assert group.wake_ms is None
    group.rows(batch(("a", 1, "clock timer", 104, 0), ("a", 1, "put", 1, 1)), StepOutputs())
    assert group.wake_ms == 104
    group.advance_processing_time(105, StepOutputs())
    assert group.wake_ms == 110
    group.advance_processing_time(110, StepOutputs())
    assert group.wake_ms is None
    group.rows(batch(("a", 1, "clock timer", 120, 2), ("a", 1, "no timer", 120, 3)), StepOutputs())
    assert group.wake_ms is None


class Kept(KeyedProcessFunction):
    """Declares the given states."""

    def __init__(self, *states: tuple[str, str]) -> None:
        self.states = states

    def open(self, context: Any) -> None:
        self.kept = [context.value_state(name, kind, ttl=timedelta(1)) for name, kind in self.states]

    def process(self, record: Any, _context: Any) -> list[Any]:
        self.kept[0].set(record["number"])
        return [{"seen": record["do"] or None}, {"unseen": 3}][: 1 + record["number"] // 50]


def test_process_may_add_states_but_not_remove_them() -> None:
    """A state with another type is refused, too."""
    store = MemoryStore()
    runtime(Kept(("n", "BIGINT"))).step(0, packed([("a", 1, "x", 1, 0)], 0), 0, store, StateCache())

    runtime(Kept(("n", "BIGINT"), ("more", "INT"))).step(0, [], 1, store, StateCache())
    with pytest.raises(StateError, match="state 'n' was written as 'value BIGINT with ttl'"):
        runtime(Kept(("n", "STRING"), ("more", "INT"))).step(0, [], 2, store, StateCache())
    with pytest.raises(StateError, match="the function declares 'nothing'"):
        runtime(Kept(("n", "BIGINT"))).step(0, [], 2, store, StateCache())


def test_output_with_other_columns_is_named() -> None:
    """The error shows the record that does not fit, not the first one."""
    with pytest.raises(FunctionError, match=r"operator 'watch': its function emitted \{'unseen': 3\}"):
        processes(Kept(("n", "BIGINT"))).open().rows(batch(("a", 1, "x", 50, 0)), StepOutputs())


def test_state_of_another_version_is_refused() -> None:
    """The error names the version."""
    with pytest.raises(StateError, match="state of version 9, this flowcore reads 1"):
        processes(Shown()).open().restore({}, iter([bytes([9])]))


def test_record_without_columns_is_processed() -> None:
    """A function may use none of the columns."""

    class Counts(KeyedProcessFunction):
        def process(self, record: Any, context: Any) -> list[Any]:
            return [{"seen": f"{context.key} {record}"}]

    out = StepOutputs()
    group = processes(Counts(), keys=("user", "number"), values=()).open()
    group.rows(batch(("a", 1, "x", 5, 0), ("b", 1, "x", 5, 1)), out)
    assert [seen for _, seen, *_ in emitted(out)] == ["('a', 5) {}", "('b', 5) {}"]


class Recorded(KeyedProcessFunction):
    """Records when it is opened and closed, and raises on request."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def open(self, context: Any) -> None:
        self.calls.append("open")
        self.sum = context.value_state("sum", "BIGINT")

    def process(self, record: Any, context: Any) -> Any:
        if record["do"] == "fail":
            raise ValueError(record["number"])
        self.sum.set(self.sum.get(0) + record["number"])
        context.register_event_timer(100)
        return [{"seen": str(self.sum.get())}]

    def on_timer(self, time_ms: int, context: Any) -> Any:  # noqa: ARG002 - a function's signature
        raise KeyError(time_ms)

    def close(self) -> None:
        self.calls.append("close")


def test_a_function_is_opened_once_for_each_task_and_closed_after_it() -> None:
    """The state in a worker's memory is used with the newly opened function."""
    function = Recorded()
    run, store, remembered = runtime(function), MemoryStore(), StateCache()

    run.step(0, packed([("a", 1, "", 1, 0)], 0), 0, store, remembered)
    run.step(0, packed([("a", 2, "", 2, 1)], 0), 1, store, remembered)
    run.operator.close()
    run.operator.close()
    stepped = run.step(0, packed([("a", 3, "", 4, 2)], 0), 2, store, remembered)

    assert function.calls == ["open", "close", "open"]
    assert [row[1] for row in emitted(stepped)] == ["7"]


def test_a_function_is_closed_where_its_output_is_buffered() -> None:
    """The buffer passes the end of the task on."""
    function = Recorded()
    operator = processes(function)
    buffer = FlushBuffers(
        config=BufferOutput(60_000),
        quiet_ms=None,
        keys=(),
        timestamp=TIMESTAMP,
        rows=operator.outputs[RESULTS],
    )
    run = replace(runtime(function), operator=BufferedOperator(operator=operator, buffer=buffer))

    run.step(0, packed([("a", 1, "", 1, 0)], 0), 0, MemoryStore(), StateCache())
    run.operator.close()

    assert function.calls == ["open", "close"]


def test_failure_names_its_record_or_timer() -> None:
    """The error has topic, partition and offset, or key and time."""
    where = [("topic", pa.int32()), ("partition", pa.int32()), ("offset", pa.int64())]
    rows = pa.schema([*ROWS, *where])
    operator = processes(
        Recorded(), rows=rows, places=("topic", "partition", "offset"), topics=("orders", "clicks")
    )
    group = operator.open()
    values = [
        ("a", 1, "", 1, 0, 1, 0, 7),
        ("a", 1, "fail", 1, 0, 1, 3, 812),
    ]
    batch = pa.record_batch([list(column) for column in zip(*values, strict=True)], schema=rows)

    with pytest.raises(
        FunctionError,
        match=r"operator 'watch': its function raised ValueError: 1 for key 'a' at clicks\[3\]@812",
    ):
        group.rows(batch, StepOutputs())
    group = operator.open()
    group.rows(batch.slice(0, 1), StepOutputs())
    with pytest.raises(FunctionError, match="KeyError: 100 at the timer of key 'a', 100 ms"):
        group.advance_watermark(100, StepOutputs())
