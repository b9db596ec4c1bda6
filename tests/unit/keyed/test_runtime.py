"""The runtime of key groups: state over restarts, workers, repeated tasks and repeated batches."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowcore.elements import EndOfInput, LatencyMarker, LatencyMarkerEvent, Watermark
from flowcore.errors import StateError
from flowcore.keyed.control import Channel, ControlElement
from flowcore.keyed.packed import Packed, PackedKind, sort_packed
from flowcore.keyed.runtime import Runtime
from flowcore.keyed.state_cache import StateCache
from flowcore.serializers.events import LatencyMarkerEventSerializer
from flowcore.testing.memory_store import MemoryStore
from flowcore.watermarks.progress import WatermarkSource
from flowcore.watermarks.strategies import BoundedOutOfOrderness, WatermarkStrategy
from flowcore.windows import SlidingWindows, TumblingWindows, WindowAggregate, WindowConfig
from flowcore.windows.built_in import BuiltIn, BuiltIns
from flowcore.windows.columnar.keyed import ColumnarWindows
from flowcore.windows.keyed import RecordWindows
from tests.unit.keyed.stored_group import read_state

ROWS = pa.schema([pa.field("user", pa.string()), pa.field("t", pa.int64()), pa.field("v", pa.int64())])
TOTALS = (("n", BuiltIn("count")), ("total", BuiltIn("sum", ("v",))))
STRATEGY = WatermarkStrategy(BoundedOutOfOrderness(0))


def by_column(config: WindowConfig) -> ColumnarWindows:
    return ColumnarWindows(config=config, keys=("user",), timestamp="t", rows=ROWS, late=("user", "t"))


def by_record(config: WindowConfig) -> RecordWindows:
    return RecordWindows(
        name="windows", config=config, keys=("user",), key_of=lambda values: values[0], values=("v",),
        timestamp="t", rows=ROWS, late=("user", "t"),
        results=pa.schema([pa.field("n", pa.int64()), pa.field("total", pa.int64())]),
    )  # fmt: skip


def runtime_of(operator: Any, partitions: int = 1, strategy: WatermarkStrategy | None = STRATEGY) -> Runtime:
    names = tuple(map(str, range(partitions)))
    return Runtime(
        operator=operator,
        query="q",
        key_groups=1,
        sources={"in": WatermarkSource(strategy, names)},
        rows=ROWS,
    )


def windows(**settings: Any) -> WindowConfig:
    return WindowConfig(
        **{"assigner": TumblingWindows(10), "function": WindowAggregate(BuiltIns(TOTALS)), **settings}
    )


def rows(*given: tuple[str, int, int], partition: int = 0) -> list[Packed]:
    channel = Channel("in", str(partition))
    columns = [list(column) for column in zip(*given, strict=True)]
    batch = pa.record_batch(columns, schema=ROWS)
    newest = max(t for _, t, _ in given)
    return [Packed.of_rows(channel, 0, batch), Packed.of_control(channel, {channel: newest})]


def results(stepped: Any) -> list[tuple[Any, ...]]:
    return [
        (row["user"], row["n"], row["total"], row["@start_ms"], row["@firing"], row["@is_late"])
        for output, batch in stepped.outputs.batches
        if output == "results"
        for row in batch.to_pylist()
    ]


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[list[tuple[str, int, int]], int, str]]:
    """Batches of records, each with its worker and its failure or repetition."""
    record = st.tuples(st.sampled_from("abc"), st.integers(0, 60), st.integers(1, 5))
    fate = st.sampled_from(["done", "done", "done", "failed", "repeated"])
    step = st.tuples(st.lists(record, min_size=1, max_size=5), st.integers(0, 2), fate)
    return draw(st.lists(step, max_size=14))


@pytest.mark.parametrize("operator", [by_column, by_record], ids=["by column", "by record"])
@settings(max_examples=150, deadline=None)
@given(
    histories(),
    st.sampled_from([0, 12]),
    st.sampled_from([TumblingWindows(10), SlidingWindows(12, 4)]),
    st.sampled_from([0, 3000, 1 << 20]),
    st.sampled_from([None, 0, 5000]),
)
def test_state_is_right_for_any_assignment_of_batches_to_workers(  # noqa: PLR0917 - drawn values
    operator: Any, history: Any, lateness: int, assigner: Any, smallest_log: int, cache: int | None
) -> None:
    """Three workers with failing tasks and repeated batches agree with one worker."""
    config = windows(assigner=assigner, allowed_lateness_ms=lateness, late="side-output")
    runtime = replace(runtime_of(operator(config)), smallest_log_bytes=smallest_log, max_cache_bytes=cache)
    plain, store = MemoryStore(), MemoryStore()
    alone = StateCache()
    workers: list[StateCache] = [StateCache() for _ in range(3)]

    for clock, (given_rows, worker, fate) in enumerate(history):
        items = rows(*given_rows)
        expected = Counter(results(runtime.step(0, items, clock, plain, alone)))
        if fate != "done":  # what this attempt has stored is thrown away, what its worker remembers is not
            thrown_away = store.copy()
            runtime.step(0, items, clock, thrown_away, workers[(worker + 1) % 3])
            if fate == "failed":
                runtime.step(0, rows(("a", 1, 1)), clock, thrown_away, workers[(worker + 1) % 3])

        found = Counter(results(runtime.step(0, items, clock, store, workers[worker])))

        assert found == expected


def test_records_that_wait_at_a_start_make_their_partition_active() -> None:
    """Its time-out has ended while the query was stopped: without records it is idle at once."""
    strategy = replace(STRATEGY, idle_after_ms=60_000)
    runtime = runtime_of(by_column(windows(late="side-output")), partitions=2, strategy=strategy)
    stopped, remembered = MemoryStore(), StateCache()
    both = [*rows(("a", 5, 1)), *rows(("b", 5, 1), partition=1)]
    for clock, items in ((0, both), (1_000, rows(("a", 6, 1))), (2_000, rows(("a", 6, 1)))):
        runtime.step(0, sort_packed(items), clock, stopped, remembered)

    for waiting, watermark_ms in ((rows(("b", 7, 1), partition=1), 6), ([], 49)):
        items = sort_packed([*rows(("a", 50, 1)), *waiting])
        first = runtime.step(0, items, 122_000, stopped.copy(), StateCache())
        assert first.outputs.emitted == {"watermark_ms": watermark_ms}
        assert first.outputs.counters == {}


def test_runtime_writes_in_proportion_to_the_touched_keys() -> None:
    """Of 20,000 keys in state, a hundred steps write only the one key that each touches."""
    runtime = runtime_of(by_column(windows(assigner=TumblingWindows(1_000_000))))
    store, remembered = MemoryStore(), StateCache()
    runtime.step(0, rows(*((f"user-{n}", 1, 1) for n in range(20_000))), 0, store, remembered)
    held = sum(map(len, store.segments.values()))

    written = 0
    for clock in range(1, 101):
        before = set(store.segments)
        runtime.step(0, rows(("user-7", 2, 1)), clock, store, remembered)
        written += sum(len(store.segments[number]) for number in set(store.segments) - before)

    assert written < held
    assert len(store.kept or b"") < 20_000


def test_deltas_are_folded_into_a_snapshot_when_they_outgrow_it() -> None:
    """Repeated changes of the same keys do not make the log grow without bound."""
    runtime = runtime_of(by_column(windows(assigner=TumblingWindows(1_000_000))))
    store, remembered = MemoryStore(), StateCache()
    keys = [f"user-{n}" for n in range(2_000)]
    for clock in range(100):
        runtime.step(0, rows(*((key, 1, 1) for key in keys)), clock, store, remembered)

    assert sum(map(len, store.segments.values())) < 1_000_000
    manifest, group = read_state(runtime, store)
    assert manifest.snapshot
    assert len(store.segments) == len(manifest.snapshot) + len(manifest.deltas)
    stepped = runtime.step(0, rows(("z", 2_000_000, 1)), 101, store, StateCache())
    assert {(n, total) for _, n, total, *_ in results(stepped)} == {(100, 100)}
    assert group.header()["watermark_ms"] == 0


def test_a_partition_without_records_holds_event_time() -> None:
    """The slowest partition determines the watermark, even without any record."""
    runtime = runtime_of(by_column(windows()), partitions=2)
    store, remembered = MemoryStore(), StateCache()

    assert results(runtime.step(0, rows(("a", 5, 1), ("a", 100, 1)), 0, store, remembered)) == []
    assert results(runtime.step(0, rows(("a", 7, 1), partition=1), 1, store, remembered)) == []
    stepped = runtime.step(0, rows(("b", 30, 1), partition=1), 2, store, remembered)

    assert results(stepped) == [("a", 2, 2, 0, 1, False)]


def test_idle_partition_is_ignored_after_a_wake_up() -> None:
    """Without input, the wake-up marks the silent partition idle, and the window emits."""
    strategy = WatermarkStrategy(BoundedOutOfOrderness(0), idle_after_ms=1000)
    runtime = runtime_of(by_column(windows()), partitions=2, strategy=strategy)
    store, remembered = MemoryStore(), StateCache()
    processing_time_ms, seen = 0, []
    stepped = runtime.step(0, rows(("a", 5, 1), ("a", 100, 1)), processing_time_ms, store, remembered)
    while stepped.manifest.wake_ms is not None and processing_time_ms < 10_000:
        processing_time_ms = stepped.manifest.wake_ms
        stepped = runtime.step(0, [], processing_time_ms, store, StateCache())
        seen += [(processing_time_ms, result) for result in results(stepped)]

    assert seen == [(1001, ("a", 1, 1, 0, 1, False))]


def test_control_elements_count_where_they_stand_among_records() -> None:
    """A watermark makes the record after it late, not the one before it."""
    runtime = runtime_of(by_column(windows(late="side-output")), strategy=None)
    channel = Channel("in", "0")
    first, second = (rows(("a", 5, value))[0] for value in (1, 2))
    items = [
        Packed(PackedKind.ROWS, channel.encode(), 12, second.payload),
        Packed.of_control(
            channel,
            elements=[
                ControlElement(*channel, "other-flow", 11, Watermark(20)),
                ControlElement(*channel, "other-flow", 13, EndOfInput()),
            ],
        ),
        Packed(PackedKind.ROWS, channel.encode(), 10, first.payload),
    ]

    stepped = runtime.step(0, sort_packed(items), 0, MemoryStore(), StateCache())

    assert results(stepped) == [("a", 1, 1, 0, 1, False)]
    assert [output for output, _ in stepped.outputs.batches] == ["results", "late"]


@pytest.mark.parametrize("completes", ["topic", "window"])
def test_records_precede_the_watermark_that_completes_theirs(completes: str) -> None:
    """Whichever of two sources comes last, the watermark of the other one releases the records before it."""
    other = {"topic": "window", "window": "topic"}[completes]
    runtime = replace(
        runtime_of(by_column(windows(late="side-output"))),
        sources={"topic": WatermarkSource(None, ("0",)), "window": WatermarkSource(None, ("0", "1"))},
    )
    first, second = Channel("", "0"), Channel("", "1")
    elements = {
        "topic": [ControlElement("topic", "0", "", 0, Watermark(20))],
        "window": [ControlElement("window", "1", "", 2, Watermark(20))],
    }
    items = [
        Packed.of_control(first, elements=[ControlElement("window", "0", "", 0, Watermark(20))]),
        Packed.of_control(second, elements=[*elements[other], *elements[completes]]),
        Packed.of_rows(second, 1, pa.RecordBatch.from_pylist([{"user": "a", "t": 5, "v": 1}], schema=ROWS)),
    ]

    stepped = runtime.step(0, sort_packed(items), 0, MemoryStore(), StateCache())

    assert results(stepped) == [("a", 1, 1, 0, 1, False)]
    assert [output for output, _ in stepped.outputs.batches] == ["results"]


def test_markers_are_emitted_after_the_records_before_them() -> None:
    """A marker that arrives first in a batch is emitted last."""
    marker = LatencyMarker(7, "in", 3)
    event = LatencyMarkerEventSerializer().encode(LatencyMarkerEvent.from_marker(marker))
    items = [Packed.of_event(Channel("in", "0"), event), *rows(("a", 5, 1))]

    assert [PackedKind(item.kind).name for item in sort_packed(items)] == ["CONTROL", "ROWS", "MARKER"]
    stepped = runtime_of(by_column(windows())).step(0, items, 0, MemoryStore(), StateCache())

    assert stepped.outputs.markers == [marker]


def test_state_of_another_operator_or_number_of_key_groups_is_refused() -> None:
    """Its keys would not be found again, or would mean something else."""
    store = MemoryStore()
    runtime_of(by_column(windows())).step(0, rows(("a", 5, 1)), 0, store, StateCache())

    with pytest.raises(StateError, match="panes of 10 ms"):
        read_state(runtime_of(by_column(windows(assigner=TumblingWindows(7)))), store)
    other = runtime_of(by_column(windows()))
    with pytest.raises(StateError, match="key_groups=1"):
        read_state(replace(other, key_groups=2), store)


def test_ended_partitions_complete_windows_whatever_the_strategy_of_their_source() -> None:
    """Of the elements in the topic of a source with a strategy, only the end of input counts."""
    store, runtime = MemoryStore(), runtime_of(by_column(windows()), partitions=2)

    def step(processing_time_ms: int, *elements: tuple[int, Watermark | EndOfInput]) -> list[tuple[Any, ...]]:
        control = [ControlElement("in", str(number), "x", 9, element) for number, element in elements]
        items = [*rows(("a", 5, 1)), Packed.of_control(Channel("in", "1"), elements=control)]
        return results(runtime.step(0, items, processing_time_ms, store, StateCache()))

    assert step(0, (0, Watermark(900)), (1, Watermark(900))) == []
    assert step(1, (0, EndOfInput())) == []
    assert step(2, (1, EndOfInput())) == [("a", 3, 3, 0, 1, False)]


def test_added_partition_holds_event_time() -> None:
    """After a restart the new partition holds event time until it has records."""
    store = MemoryStore()
    runtime_of(by_column(windows())).step(0, rows(("a", 5, 1)), 0, store, StateCache())
    runtime = runtime_of(by_column(windows()), partitions=2)

    assert results(runtime.step(0, rows(("a", 50, 1)), 1, store, StateCache())) == []
    stepped = runtime.step(0, rows(("a", 20, 1), partition=1), 2, store, StateCache())

    assert results(stepped) == [("a", 1, 1, 0, 1, False)]


def test_a_missing_segment_is_an_error() -> None:
    """The state is not restored with missing entries."""
    store = MemoryStore()
    runtime = runtime_of(by_column(windows()))
    runtime.step(0, rows(("a", 5, 1)), 0, store, StateCache())
    store.segments.clear()

    with pytest.raises(StateError, match="segment 0"):
        runtime.step(0, rows(("a", 6, 1)), 1, store, StateCache())


@pytest.mark.parametrize("operator", [by_column, by_record], ids=["by column", "by record"])
def test_segments_of_another_version_are_refused(operator: Any) -> None:
    """The first byte is the version."""
    store = MemoryStore()
    runtime = runtime_of(operator(windows()))
    runtime.step(0, rows(("a", 5, 1)), 0, store, StateCache())
    store.segments[0] = b"\x63" + store.segments[0][1:]

    with pytest.raises(StateError, match="version 99"):
        read_state(runtime, store)


def test_times_as_keys_and_values_survive_a_restart() -> None:
    """Spark's times have a zone, which plain data does not store."""
    kind = pa.timestamp("us", tz="UTC")
    schema = pa.schema([pa.field("user", kind), pa.field("t", pa.int64()), pa.field("v", kind)])
    latest = WindowAggregate(BuiltIns((("latest", BuiltIn("last_value", ("v",))),)))
    operator = replace(
        by_record(windows(function=latest)), rows=schema, results=pa.schema([pa.field("latest", kind)])
    )
    runtime = replace(runtime_of(operator), rows=schema)
    now = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    batch = pa.record_batch([[now], [5], [now]], schema=schema)
    channel, store = Channel("in", "0"), MemoryStore()

    runtime.step(0, [Packed.of_rows(channel, 0, batch)], 0, store, StateCache())
    stepped = runtime.step(0, [Packed.of_control(channel, {channel: 100})], 1, store, StateCache())

    ((_, found),) = stepped.outputs.batches
    assert [(row["user"], row["latest"]) for row in found.to_pylist()] == [(now, now)]


