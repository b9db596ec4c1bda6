"""What leaves a step, and when, if records, markers and control elements are in it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from flowcore.elements import LatencyMarker, LatencyMarkerEvent, RecordAttributes, Watermark
from flowcore.flush.config import BufferOutput
from flowcore.flush.operator import FlushBuffers
from flowcore.keyed.control import Channel, ControlElement
from flowcore.keyed.operator import CONTROL
from flowcore.keyed.output_columns import RESULTS
from flowcore.keyed.packed import Packed, sort_packed
from flowcore.keyed.runtime import Runtime
from flowcore.keyed.state_cache import StateCache
from flowcore.ranking.keyed import RANK
from flowcore.retraction.aggregates import RetractingAggregates
from flowcore.retraction.ranking import RetractingRanking
from flowcore.serializers.events import LatencyMarkerEventSerializer
from flowcore.serializers.formats import RawFormat
from flowcore.serializers.tagged import TaggedSerializer
from flowcore.testing.memory_store import MemoryStore
from flowcore.watermarks.progress import WatermarkSource
from flowcore.windows.built_in import BuiltIn

CHANNEL = Channel("in", "0")


def runtime_of(operator: Any, rows: pa.Schema) -> Runtime:
    return Runtime(
        operator=operator, query="q", key_groups=1, rows=rows, emits_control=True,
        sources={"in": WatermarkSource(None, ("0",))},
    )  # fmt: skip


@pytest.mark.parametrize("with_markers", [False, True])
def test_latency_markers_are_no_input_for_which_a_buffer_waits(with_markers: bool) -> None:
    """A lone record leaves after two quiet seconds, and not at the end of the interval."""
    rows = pa.schema([("t", pa.int64()), ("k", pa.string())])
    buffers = FlushBuffers(config=BufferOutput(60_000), quiet_ms=2_000, keys=("k",), timestamp="t", rows=rows)
    runtime, store, cache = runtime_of(buffers, rows), MemoryStore(), StateCache()
    marker = LatencyMarkerEvent.from_marker(LatencyMarker(7, "in", 0))
    event = Packed.of_event(CHANNEL, LatencyMarkerEventSerializer().encode(marker))
    record = Packed.of_rows(CHANNEL, 0, pa.RecordBatch.from_pylist([{"t": 1, "k": "a"}], rows))
    runtime.step(0, sort_packed([Packed.of_control(CHANNEL, {CHANNEL: 1}), record]), 1_000, store, cache)

    left_ms = [
        now_ms
        for now_ms in range(2_000, 70_000, 1_000)
        for output, _ in runtime.step(0, [event] * with_markers, now_ms, store, cache).outputs.batches
        if output == RESULTS
    ]

    assert left_ms == [3_000]


CHANGES = pa.schema([("t", pa.int64()), ("k", pa.string()), ("c", pa.int8())])
COUNT = RetractingAggregates(
    keys=("k",), aggregates=(("n", BuiltIn("count", ())),), change="c", rows=CHANGES, passed={"at": "t"}
)
RANKING = RetractingRanking(
    keys=("k",), row_key=("t",), n=2, order=(("t", False),), change="c", rows=CHANGES, results={}, passed={}
)


@pytest.mark.parametrize(("operator", "column"), [(COUNT, "n"), (RANKING, RANK)])
def test_changes_leave_before_what_follows_their_records(operator: Any, column: str) -> None:
    """Attributes and watermarks are of the records after and before them, in one step too."""
    record = pa.RecordBatch.from_pylist([{"t": 1_000, "k": "a", "c": 1}], CHANGES)
    places = {
        1: RecordAttributes(True),
        3: RecordAttributes(False),
        4: Watermark(5_000),
    }
    elements = [ControlElement("in", "0", "", place, element) for place, element in places.items()]
    items = [
        Packed.of_control(CHANNEL, {CHANNEL: None}, elements),
        Packed.of_rows_with_places(CHANNEL, np.array([2]), record),
    ]

    stepped = runtime_of(operator, CHANGES).step(0, sort_packed(items), 0, MemoryStore(), StateCache())

    serializer: TaggedSerializer[bytes] = TaggedSerializer(RawFormat())
    found = [
        batch[column].to_pylist() if output == RESULTS else serializer.decode(batch["element"][0].as_py())
        for output, batch in stepped.outputs.batches
        if output in {RESULTS, CONTROL}
    ]
    assert found == [places[1], [1], places[3], places[4]]
