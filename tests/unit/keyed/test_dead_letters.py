"""A failing call of a function is rolled back, and its input becomes a dead letter."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowcore.errors import FunctionError
from flowcore.keyed.control import Channel
from flowcore.keyed.dead_letters import DEAD_LETTERS, DeadLetters
from flowcore.keyed.packed import Packed
from flowcore.keyed.runtime import Runtime, StepResult
from flowcore.keyed.state_cache import StateCache
from flowcore.process import KeyedProcessFunction
from flowcore.process.keyed import KeyedProcesses
from flowcore.testing.harness import ProcessHarness
from flowcore.testing.memory_store import MemoryStore
from flowcore.watermarks.progress import WatermarkSource
from flowcore.watermarks.strategies import BoundedOutOfOrderness, WatermarkStrategy
from flowcore.windows import (
    WindowConfig,
)
from flowcore.windows.keyed import RecordWindows
from tests.unit.process.test_oracle import Everything

COLUMNS: list[tuple[str, pa.DataType]] = [
    ("user", pa.string()), ("t", pa.int64()), ("do", pa.string()), ("number", pa.int64()),
    ("source", pa.int32()), ("partition", pa.int32()), ("offset", pa.int64()),
]  # fmt: skip
ROWS = pa.schema(COLUMNS)
PLACES = ("source", "partition", "offset")
SEEN = pa.schema([pa.field("seen", pa.string())])
BOTH = (True, True)

Row = tuple[str, int, str, int, int, int, int]


def dead_letters(sources: tuple[bool, ...] = BOTH) -> DeadLetters:
    return DeadLetters(sources=sources, shown=("user", "do", "number"), places=PLACES)


def processes(function: KeyedProcessFunction, sources: tuple[bool, ...] = BOTH) -> KeyedProcesses:
    return KeyedProcesses(
        name="watch", function=function, keys=("user",), values=("do", "number"), timestamp="t", rows=ROWS,
        places=PLACES, topics=("orders", "clicks"), results=SEEN, side_outputs={"odd": SEEN},
        dead_letters=dead_letters(sources),
    )  # fmt: skip


def windows(config: WindowConfig, sources: tuple[bool, ...] | None = BOTH) -> RecordWindows:
    return RecordWindows(
        name="watch", config=config, keys=("user",), key_of=lambda values: values[0],
        values=("do", "number"), timestamp="t", rows=ROWS, results=SEEN, late=("user", "number"),
        dead_letters=None if sources is None else dead_letters(sources),
        record_of=lambda value: {"seen": json.dumps(value, sort_keys=True)},
    )  # fmt: skip


def runtime(operator: Any) -> Runtime:
    return Runtime(
        operator=operator, query="q", key_groups=1, rows=ROWS, smallest_log_bytes=1000,
        sources={"in": WatermarkSource(WatermarkStrategy(BoundedOutOfOrderness(0)), ("0",))},
    )  # fmt: skip


def packed(rows: Sequence[Row]) -> list[Packed]:
    channel = Channel("in", "0")
    columns: Any = [list(column) for column in zip(*rows, strict=True)]
    batch = pa.record_batch(columns, schema=ROWS)
    return [
        Packed.of_rows(channel, 0, batch),
        Packed.of_control(channel, {channel: max(row[1] for row in rows)}),
    ]


def row(user: str, t: int, do: str, number: int, offset: int = 0, *, source: int = 1) -> Row:
    return user, t, do, number, source, 0, offset


def seen(stepped: StepResult) -> Counter[Any]:
    return Counter(
        (output, each["seen"], each.get("@timestamp_ms"))
        for output, batch in stepped.outputs.batches
        if output != DEAD_LETTERS
        for each in batch.to_pylist()
    )


def left(stepped: StepResult) -> list[dict[str, Any]]:
    found = [batch for output, batch in stepped.outputs.batches if output == DEAD_LETTERS]
    return [each for batch in found for each in batch.to_pylist()]


class Shown(Everything):
    """Emits all that it can read as text, and some of it to a side output."""

    def process(self, record: Any, context: Any) -> Any:
        if record["number"] % 2:
            context.side_output("odd", {"seen": f"{context.key} {record['number']}"})
        return [{"seen": repr(each)} for each in super().process(record, context) or ()] * 2

    def on_timer(self, time_ms: int, context: Any) -> Any:
        if time_ms % 5 == 3:
            return ()
        context.side_output("odd", {"seen": f"{context.key} timer {time_ms}"})
        return [{"seen": repr(each)} for each in super().on_timer(time_ms, context) or ()]


class Failing(Shown):
    """Makes all changes, and then raises for actions that begin with a ! and for some timers."""

    def process(self, record: Any, context: Any) -> Any:
        do, bad = record["do"].removeprefix("!"), record["do"].startswith("!")
        for kind in (DO if bad else [])[:8]:
            yield from super().process({"do": kind, "number": record["number"]}, context) or ()
        yield from super().process({"do": do, "number": record["number"]}, context) or ()
        if bad and record["number"] % 3:
            raise ValueError(record["number"])
        if bad:
            yield {"unseen": 1}

    def on_timer(self, time_ms: int, context: Any) -> Any:
        if time_ms % 5 == 3:
            for kind in DO:
                Shown.process(self, {"do": kind, "number": time_ms}, context)
            raise KeyError(time_ms)
        yield from super().on_timer(time_ms, context) or ()


DO = ["set", "add", "put", "read", "remove", "clear", "event timer", "clock timer", "no timer"]


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[list[Row], int, bool]]:
    """Steps: records, advance of the clock, and whether another worker runs the step."""
    record = st.builds(
        row, st.sampled_from("ab"), st.integers(0, 40),
        st.sampled_from(DO) | st.sampled_from(DO).map("!{}".format), st.integers(0, 60),
    )  # fmt: skip
    step = st.tuples(st.lists(record, min_size=1, max_size=6), st.integers(0, 12), st.booleans())
    return draw(st.lists(step, max_size=8))


@settings(max_examples=200, deadline=None)
@given(histories())
def test_failing_call_has_no_effect(history: Any) -> None:
    """Other calls see the state without the failed records and timers; dead letters count them."""
    harness = ProcessHarness(Shown(), ["odd"])
    store, clock, newest = MemoryStore(), 0, -1
    workers: list[StateCache] = [StateCache(), StateCache()]
    tasks = [runtime(processes(Failing())), runtime(processes(Failing()))]
    for rows, passed, other in history:
        clock += passed
        newest = max([newest, *(each[1] for each in rows)])
        good = [each for each in rows if not each[2].startswith("!")]
        parts = [harness.move_clock(clock)]
        parts.append(harness.feed(*((u, {"do": do, "number": n}, t) for u, t, do, n, *_ in good)))
        parts.append(harness.watermark(newest - 1))
        expected = Counter(
            (output, each.value["seen"], each.timestamp_ms)
            for part in parts
            for output, found in (("results", part.results), ("side odd", part.side_outputs.get("odd", [])))
            for each in found
        )

        stepped = tasks[other].step(0, packed(rows), clock, store, workers[other])

        assert seen(stepped) == expected
        refused = Counter(each["@content"] for each in left(stepped) if each["offset"] is not None)
        assert refused == Counter(
            json.dumps({"user": u, "do": do, "number": n}) for u, _, do, n, *_ in rows if do.startswith("!")
        )


class Sums(KeyedProcessFunction):
    """Processes batches and raises for negative numbers."""

    def open(self, context: Any) -> None:
        self.sum = context.value_state("sum", "BIGINT")

    def process_batch(self, keys: Any, batch: pa.RecordBatch, context: Any) -> list[pa.RecordBatch]:
        found = []
        numbers: list[Any] = batch.column("number").to_pylist()
        for place, number in enumerate(numbers):
            context.key = keys[place]
            self.sum.set(self.sum.get(0) + number)
            if number < 0:
                raise ValueError(number)
            found.append(f"{keys[place]} {self.sum.get()}")
        return [pa.record_batch([pa.array(found)], names=["seen"])]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.tuples(st.sampled_from("ab"), st.integers(-2, 5)), min_size=1), max_size=4))
def test_failing_batch_loses_only_its_failing_records(steps: list[list[tuple[str, int]]]) -> None:
    """Each record is retried alone; no two outputs have one origin and ordinal."""
    store, remembered, sums = MemoryStore(), StateCache(), Counter[str]()
    for clock, given_rows in enumerate(steps):
        rows = [row(user, 0, "", number, place) for place, (user, number) in enumerate(given_rows)]
        expected = []
        for user, number in given_rows:
            if number >= 0:
                sums[user] += number
                expected.append(f"{user} {sums[user]}")

        stepped = runtime(processes(Sums())).step(0, packed(rows), clock, store, remembered)

        made = [
            row
            for output, batch in stepped.outputs.batches
            if output != DEAD_LETTERS
            for row in batch.to_pylist()
        ]
        assert [each["seen"] for each in made] == expected
        assert len({(each["offset"], each["@ordinal"]) for each in made}) == len(made)
        bad = [place for place, (_, number) in enumerate(given_rows) if number < 0]
        assert [each["offset"] for each in left(stepped)] == bad


class Kept(KeyedProcessFunction):
    """Changes values in place and may raise afterwards."""

    def open(self, context: Any) -> None:
        self.value = context.value_state("value", "ARRAY<BIGINT>")
        self.list = context.list_state("list", "ARRAY<BIGINT>")
        self.map = context.map_state("map", "STRING", "ARRAY<BIGINT>")
        self.fold = context.reducing_state("fold", "ARRAY<BIGINT>", _extended)
        self.total = context.aggregating_state("total", Gathered())

    def process(self, record: Mapping[str, Any], _context: Any) -> list[Mapping[str, Any]]:
        number = record["number"]
        self.value.set([*self.value.get([]), number])
        self.list.add([number])
        self.map["x"] = [*self.map.get("x", []), number]
        for kept in (self.value.get(), *self.list, self.map["x"]):
            kept.append(number)
        self.fold.add([number])
        self.total.add({"number": number})
        if record["do"] == "fail":
            raise ValueError(number)
        kept = [self.value.get(), self.list.get(), dict(self.map), self.fold.get(), self.total.get()]
        return [{"seen": json.dumps(kept)}]


def _extended(kept: list[int], new: list[int]) -> list[int]:
    kept += new
    return kept


class Gathered:
    """Gathers numbers in place; raises for -1."""

    def create(self) -> list[int]:
        return []

    def add(self, accumulator: list[int], value: Any) -> list[int]:
        accumulator.append(value["number"])
        if value["number"] == -1:
            raise ValueError
        return accumulator

    def merge(self, first: list[int], second: list[int]) -> list[int]:
        first += second
        if first[-1] == -2:
            raise ValueError
        return first

    def result(self, accumulator: list[int]) -> list[int]:
        return list(accumulator)


def test_values_changed_in_place_are_rolled_back() -> None:
    """This holds for every kind of state."""
    rows = [row("a", 0, "", 1), row("a", 0, "fail", 2), row("a", 0, "", 3)]
    good = runtime(processes(Kept())).step(0, packed([rows[0], rows[2]]), 0, MemoryStore(), StateCache())
    assert seen(runtime(processes(Kept())).step(0, packed(rows), 0, MemoryStore(), StateCache())) == seen(
        good
    )


def test_dead_letter_has_the_input_and_its_coordinates() -> None:
    """It has a record's row and coordinates, or a timer's key, time domain and time; operator and error."""
    rows = [row("a", 1, "!read", 2, 812), row("a", 100, "event timer", 3), row("a", 101, "clock timer", 8)]
    store, remembered = MemoryStore(), StateCache()

    task = runtime(processes(Failing()))
    of_record, of_timer = left(task.step(0, packed(rows), 0, store, remembered))
    (of_clock,) = left(task.step(0, [], 9, store, remembered))

    assert of_record == {
        "@content": '{"user": "a", "do": "!read", "number": 2}',
        "@reason": "operator 'watch': its function raised ValueError: 2 for key 'a' at clicks[0]@812",
        "@operator": "watch", "source": 1, "partition": 0, "offset": 812,
    }  # fmt: skip
    assert of_timer == {
        "@content": '{"key": {"user": "a"}, "time": "event", "time_ms": 3}',
        "@reason": "operator 'watch': its function raised KeyError: 3 at the timer of key 'a', 3 ms",
        "@operator": "watch", "source": None, "partition": None, "offset": None,
    }  # fmt: skip
    assert json.loads(of_clock["@content"]) == {"key": {"user": "a"}, "time": "processing", "time_ms": 8}


class Surrogates(KeyedProcessFunction):
    """Emits half of an emoji, or raises it."""

    def process(self, record: Mapping[str, Any], _context: Any) -> Iterator[Mapping[str, Any]]:
        half = "\ud83d"
        if record["do"] == "raise":
            raise ValueError(half)
        yield {"seen": half if record["do"] == "emit" else record["do"]}


def test_text_that_is_no_unicode_stops_nothing() -> None:
    """Neither in what a function emits nor in an error; only Python can hold half of a pair."""
    rows = [row("a", 1, do, number) for number, do in enumerate(["raise", "emit", "good"])]

    stepped = runtime(processes(Surrogates())).step(0, packed(rows), 0, MemoryStore(), StateCache())

    assert [text for _, text, _ in seen(stepped)] == ["good"]
    raised, emitted = left(stepped)
    assert raised["@reason"].startswith("operator 'watch': its function raised ValueError: \\ud83d for key")
    assert "UnicodeEncodeError" in emitted["@reason"]


def test_failure_stops_the_query_for_sources_with_on_error_fail() -> None:
    """Its records, and failures without a single record, stop the query; others become dead letters."""
    strict = runtime(processes(Failing(), (False, True)))
    assert len(left(strict.step(0, packed([row("a", 1, "!read", 2)]), 0, MemoryStore(), StateCache()))) == 1
    for bad in (row("a", 1, "!read", 2, source=0), row("a", 100, "event timer", 3)):
        with pytest.raises(FunctionError, match="operator 'watch': its function raised"):
            strict.step(0, packed([bad]), 0, MemoryStore(), StateCache())


def test_record_of_an_unknown_source_is_a_dead_letter() -> None:
    """A function of batches made it; it stops the query if any source asks for that."""
    bad = packed([row("a", 1, "!read", 2, source=None)])

    (letter,) = left(runtime(processes(Failing())).step(0, bad, 0, MemoryStore(), StateCache()))

    assert letter["source"] is None
    assert letter["@reason"] == "operator 'watch': its function raised ValueError: 2 for key 'a'"
    with pytest.raises(FunctionError, match="operator 'watch': its function raised"):
        runtime(processes(Failing(), (False, True))).step(0, bad, 0, MemoryStore(), StateCache())


def test_failures_are_isolated_until_a_step_has_none() -> None:
    """The first failure repeats its step; directly following failures cost no repetition."""
    calls: list[int] = []

    class Noted(KeyedProcessFunction):
        def process(self, record: Mapping[str, Any], _context: Any) -> None:
            calls.append(record["number"])
            if record["number"] < 0:
                raise ValueError

    store, remembered, task = MemoryStore(), StateCache(), runtime(processes(Noted()))
    for number in (1, -2, -3, 4, -5):
        task.step(0, packed([row("a", 0, "", number)]), 0, store, remembered)
    assert calls == [1, -2, -2, -3, 4, -5, -5]
