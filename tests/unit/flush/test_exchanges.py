"""Buffers of operators that follow each other: what the first one emits is the input of the next one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowcore.elements import RecordAttributes, Watermark, WatermarkStatus
from flowcore.flush import BufferOutput
from flowcore.flush.operator import FlushBuffers
from flowcore.keyed.control import Channel, ControlElement
from flowcore.keyed.operator import FLUSH_EVENT, KeyGroup, KeyGroupOperator, StepOutputs
from flowcore.keyed.output_columns import RESULTS
from flowcore.keyed.packed import Packed
from flowcore.keyed.packing import InputColumns, Packing, Recipient
from flowcore.keyed.runtime import Runtime
from flowcore.keyed.state_cache import StateCache
from flowcore.serializers.formats import RawFormat
from flowcore.serializers.tagged import TaggedSerializer
from flowcore.testing.memory_store import MemoryStore
from flowcore.watermarks.progress import WatermarkSource
from tests.unit.keyed.stored_group import read_state

ROWS = pa.schema([pa.field("key", pa.string()), pa.field("value", pa.int64()), pa.field("t", pa.int64())])
ADDED = pa.schema([
    pa.field("element", pa.binary()), pa.field("to", pa.int32()),
    pa.field("from", pa.int32()), pa.field("at", pa.int64()),
])  # fmt: skip
INPUTS = InputColumns(
    channel="from", offset="at", element="element",
)  # fmt: skip
GROUPS = 2
TAGGED: TaggedSerializer[bytes] = TaggedSerializer(RawFormat())
Row = tuple[str, int, int]
Item = Row | Watermark | WatermarkStatus | RecordAttributes
CHANNEL = Channel("in", "0")


def group_of(key: str) -> int:
    return ord(key) % GROUPS


class PassOn(KeyGroupOperator, KeyGroup):
    """An operator without a buffer, whose output is its input."""

    layout = "none"
    memory_factor = 1
    outputs: ClassVar[Mapping[str, pa.Schema]] = {RESULTS: ROWS}

    def open(self) -> PassOn:
        return self

    def rows(self, rows: pa.RecordBatch, out: StepOutputs) -> None:
        out.rows(RESULTS, rows)

    def ignore(self, *_: object, **__: object) -> None: ...

    advance_watermark = restore = delta = ignore

    def header(self) -> Mapping[str, Any]:
        return {}

    def snapshot(self) -> Iterator[bytes]:
        yield from ()


class Chain:
    """Buffers in a row, each in two key groups; the workers keep no state between steps.

    Args:
        configs: One for each; None for an operator without a buffer.
        quiet_ms: After which each buffer is flushed because nothing is available.

    Attributes:
        left: What the last one has emitted, by key group.
    """

    def __init__(self, configs: Sequence[BufferOutput | None], quiet_ms: int = 1_000_000) -> None:
        self.processing_time_ms = 0
        self.runtimes = [
            Runtime(
                operator=PassOn() if config is None else buffers(config, quiet_ms),
                query=str(number),
                key_groups=GROUPS,
                sources={"in": WatermarkSource(None, tuple(map(str, range(GROUPS if number else 1))))},
                rows=ROWS,
                emits_control=True,
                reads_control=number > 0,
            )
            for number, config in enumerate(configs)
        ]
        self.stores = [[MemoryStore() for _ in range(GROUPS)] for _ in configs]
        self.left: list[list[Item]] = [[] for _ in range(GROUPS)]

    def step(self, *items: Item) -> list[Row]:
        """Run a batch; the records that the last one emits."""
        inputs = [list(_first(items, group)) for group in range(GROUPS)]
        for number in range(len(self.runtimes)):
            emitted = [self._run(number, group, packed) for group, packed in enumerate(inputs)]
            inputs = _exchange(emitted)
        found = [list(_elements(batches)) for batches in emitted]
        for group, each in enumerate(found):
            self.left[group] += each
        return sorted(item for each in found for item in each if isinstance(item, tuple))

    def wake_ms(self, number: int) -> int | None:
        """When a buffer must be flushed without input."""
        times = (read_state(self.runtimes[number], store)[0].wake_ms for store in self.stores[number])
        return min((time for time in times if time is not None), default=None)

    def _run(self, number: int, group: int, items: list[Packed]) -> list[tuple[str, pa.RecordBatch]]:
        runtime, store = self.runtimes[number], self.stores[number][group]
        return runtime.step(group, items, self.processing_time_ms, store, StateCache()).outputs.batches


def buffers(config: BufferOutput, quiet_ms: int) -> FlushBuffers:
    return FlushBuffers(config=config, quiet_ms=quiet_ms, keys=("key",), timestamp="t", rows=ROWS)


def _first(items: Iterable[Item], group: int) -> Iterator[Packed]:
    """The input of a key group from one partition."""
    elements, came = [], False
    for at, item in enumerate(items):
        if isinstance(item, tuple):
            came = True
            if group_of(item[0]) == group:
                yield Packed.of_rows(CHANNEL, at, pa.record_batch([[value] for value in item], schema=ROWS))
        else:
            elements.append(ControlElement(*CHANNEL, "", at, item))
    yield Packed.of_control(CHANNEL, {CHANNEL: None} if came else {}, elements)


def _exchange(emitted: Sequence[list[tuple[str, pa.RecordBatch]]]) -> list[list[Packed]]:
    """Pack the outputs of all key groups as one task does."""
    rows = [
        {**row, "to": group_of(row["key"]) if "key" in row else None} | {"from": group}
        for group, batches in enumerate(emitted)
        for _, batch in batches
        for row in batch.to_pylist()
    ]
    numbered = [{**row, "at": at} for at, row in enumerate(rows)]
    batch = pa.RecordBatch.from_pylist(numbered, schema=pa.schema([*ROWS, *ADDED]))
    recipient = Recipient(key_group="to", columns=tuple(ROWS.names))
    packing = Packing(
        inputs=INPUTS, sources=("in",), key_groups=GROUPS, recipients=(recipient,), upstream=frozenset({"in"})
    )
    found: list[list[Packed]] = [[] for _ in range(GROUPS)]
    for packed in packing.run([batch] if rows else []):
        for row in packed.to_pylist():
            found[row.pop("key_group")].append(Packed(**row))
    return found


def _elements(batches: Iterable[tuple[str, pa.RecordBatch]]) -> Iterator[Item]:
    for output, batch in batches:
        for row in batch.to_pylist():
            if output == RESULTS:
                yield (row["key"], row["value"], row["t"])
            elif row["element"] != FLUSH_EVENT:
                yield TAGGED.decode(row["element"])  # type: ignore[misc]


def test_watermark_of_a_buffer_reaches_the_next_operator_after_the_records_that_it_covers() -> None:
    """While records are buffered their watermark is too; records after it follow."""
    chain = Chain([BufferOutput(100), None])

    assert chain.step(("a", 1, 5), ("c", 2, 15), ("b", 3, 5), Watermark(10)) == []
    assert chain.left == [[], []]
    chain.processing_time_ms = 100
    chain.step()
    assert chain.left == [[("b", 3, 5), Watermark(10)], [("a", 1, 5), Watermark(10), ("c", 2, 15)]]


def test_buffers_in_a_row_are_flushed_a_tenth_of_the_interval_after_each_other() -> None:
    """A result that arrives right after a flush is emitted one interval and two tenths later."""
    chain = Chain([BufferOutput(100), BufferOutput(100, gather_ms=10), BufferOutput(100, gather_ms=10)])
    left = []
    for processing_time_ms in range(0, 400, 5):
        chain.processing_time_ms = processing_time_ms
        left += [
            (processing_time_ms, each)
            for each in chain.step(*[("a", processing_time_ms, processing_time_ms)])
        ]

    assert left == [(time_ms + 20, ("a", time_ms - 5, time_ms - 5)) for time_ms in (100, 200, 300)]


def test_flush_passes_an_operator_without_a_buffer_once_in_a_step() -> None:
    """It wakes the next buffer; the one between buffers ends it and emits its own."""
    chain = Chain([BufferOutput(100), None, BufferOutput(1_000, gather_ms=10), BufferOutput(1_000)])
    chain.step(("a", 1, 5), ("b", 1, 5))
    assert chain.wake_ms(0) == 100

    chain.processing_time_ms = 100
    chain.step()
    assert chain.wake_ms(2) == 110

    chain.processing_time_ms = 110
    chain.step()
    assert chain.wake_ms(2) is None
    assert chain.wake_ms(3) == 1_000  # its plan does not gather


def test_nothing_is_available_where_only_control_elements_arrive() -> None:
    """The buffers are flushed when the input is quiet, though watermarks still advance."""
    chain = Chain([None, BufferOutput(1_000)], quiet_ms=50)
    assert chain.step(("a", 1, 500)) == []

    chain.processing_time_ms = 49
    assert chain.step(Watermark(1)) == []
    chain.processing_time_ms = 50
    assert chain.step(Watermark(2)) == [("a", 1, 500)]
    assert chain.left[1] == [Watermark(2), ("a", 1, 500)]


def test_a_key_group_without_records_is_not_quiet_while_others_have_some() -> None:
    """Otherwise a key would be emitted more often than once in an interval."""
    chain = Chain([None, BufferOutput(1_000)], quiet_ms=50)
    chain.step(("a", 1, 500))

    chain.processing_time_ms = 49
    assert chain.step(("b", 1, 500)) == []
    chain.processing_time_ms = 98
    assert chain.step() == []
    chain.processing_time_ms = 99
    assert chain.step() == [("a", 1, 500), ("b", 1, 500)]


def test_a_channel_that_becomes_active_holds_the_watermark_before_its_buffer_is_flushed() -> None:
    """Otherwise the watermark of a key group with an empty buffer would make its records late."""
    chain = Chain([BufferOutput(100), None])
    chain.step(WatermarkStatus(idle=True))
    chain.left = [[], []]

    assert chain.step(("a", 1, 5), WatermarkStatus(idle=False), Watermark(10)) == []
    assert chain.left == [[WatermarkStatus(idle=False)], [WatermarkStatus(idle=False)]]
    chain.processing_time_ms = 100
    chain.step()
    assert chain.left[1][1:] == [("a", 1, 5), Watermark(10)]


def test_the_end_of_backlog_flushes_all_buffers() -> None:
    """Each receives the end after the records that the one before it has emitted, and emits all it has."""
    chain = Chain([BufferOutput(100), BufferOutput(100, gather_ms=10)])
    chain.step(RecordAttributes(backlog=True), ("a", 1, 5))
    chain.processing_time_ms = 5_000
    assert chain.step(("b", 2, 6)) == []

    assert chain.step(RecordAttributes(backlog=False), ("c", 3, 7)) == [("a", 1, 5), ("b", 2, 6)]
    begin, end = RecordAttributes(backlog=True), RecordAttributes(backlog=False)
    assert chain.left == [[begin, ("b", 2, 6), end], [begin, ("a", 1, 5), end]]


rows = st.tuples(st.sampled_from("abcd"), st.integers(0, 20))
batches = st.lists(
    st.tuples(st.integers(0, 60), st.lists(st.one_of(rows, rows, st.just("watermark")), max_size=8)),
    max_size=15,
)
configs = st.sampled_from([
    None, BufferOutput(1), BufferOutput(100), BufferOutput(100, gather_ms=10),
    BufferOutput(50, memory_buffer_only=True, max_entries=2, gather_ms=5),
])  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(st.lists(configs, min_size=2, max_size=3), batches)
def test_order_survives_any_buffers(
    stages: list[BufferOutput | None], happened: list[tuple[int, list[tuple[str, int] | str]]]
) -> None:
    """The last value of each key arrives, values in order; no record follows a watermark that covers it."""
    chain, watermark_ms, value = Chain(stages), 0, 0
    latest: dict[str, int] = {}
    covered: dict[int, int] = {}
    for moves, items in happened:
        chain.processing_time_ms += moves
        step: list[Item] = []
        for item in items:
            value += 1
            if isinstance(item, str):
                watermark_ms += 10
                covered[value] = watermark_ms
                step.append(Watermark(watermark_ms))
            else:
                latest[item[0]] = value
                step.append((item[0], value, watermark_ms + 1 + item[1]))
        chain.step(*step)
    for _ in stages:
        chain.processing_time_ms += 100
        chain.step()

    for key in "abcd":
        values = [item[1] for item in chain.left[group_of(key)] if isinstance(item, tuple) and item[0] == key]
        assert all(before < after for before, after in pairwise(values))
        assert values[-1:] == ([latest[key]] if key in latest else [])
    for left in chain.left:
        assert [item for item in left if isinstance(item, Watermark)][-1:] == [
            Watermark(watermark_ms)
        ] * bool(covered)
        for place, element in enumerate(left):
            if isinstance(element, Watermark):
                after = [item for item in left[place + 1 :] if isinstance(item, tuple)]
                assert all(item[2] > element.timestamp_ms for item in after)


@pytest.mark.parametrize("count", [2, 4])
@settings(max_examples=10, deadline=None)
@given(arrivals=st.lists(st.integers(1, 40), min_size=1, max_size=12))
def test_delay_of_a_chain_is_bounded_by_one_interval_and_a_tenth_for_each_further_buffer(
    count: int, arrivals: list[int]
) -> None:
    """This holds whenever records arrive; batches run each millisecond that something is due."""
    first = BufferOutput(100)
    chain = Chain([first, *[BufferOutput(100, gather_ms=10)] * (count - 1)])
    times_ms: dict[int, int] = {}
    due = {sum(arrivals[: number + 1]): number for number in range(len(arrivals))}
    last: dict[str, int] = {}
    for processing_time_ms in range(sum(arrivals) + 100 + 10 * count):
        chain.processing_time_ms = processing_time_ms
        step: list[Item] = []
        if processing_time_ms in due:
            key = "abc"[due[processing_time_ms] % 3]
            times_ms[due[processing_time_ms]] = processing_time_ms
            step.append((key, due[processing_time_ms], processing_time_ms))
            last[key] = due[processing_time_ms]
        wakes = [chain.wake_ms(number) for number in range(count)]
        if step or any(wake_ms is not None and wake_ms <= processing_time_ms for wake_ms in wakes):
            for each in chain.step(*step):
                assert isinstance(each, tuple)
                assert processing_time_ms - times_ms[each[1]] <= 100 + 10 * (count - 1)
                if last.get(each[0]) == each[1]:
                    del last[each[0]]
    assert not last
