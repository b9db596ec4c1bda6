"""Steps of a buffer on key groups, and of the pure buffer that it is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
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
from flowcore.keyed.control import Channel, ControlElement
from flowcore.keyed.operator import CONTROL, StepOutputs
from flowcore.keyed.packed import Packed
from flowcore.keyed.runtime import Runtime
from flowcore.keyed.state_cache import StateCache
from flowcore.serializers.events import LatencyMarkerEventSerializer
from flowcore.serializers.formats import RawFormat
from flowcore.serializers.tagged import TaggedSerializer
from flowcore.testing.memory_store import MemoryStore
from flowcore.testing.record_buffer import RecordBuffer
from flowcore.watermarks.progress import WatermarkSource
from tests.unit.keyed.stored_group import read_state

ROWS = pa.schema([pa.field("key", pa.string()), pa.field("value", pa.int64()), pa.field("t", pa.int64())])
EVENTS = LatencyMarkerEventSerializer()
TAGGED: TaggedSerializer[bytes] = TaggedSerializer(RawFormat())
ALL = Channel("in", "0")
ACTIVE = WatermarkStatus(idle=False)
Item = tuple[str, int, int | None] | Watermark | WatermarkStatus | LatencyMarker | RecordAttributes
Step = tuple[int, list[Item]]
"""How far processing time advances before it, and its items."""


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


class Worker:
    """Key groups of one buffer: a store, and workers that may have missed steps."""

    def __init__(self, operator: Any, workers: int = 1, smallest_log_bytes: int = 256 << 10) -> None:
        self.runtime = Runtime(
            operator=operator,
            query="q",
            key_groups=1,
            sources={"in": WatermarkSource(None, ("0",))},
            rows=ROWS,
            smallest_log_bytes=smallest_log_bytes,
        )
        self.store = MemoryStore()
        self.remembered: list[StateCache] = [StateCache() for _ in range(workers)]

    def step(self, items: Sequence[Item], now_ms: int, worker: int = 0) -> list[StreamElement[Any]]:
        stepped = self.runtime.step(0, packed(items), now_ms, self.store, self.remembered[worker])
        return left(stepped.outputs)

    def wakes_at(self) -> int | None:
        return read_state(self.runtime, self.store)[0].wake_ms


workers = st.lists(st.integers(0, 2), min_size=13, max_size=13)


def rising(happened: list[tuple[int, list[Any]]]) -> list[Step]:
    """The elements that an operator receives: watermarks in order, statuses and backlog where they change.

    The end of idleness comes before the records of a step. An idle input has no watermarks.
    """
    watermark_ms, idle, backlog = 0, False, None
    found = []
    for moves, items in happened:
        step: list[Item] = []
        if idle and ACTIVE in items:
            step.append(ACTIVE)
            idle = False
        for item in items:
            if item == "watermark" and idle:
                continue
            if isinstance(item, RecordAttributes):
                if item.backlog != backlog:
                    step.append(item)
                backlog = item.backlog
            elif item == "watermark":
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
