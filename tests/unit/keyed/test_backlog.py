"""The backlog status of a key group changes in order with its records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from flowcore.elements import EndOfInput, RecordAttributes, StreamElement
from flowcore.keyed.control import QUERY, Channel, ControlElement
from flowcore.keyed.operator import ATTRIBUTES, KeyGroup, KeyGroupOperator
from flowcore.keyed.output_columns import RESULTS
from flowcore.keyed.packed import Packed
from flowcore.keyed.state_cache import StateCache
from flowcore.serializers.formats import RawFormat
from flowcore.serializers.tagged import TaggedSerializer
from flowcore.testing.memory_store import MemoryStore
from tests.unit.keyed.test_runtime import ROWS, rows, runtime_of


class Hearing(KeyGroupOperator, KeyGroup):
    """A key group that records the order of its calls and has no state."""

    layout, outputs, memory_factor = "hears", dict[str, pa.Schema](), 1

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def open(self) -> Any:
        return self

    def attributes(self, attributes: RecordAttributes, out: Any) -> None:  # noqa: ARG002
        self.heard.append(attributes.backlog)

    def rows(self, rows: pa.RecordBatch, out: Any) -> None:  # noqa: ARG002
        self.heard.append(rows.num_rows)

    def advance_watermark(self, watermark_ms: int, out: Any) -> None: ...

    def finish(self, out: Any, *, idle: bool) -> None:  # noqa: ARG002
        self.heard.append("idle" if idle else "busy")

    def header(self) -> Any:
        return {}

    def delta(self) -> None: ...

    def restore(self, header: Any, pieces: Any) -> None: ...


def test_a_change_of_backlog_is_passed_on_once_before_the_records_after_it() -> None:
    """A repeated status is not a change, also after a restart; a status alone leaves a step idle."""
    group = Hearing()
    runtime, store, remembered = runtime_of(group), MemoryStore(), StateCache()

    def step(*statuses: bool, records: int = 0) -> list[Any]:
        group.heard.clear()
        elements = [
            ControlElement(QUERY, "", "", at, RecordAttributes(each)) for at, each in enumerate(statuses)
        ]
        items = [Packed.of_control(Channel("", ""), elements=elements)]
        given_rows = rows(*[("a", 1, 1)] * records) if records else []
        stepped = runtime.step(0, [*given_rows, *reversed(items)], 0, store, remembered)
        assert stepped.manifest.sizes().get("backlog") == known
        return group.heard

    known: int | None = None
    assert step(records=1) == [1, "busy"]
    known = 1
    assert step(True, records=2) == [True, 2, "busy"]
    assert step(True, True) == ["idle"]
    remembered.pop(runtime.query, 0)
    assert step(True, records=1) == [1, "busy"]
    assert step(False, True, records=1) == [False, True, 1, "busy"]
    known = 0
    assert step(True, False) == [False, "idle"]


def test_attributes_of_a_topic_are_in_order_with_its_records() -> None:
    """A channel's status changes between its records; backlog ends when all channels are live."""
    group = Hearing()
    runtime = runtime_of(group, partitions=2, strategy=None)
    store, remembered = MemoryStore(), StateCache()

    def step(*channels: tuple[int, Sequence[int | StreamElement[Any]]]) -> list[Any]:
        """Each channel has numbers of records, and elements."""
        group.heard.clear()
        items = []
        for partition, stream in channels:
            channel, elements = Channel("in", str(partition)), []
            for at, each in enumerate(stream):
                if isinstance(each, int):
                    batch = pa.record_batch([["a"] * each, [1] * each, [1] * each], schema=ROWS)
                    items.append(Packed.of_rows(channel, at, batch))
                else:
                    elements.append(ControlElement(*channel, "x", at, each))
            items.append(Packed.of_control(channel, {channel: None}, elements))
        runtime.step(0, items, 0, store, remembered)
        return group.heard[:-1]

    begin, end = RecordAttributes(backlog=True), RecordAttributes(backlog=False)
    assert step((0, [3, begin, 1]), (1, [2])) == [3, True, 3]
    assert step((0, [end, 4]), (1, [1, end, 2, begin, 5])) == [5, False, 2, True, 5]
    remembered.pop(runtime.query, 0)
    assert step((1, [1, EndOfInput(), 7])) == [1, False, 7]


class Echo(Hearing):
    """A key group that emits its records."""

    def rows(self, rows: pa.RecordBatch, out: Any) -> None:
        out.rows(RESULTS, rows)


def test_outputs_say_their_attributes_where_functions_ask() -> None:
    """A step begins with the status of the step before it, and a change precedes what follows it."""
    runtime = replace(runtime_of(Echo(), strategy=None), emits_attributes=True)
    store, remembered, channel = MemoryStore(), StateCache(), Channel("in", "0")

    def step(*stream: int | StreamElement[Any]) -> list[Any]:
        """Numbers of records, and elements."""
        items, elements = [], []
        for at, each in enumerate(stream):
            if isinstance(each, int):
                batch = pa.record_batch([["a"] * each, [1] * each, [1] * each], schema=ROWS)
                items.append(Packed.of_rows(channel, at, batch))
            else:
                elements.append(ControlElement(*channel, "", at, each))
        items.append(Packed.of_control(channel, {channel: None}, elements))
        found = runtime.step(0, items, 0, store, remembered).outputs.batches
        return [
            decode(rows.column(0)[0].as_py()) if output == ATTRIBUTES else rows.num_rows
            for output, rows in found
        ]

    decode = TaggedSerializer(RawFormat()).decode
    begin, end = RecordAttributes(backlog=True), RecordAttributes(backlog=False)
    assert step(1, begin, 2) == [end, 1, begin, 2]
    assert step(3) == [begin, 3]
    assert step(end, 1) == [begin, end, 1]