def test_event_time_advances_with_processing_time_while_all_are_idle() -> None:
    """A window of idle partitions fires when processing time has advanced far enough."""
    strategy = WatermarkStrategy(BoundedOutOfOrderness(0), idle_after_ms=100, all_idle="advance")
    runtime = runtime_of(by_column(windows()), strategy=strategy)
    store = MemoryStore()
    stepped = runtime.step(0, rows(("a", 5, 1)), 0, store, StateCache())
    clocks = []
    while stepped.manifest.wake_ms is not None and stepped.manifest.wake_ms < 300:
        clocks.append(stepped.manifest.wake_ms)
        stepped = runtime.step(0, [], clocks[-1], store, StateCache())
        if results(stepped):
            break

    # Quiet since 1, idle from 102 on at the watermark 4; 9 is the window's last millisecond.
    assert (clocks[-1], results(stepped)) == (107, [("a", 1, 1, 0, 1, False)])


def test_idle_source_becomes_active_before_the_watermarks_of_a_step() -> None:
    """Its records would be late by the watermark of the other source."""
    strategy = WatermarkStrategy(BoundedOutOfOrderness(0), idle_after_ms=100)
    runtime = runtime_of(by_record(windows(late="side-output")), strategy=strategy)
    runtime = replace(runtime, sources={**runtime.sources, "first": WatermarkSource(None, ("0",))})
    other, store, cache = Channel("first", "0"), MemoryStore(), StateCache()
    runtime.step(0, rows(("a", 5, 1)), 0, store, cache)
    for clock in (1, 102):
        runtime.step(0, [], clock, store, cache)
    watermark = Packed.of_control(other, {}, [ControlElement("first", "0", "", 0, Watermark(1_000))])

    stepped = runtime.step(0, sort_packed([*rows(("a", 25, 2)), watermark]), 103, store, cache)
    assert (results(stepped), stepped.outputs.counters) == ([("a", 1, 1, 0, 1, False)], {})
    stepped = runtime.step(0, rows(("a", 31, 4)), 104, store, cache)

    assert results(stepped) == [("a", 1, 2, 20, 1, False)]


def test_changes_that_are_the_whole_state_are_not_encoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the first step, and those of all keys: they are the snapshot, and are read as one."""
    encoded: list[int] = []
    group = type(by_record(windows()).open())
    snapshot = group.snapshot
    monkeypatch.setattr(group, "snapshot", lambda self: (encoded.append(1), snapshot(self))[1])
    runtime = runtime_of(by_record(windows(assigner=TumblingWindows(1_000_000))))
    runtime = replace(runtime, smallest_log_bytes=100)
    store, large = MemoryStore(), "x" * 1_000
    for clock in range(4):
        runtime.step(0, rows((large, 1, clock)), clock, store, StateCache())
        manifest, _ = read_state(runtime, store)
        assert len(manifest.snapshot) == 1
        assert len(manifest.deltas) < 2
        assert not encoded
    runtime.step(0, rows(("y" * 2_000, 1, 5)), 5, store, StateCache())
    assert len(encoded) == 1  # the changes of one of two keys outgrew the snapshot

    stepped = runtime.step(0, rows(("z", 2_000_000, 1)), 101, store, StateCache())

    assert sorted((n, total) for _, n, total, *_ in results(stepped)) == [(1, 5), (4, 6)]
