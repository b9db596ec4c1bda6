"""A buffer on key groups processes columns as the pure buffer processes records, over restarts too."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowcore.elements import (
    MAX_TIMESTAMP_MS,
    EndOfInput,
    LatencyMarker,
    LatencyMarkerEvent,
    Record,
    RecordAttributes,
    StreamElement,
    Watermark,
    WatermarkStatus,
)
from flowcore.errors import StateError
from flowcore.flush import BufferOutput
from flowcore.flush.buffered import BufferedOperator
from flowcore.flush.latest import LatestRecords
from flowcore.flush.operator import FlushBuffers
from flowcore.keyed.control import Channel, ControlElement
from flowcore.keyed.operator import CONTROL, KeyGroup, StepOutputs
from flowcore.keyed.output_columns import RESULTS, TIMESTAMP
from flowcore.keyed.packed import Packed
from flowcore.keyed.runtime import Runtime
from flowcore.keyed.state_cache import StateCache
from flowcore.keyed.store import MemoryStore
from flowcore.serializers.events import LatencyMarkerEventSerializer
from flowcore.serializers.formats import RawFormat
from flowcore.serializers.tagged import TaggedSerializer
from flowcore.testing.record_buffer import RecordBuffer
from flowcore.watermarks.progress import WatermarkSource
from flowcore.windows import TumblingWindows, WindowAggregate, WindowConfig
from flowcore.windows.built_in import BuiltIn, BuiltIns
from flowcore.windows.columnar.keyed import ColumnarWindows

ROWS = pa.schema([pa.field("key", pa.string()), pa.field("value", pa.int64()), pa.field("t", pa.int64())])
EVENTS = LatencyMarkerEventSerializer()
TAGGED: TaggedSerializer[bytes] = TaggedSerializer(RawFormat())
ALL = Channel("in", "0")
BACKLOG, LIVE = RecordAttributes(backlog=True), RecordAttributes(backlog=False)
Item = tuple[str, int, int | None] | Watermark | WatermarkStatus | LatencyMarker | RecordAttributes
Step = tuple[int, list[Item]]
"""How far processing time advances before it, and its items."""


def buffers(config: BufferOutput, quiet_ms: int | None = 0) -> FlushBuffers:
    keys = ("key",) if config.keyed else ()
    return FlushBuffers(config=config, quiet_ms=quiet_ms, keys=keys, timestamp="t", rows=ROWS)


def packed(items: Sequence[Item]) -> list[Packed]:
    """Input of a step: runs of records with elements between them; markers last."""
    found: list[Packed] = []
    run: list[tuple[str, int, int | None]] = []

    def release(place: int) -> None:
        if run:
            columns = zip(*run, strict=True)
            batch = pa.record_batch([list(column) for column in columns], schema=ROWS)
            found.append(Packed.of_rows(ALL, place - len(run), batch))
            run.clear()

    for place, item in enumerate(items):
        if isinstance(item, tuple):
            run.append(item)
        elif isinstance(item, LatencyMarker):
            event = EVENTS.encode(LatencyMarkerEvent.from_marker(item))
            found.append(Packed.of_event(ALL, event))
        elif isinstance(item, RecordAttributes):
            found.append(Packed.of_control(ALL, backlog=[(place, item.backlog)]))
        else:
            release(place)
            found.append(Packed.of_control(ALL, elements=[ControlElement(*ALL, "", place, item)]))
    release(len(items))
    came = any(not isinstance(item, RecordAttributes) for item in items)
    return [*found, Packed.of_control(ALL, {ALL: None})] if came else found


def left(out: StepOutputs) -> list[StreamElement[Any]]:
    """Output in order; markers last."""
    found: list[StreamElement[Any]] = []
    for output, batch in out.batches:
        for row in batch.to_pylist():
            if output == CONTROL:
                found.append(TAGGED.decode(row["element"]))
            else:
                found.append(Record((row["key"], row["value"]), row["t"]))
    return [*found, *out.markers]


def purely(buffer: RecordBuffer[Any, Any], items: Sequence[Item], now_ms: int) -> list[Any]:
    """The output of the same step of the pure buffer; markers last."""
    found: list[StreamElement[Any]] = [*buffer.poll(now_ms)]
    for item in sorted(items, key=lambda item: isinstance(item, LatencyMarker)):
        match item:
            case (key, value, time_ms):
                found += buffer.record(key, Record((key, value), time_ms), now_ms)
            case Watermark(timestamp_ms) if timestamp_ms == MAX_TIMESTAMP_MS:
                *rest, _ = buffer.control(EndOfInput(), now_ms)
                found += [*rest, item]
            case _:
                found += buffer.control(item, now_ms)  # type: ignore[arg-type]
    if all(isinstance(item, RecordAttributes) for item in items):
        found += buffer.input_idle(now_ms)
    return sorted(found, key=lambda each: isinstance(each, LatencyMarker))


class _Worker:
    """Key groups of one buffer: a store, and workers that may have missed steps."""

    def __init__(self, operator: Any, workers: int = 1, smallest_log_bytes: int = 256 << 10) -> None:
        self.runtime = Runtime(
            operator=operator,
            query="q",
            key_groups=1,
            sources={"in": WatermarkSource(None, ("0",), relays=True)},
            rows=ROWS,
            smallest_log_bytes=smallest_log_bytes,
        )
        self.store = MemoryStore()
        self.remembered: list[StateCache] = [StateCache() for _ in range(workers)]

    def step(self, items: Sequence[Item], now_ms: int, worker: int = 0) -> list[StreamElement[Any]]:
        stepped = self.runtime.step(0, packed(items), now_ms, self.store, self.remembered[worker])
        return left(stepped.outputs)

    def wakes_at(self) -> int | None:
        return self.runtime.read(self.store)[0].wake_ms


times = st.one_of(st.none(), st.integers(0, 30))
records = st.tuples(st.sampled_from("abcd"), st.integers(0, 99), times)
markers = st.builds(LatencyMarker, st.integers(0, 9), st.just("op"), st.integers(0, 1))
steps = st.lists(
    st.tuples(
        st.integers(0, 12),
        st.lists(
            st.one_of(
                records, records, records, markers,
                st.just("watermark"), st.builds(WatermarkStatus, st.booleans()),
                st.builds(RecordAttributes, st.booleans()),
            ),
            max_size=9,
        ),
    ),
    max_size=12,
)  # fmt: skip
configs = st.builds(
    BufferOutput,
    interval_ms=st.sampled_from([None, 0, 1, 10]),
    keyed=st.booleans(),
    memory_buffer_only=st.booleans(),
    max_entries=st.sampled_from([None, 1, 2, 3]),
    backlog_interval_ms=st.sampled_from([None, 0, 15]),
)
workers = st.lists(st.integers(0, 2), min_size=12, max_size=12)


def rising(happened: list[tuple[int, list[Any]]]) -> list[Step]:
    """Watermarks in order, statuses and backlog only where they change: a key group hears of no others.

    Of backlog it hears before the records of a step.
    """
    watermark_ms, idle, backlog = 0, False, None
    found = []
    for moves, items in happened:
        step: list[Item] = []
        for item in items:
            if isinstance(item, RecordAttributes) and item.backlog != backlog:
                step.append(item)
                backlog = item.backlog
        for item in items:
            if isinstance(item, RecordAttributes):
                continue
            if item == "watermark":
                watermark_ms += 3
                step.append(Watermark(watermark_ms))
            elif isinstance(item, WatermarkStatus):
                if item.idle != idle:
                    step.append(item)
                idle = item.idle
            else:
                step.append(item)
        found.append((moves, step))
    return found


@given(configs, steps, workers, st.sampled_from([0, 200, 1 << 20]))
def test_buffer_emits_the_output_of_the_record_buffer_in_order(
    config: BufferOutput, happened: list[tuple[int, list[Any]]], taken_by: list[int], smallest_log: int
) -> None:
    """This holds for three workers in turn and for a snapshot after any step."""
    group = _Worker(buffers(config), workers=3, smallest_log_bytes=smallest_log)
    now_ms, pure = 0, RecordBuffer[Any, Any](config)

    for number, (moves, items) in enumerate(rising(happened)):
        now_ms += moves
        if number == 0:
            pure = RecordBuffer(config, now_ms)
        expected = purely(pure, items, now_ms)

        assert group.step(items, now_ms, taken_by[number]) == expected
    end: list[Item] = [Watermark(MAX_TIMESTAMP_MS)]
    assert group.step(end, now_ms) == purely(pure, end, now_ms)
    assert group.wakes_at() is None


def in_backlog(**settings: Any) -> _Worker:
    group = _Worker(buffers(BufferOutput(interval_ms=1_000, **settings), 400), workers=2)
    assert group.step([BACKLOG, ("a", 1, None)], 5_000) == [BACKLOG]
    return group


def test_buffer_in_backlog_is_flushed_when_the_backlog_ends() -> None:
    """The first flush has all buffered records, however long the backlog lasts, over a restart too."""
    group = in_backlog()

    for clock, key in enumerate("bcad", 6):
        assert group.step([(key, clock, None)], clock * 1_000, worker=clock % 2) == []
        assert group.wakes_at() == clock * 1_000 + 400
    latest = [Record((key, value), None) for key, value in [("b", 6), ("c", 7), ("a", 8), ("d", 9)]]
    assert group.step([LIVE, ("b", 10, None)], 10_000) == [*latest, LIVE]
    assert group.step([("b", 11, None)], 11_000) == [Record(("b", 10), None)]


def test_buffer_in_backlog_is_flushed_at_its_longer_interval_if_there_is_one() -> None:
    """It is also flushed when the input is quiet, since further waiting saves nothing."""
    group = in_backlog(backlog_interval_ms=3_000)

    assert group.step([("a", 2, None)], 7_900) == []
    assert group.wakes_at() == 8_000
    assert group.step([("a", 3, None)], 8_000) == [Record(("a", 2), None)]
    assert group.step([], 8_400) == [Record(("a", 3), None)]


def test_buffer_in_backlog_is_flushed_when_it_is_full() -> None:
    """Backlog does not raise the memory limit."""
    group = in_backlog(memory_buffer_only=True, max_entries=2)

    assert group.step([("b", 2, None)], 20_000) == [Record(("a", 1), None), Record(("b", 2), None)]


def test_buffer_of_a_slice_in_backlog_waits_for_its_end() -> None:
    """A slice emits when it has read all input; then nothing is buffered."""
    group = _Worker(buffers(BufferOutput(interval_ms=1_000), None))
    group.step([BACKLOG, ("a", 1, None)], 5_000)

    assert group.step([("a", 2, None)], 9_000) == []
    assert group.step([LIVE], 9_100) == [Record(("a", 2), None), LIVE]
    assert group.step([("a", 3, None)], 9_200) == [Record(("a", 3), None)]


def test_flush_sends_the_records_that_a_watermark_covers_before_it() -> None:
    """A record at the watermark is covered; records without a timestamp and markers follow."""
    group = _Worker(buffers(BufferOutput(interval_ms=1_000)))
    marker = LatencyMarker(5, "op", 0)
    group.step([("after", 1, 11), ("at", 2, 10), ("none", 3, None), Watermark(10), marker], 0)

    assert group.step([], 1) == [
        Record(("at", 2), 10),
        Watermark(10),
        Record(("after", 1), 11),
        Record(("none", 3), None),
        marker,
    ]


def each_second(quiet_ms: int | None = 400, **settings: Any) -> _Worker:
    group = _Worker(buffers(BufferOutput(interval_ms=1_000, **settings), quiet_ms))
    group.step([Watermark(1)], 5_000)
    return group


def test_buffer_asks_to_be_woken_for_the_flush_that_is_due_next() -> None:
    """The wake-up is at the end of the interval or of the quiet time, whichever is first."""
    group = each_second()
    assert group.wakes_at() is None

    group.step([("a", 1, None)], 5_100)
    assert group.wakes_at() == 5_500
    group.step([("a", 2, None)], 5_700)
    assert group.wakes_at() == 6_000
    assert group.step([("a", 3, None)], 6_000) == [Record(("a", 2), None)]
    assert group.wakes_at() == 6_400


def test_buffer_is_quiet_only_when_nothing_has_come_for_long_enough() -> None:
    """A step with input, or an earlier step without input, does not flush."""
    group = each_second()
    group.step([("a", 1, 7)], 5_100)

    assert group.step([], 5_499) == []
    assert group.step([LatencyMarker(1, "op", 0)], 5_500) == []
    assert group.step([], 5_899) == []
    assert group.step([], 5_900) == [Record(("a", 1), 7), LatencyMarker(1, "op", 0)]
    assert group.step([], 5_901) == []


def test_buffer_of_a_slice_is_flushed_by_each_step() -> None:
    """Each step may be the last; updates within a step are still combined."""
    group = each_second(quiet_ms=None)

    assert group.step([("a", 1, 7), ("a", 2, 8)], 5_100) == [Record(("a", 2), 8)]
    assert group.wakes_at() is None


def test_buffer_is_flushed_before_a_checkpoint() -> None:
    """Each step ends with a batch that is committed; in backlog too."""
    group = _Worker(buffers(BufferOutput(interval_ms=60_000, at_checkpoint=True), quiet_ms=60_000))

    assert group.step([("a", 1, 7), ("a", 2, 8)], 5_100) == [Record(("a", 2), 8)]
    assert group.step([BACKLOG, ("a", 3, 9)], 5_200) == [BACKLOG, Record(("a", 3), 9)]
    assert group.wakes_at() is None


def test_buffer_begins_its_first_interval_with_its_first_step() -> None:
    """The first flush is not due at once, although the clock shows the time of day."""
    group = _Worker(buffers(BufferOutput(interval_ms=1_000), quiet_ms=5_000))

    assert group.step([("a", 1, None)], 1_700_000_000_000) == []
    assert group.wakes_at() == 1_700_000_001_000


def test_buffer_reports_how_many_records_it_saved() -> None:
    """Replaced records are counted, over restarts too."""
    group = each_second()
    group.step([("a", 1, None), ("a", 2, None), ("b", 1, None)], 5_100)
    group.remembered[0] = StateCache()
    group.step([("a", 3, None)], 5_200)
    assert group.runtime.read(group.store)[0].counters == {}

    assert len(group.step([("c", 1, None)], 6_000)) == 2
    assert group.runtime.read(group.store)[0].counters == {"saved_records": 2}


def test_buffer_reports_its_size_and_age() -> None:
    """Both are reported after each step."""
    group = each_second()

    def gauges(items: Sequence[Item], now_ms: int) -> dict[str, int]:
        stepped = group.runtime.step(0, packed(items), now_ms, group.store, group.remembered[0])
        return stepped.outputs.gauges

    assert gauges([("a", 1, None), ("b", 1, None)], 5_100) == {"held_records": 2, "held_since_ms": 5_100}
    assert gauges([("c", 1, None)], 5_200) == {"held_records": 3, "held_since_ms": 5_100}
    assert gauges([], 6_000) == {"held_records": 0}


def test_buffer_writes_in_proportion_to_its_input() -> None:
    """Written bytes do not grow with the buffered records, and emitted records are deleted."""
    group = each_second(quiet_ms=100_000)
    group.step([(f"key-{n}", n, None) for n in range(20_000)], 5_100)
    held = sum(map(len, group.store.segments.values()))

    before = set(group.store.segments)
    for clock in range(5_101, 5_150):
        group.step([("key-7", clock, None)], clock)
    written = sum(len(group.store.segments[number]) for number in set(group.store.segments) - before)

    assert written < held / 4


def test_state_of_another_version_or_another_buffer_is_refused() -> None:
    """Its buffered records would be lost."""
    group = each_second()
    group.step([("a", 1, None)], 5_100)
    other = _Worker(buffers(BufferOutput(interval_ms=1_000, keyed=False)))
    other.store = group.store
    with pytest.raises(StateError, match="latest by"):
        other.step([], 5_200)

    ((number, segment),) = group.store.segments.items()
    group.store.segments[number] = bytes([9]) + segment[1:]
    group.remembered[0] = StateCache()
    with pytest.raises(StateError, match="version 9"):
        group.step([], 5_200)


@pytest.mark.parametrize("most", [1, 3, 5_000, 100_000])
def test_latest_records_count_keys(most: int) -> None:
    """Keys are counted by column, for rows one by one and for ten thousand at once."""
    chance = random.Random(5)  # noqa: S311 - no secret
    latest, held = LatestRecords(("key",), ROWS), dict[str, int]()
    left_over = 40_000 if most > 3 else 40
    while left_over:
        count = min(left_over, chance.choice([1, 10, 10_000]))
        keys = [f"k{chance.randrange(most + most // 2 + 2)}" for _ in range(count)]
        rows = pa.record_batch([keys, range(count), [None] * count], schema=ROWS)
        left_over -= count
        while rows.num_rows:
            room = latest.room(rows, most)
            latest.add(rows.slice(0, room))
            for key, value in zip(*(rows.slice(0, room).column(n).to_pylist() for n in (0, 1)), strict=True):
                held.pop(key, None)
                held[key] = value
                assert len(held) <= most
            rows = rows.slice(room)
            found = latest.rows().to_pydict()
            assert list(zip(found["key"], found["value"], strict=True)) == list(held.items())
            assert latest.reaches(most) == (len(held) == most)
            assert rows.num_rows == 0 or room >= 1
            if len(held) == most:
                latest.clear()
                held.clear()


WINDOWS = ColumnarWindows(
    config=WindowConfig(
        assigner=TumblingWindows(10),
        function=WindowAggregate(BuiltIns((("total", BuiltIn("sum", ("value",))),))),
        allowed_lateness_ms=20,
        late="side-output",
    ),
    keys=("key",),
    timestamp="t",
    rows=ROWS,
    late=("key", "value", "t"),
)
"""They emit again for late records, and put later ones out."""
BOTH = BufferedOperator(
    operator=WINDOWS,
    buffer=FlushBuffers(
        config=BufferOutput(interval_ms=10),
        quiet_ms=0,
        keys=("key", "@start_ms", "@end_ms"),
        timestamp=TIMESTAMP,
        rows=WINDOWS.outputs[RESULTS],
    ),
)
timed = st.tuples(st.sampled_from("ab"), st.integers(1, 9), st.integers(0, 40))
event_times = st.lists(
    st.tuples(
        st.integers(0, 7),
        st.lists(
            st.one_of(timed, timed, st.just("watermark"), st.builds(RecordAttributes, st.booleans())),
            max_size=6,
        ),
    ),
    max_size=12,
)


def emitted(out: StepOutputs) -> list[tuple[str, Any]]:
    """Each output with its name."""
    return [
        (output, TAGGED.decode(row["element"]) if output == CONTROL else tuple(row.values()))
        for output, batch in out.batches
        for row in batch.to_pylist()
    ]


def without_buffer(windows: KeyGroup, items: Sequence[Item]) -> Iterator[tuple[str, Any]]:
    """Output of the windows in a step, with the watermarks between."""
    for item in items:
        out = StepOutputs()
        if isinstance(item, Watermark):
            windows.advance_watermark(item.timestamp_ms, out)
        elif isinstance(item, tuple):
            windows.rows(pa.record_batch([[value] for value in item], schema=ROWS), out)
        yield from emitted(out)
        if isinstance(item, Watermark | RecordAttributes):
            yield CONTROL, item


def buffered(buffer: RecordBuffer[Any, Any], came: list[tuple[str, Any]], now_ms: int) -> list[Any]:
    """Output of the pure buffer for it; empty input gives empty output."""
    found = [*buffer.poll(now_ms)]
    for output, what in came:
        if output == RESULTS:
            row = dict(zip(WINDOWS.outputs[RESULTS].names, what, strict=True))
            latest = Record(what, row[TIMESTAMP])
            found += buffer.record((row["key"], row["@start_ms"]), latest, now_ms)
        elif output == CONTROL:
            found += buffer.control(what, now_ms)
    return [(RESULTS, each.value) if isinstance(each, Record) else (CONTROL, each) for each in found]


@given(event_times, workers, st.sampled_from([0, 300, 1 << 20]))
def test_buffered_windows_emit_what_a_buffer_downstream_of_windows_does(
    happened: list[tuple[int, list[Any]]], taken_by: list[int], smallest_log: int
) -> None:
    """One operator with one state emits what two operators emit; late records are not buffered."""
    both = _Worker(BOTH, 3, smallest_log)
    windows, pure, now_ms = WINDOWS.open(), RecordBuffer[Any, Any](BOTH.buffer.config), 0

    for number, (moves, items) in enumerate(rising(happened)):
        now_ms += moves
        if number == 0:
            pure = RecordBuffer(BOTH.buffer.config, now_ms)
        worker = both.remembered[taken_by[number]]
        came = list(without_buffer(windows, items))
        expected = buffered(pure, came, now_ms)
        if all(isinstance(item, RecordAttributes) for item in items):
            released = pure.input_idle(now_ms)
            expected += [
                (RESULTS, each.value) if isinstance(each, Record) else (CONTROL, each) for each in released
            ]

        found = emitted(both.runtime.step(0, packed(items), now_ms, both.store, worker).outputs)

        assert [each for each in found if each[0] == "late"] == [each for each in came if each[0] == "late"]
        assert [each for each in found if each[0] != "late"] == expected
