"""Key groups on Spark: packed rows go to a step of their key group, whose state is in Spark's state store.

Spark's Python state operators take each row apart, so rows are packed in front of it and unpacked behind it,
both with ``mapInArrow``. What is between is one call for each key group in a batch, whatever it holds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from flowcore.elements import LatencyMarkerEvent
from flowcore.keygroups.operator import Outputs
from flowcore.keygroups.packed import PACKED, Packed
from flowcore.keygroups.packing import Packing
from flowcore.keygroups.runtime import Remembered, Runtime, Stepped
from flowcore.serializers.events import LatencyMarkerEventSerializer

__all__ = ["COUNTERS", "COUNTER_ROWS", "MARKERS", "MARKER_ROWS", "Outlet", "Unpacking", "by_key_group"]

MARKERS, COUNTERS = "_markers", "_counters"
"""Outputs beside an operator's own."""

_PACKED = "key_group INT, kind TINYINT, channel STRING, at BIGINT, payload BINARY"
_OUTPUT = StructType([StructField("output", StringType()), StructField("content", BinaryType())])
_MANIFEST = StructType([StructField("content", BinaryType())])
_NUMBER = StructType([StructField("number", LongType())])
_EVENTS = LatencyMarkerEventSerializer()
_remembered: Remembered = {}
"""Of this worker process."""
_environments = Lock()
"""Queries that start side by side share the context whose environment it is."""


def by_key_group(
    frame: DataFrame, packing: Packing, runtime: Runtime, *, workers: str | None = None
) -> DataFrame:
    """Run an operator over a frame with the columns that ``packing`` asks for; then `Unpacking` follows.

    Args:
        frame: The frame.
        packing: How its rows come to their key groups.
        runtime: The operator.
        workers: The name of the pool of Python workers. By default each query has a pool of its own, so
            that its few workers remember the state that others could not use.
    """
    packed = frame.mapInArrow(packing.run, _PACKED)
    with _environment(frame, FLOWCORE_KEY_GROUPS=workers or runtime.query):
        stepped: DataFrame = packed.groupBy("key_group").transformWithStateInPandas(
            _Processor(runtime), outputStructType=_OUTPUT, outputMode="Update", timeMode="ProcessingTime"
        )
    return stepped


class _Processor(StatefulProcessor):
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._store = _SparkStore(handle)
        self._handle = handle

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803 - Spark's names
        """Take what came for a key group."""
        names = PACKED.names[1:]
        items = [Packed(*row) for frame in rows for row in frame[names].itertuples(index=False, name=None)]
        return self._step(key, items, timerValues, expired=False)

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: Any,  # noqa: N803
        expiredTimerInfo: Any,  # noqa: N803, ARG002
    ) -> Iterator[pd.DataFrame]:
        """Wake a key group to which nothing came."""
        return self._step(key, [], timerValues, expired=True)

    def close(self) -> None:
        """Nothing is open."""

    def _step(self, key: Any, items: list[Packed], timers: Any, *, expired: bool) -> Iterator[pd.DataFrame]:
        (group,) = key
        clock_ms = timers.getCurrentProcessingTimeInMs()
        stepped = self._runtime.step(int(group), items, clock_ms, self._store, _remembered)
        before_ms, wake_ms = stepped.wake_before_ms, stepped.manifest.wake_ms
        if wake_ms != before_ms:
            if before_ms is not None and not expired:  # Spark itself takes out the one that has expired
                self._handle.deleteTimer(before_ms)
            if wake_ms is not None:
                self._handle.registerTimer(wake_ms)
        rows = list(_contents(stepped))
        yield pd.DataFrame({"output": [name for name, _ in rows], "content": [each for _, each in rows]})


class _SparkStore:
    def __init__(self, handle: StatefulProcessorHandle) -> None:
        self._manifest = handle.getValueState("manifest", _MANIFEST)
        self._segments = handle.getMapState("segments", _NUMBER, _MANIFEST)

    def manifest(self) -> bytes | None:
        found = self._manifest.get()
        return None if found is None else bytes(found[0])

    def put_manifest(self, manifest: bytes, /) -> None:
        self._manifest.update((manifest,))

    def segment(self, number: int, /) -> bytes | None:
        found = self._segments.getValue((number,))
        return None if found is None else bytes(found[0])

    def put_segment(self, number: int, content: bytes, /) -> None:
        self._segments.updateValue((number,), (content,))

    def remove_segment(self, number: int, /) -> None:
        self._segments.removeKey((number,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlet:
    """How the rows of an output go on.

    Attributes:
        schema: Of the rows as the operator puts them out.
        columns: From column of the result to column of these rows.
        lane: The value of the lane column.
    """

    schema: pa.Schema
    columns: Mapping[str, str]
    lane: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpacking:
    """From what steps put out to rows.

    Attributes:
        outlets: Of each output.
        schema: Of the rows.
        lane: Its lane column.
    """

    outlets: Mapping[str, Outlet]
    schema: pa.Schema
    lane: str

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Unpack what one task has put out."""
        for batch in batches:
            for output, content in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                outlet = self.outlets.get(output)
                if outlet is not None:
                    yield self.rows(outlet, pa.ipc.read_record_batch(pa.py_buffer(content), outlet.schema))

    def rows(self, outlet: Outlet, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of one output among the columns of all."""
        count = rows.num_rows
        arrays = [
            pa.array([outlet.lane] * count, field.type)
            if field.name == self.lane
            else rows.column(outlet.columns[field.name]).cast(field.type)
            if field.name in outlet.columns
            else pa.nulls(count, field.type)
            for field in self.schema
        ]
        return pa.record_batch(arrays, schema=self.schema)


_MARKER: dict[str, pa.DataType] = {"event": pa.binary(), "partition": pa.int32()}
MARKER_ROWS = pa.schema(_MARKER)
COUNTER_ROWS = pa.schema([pa.field("counters", pa.string())])
"""Of these outputs."""


def _contents(stepped: Stepped) -> Iterator[tuple[str, bytes]]:
    out: Outputs = stepped.outputs
    for output, batch in out.batches:
        yield output, batch.serialize().to_pybytes()
    if out.markers:
        events = [_EVENTS.encode(LatencyMarkerEvent.from_marker(marker)) for marker in out.markers]
        partitions = [marker.subtask for marker in out.markers]
        rows = pa.record_batch(
            [pa.array(events, pa.binary()), pa.array(partitions, pa.int32())], schema=MARKER_ROWS
        )
        yield MARKERS, rows.serialize().to_pybytes()
    counters = json.dumps(out.counters | out.gauges | stepped.manifest.sizes())
    yield COUNTERS, pa.record_batch([pa.array([counters])], schema=COUNTER_ROWS).serialize().to_pybytes()


@contextmanager
def _environment(frame: DataFrame, **variables: str) -> Iterator[None]:
    """Spark keeps Python workers apart by the environment that they were asked for with."""
    environment: dict[str, str] = frame.sparkSession.sparkContext.environment
    with _environments:
        before = dict(environment)
        environment.update(variables)
        try:
            yield
        finally:
            environment.clear()
            environment.update(before)
