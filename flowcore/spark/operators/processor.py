"""The stateful processor that Spark calls in a worker for the key groups of a task.

It holds its runtime as bytes. At each start of such a query, Spark starts a Python process only to read the
declared states, so this module imports nothing that is slow to import.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from flowcore.keyed.state_cache import StateCache
from flowcore.spark.operators.worker_objects import WorkerObject

if TYPE_CHECKING:
    import pandas as pd

    from flowcore.keyed.packed import Packed
    from flowcore.keyed.runtime import Runtime, StepResult

__all__ = ["COUNTERS", "MANIFEST", "MARKERS", "PASSING", "SEGMENTS", "Processor"]

MARKERS, COUNTERS, PASSING = "_markers", "_counters", "_passing"
"""Outputs besides an operator's own: ``event`` and ``partition``, ``counters``, rows that passed it."""
MANIFEST, SEGMENTS = "manifest", "segments"
"""The names of the states in Spark's store."""

_CONTENT = StructType([StructField("content", BinaryType())])
_NUMBER = StructType([StructField("number", LongType())])


@dataclass(frozen=True, slots=True)
class _Steps:
    """A runtime in a worker, with the states that it caches."""

    runtime: Runtime
    states: StateCache = field(default_factory=StateCache)

    def close(self) -> None:
        self.runtime.close()


class Processor(StatefulProcessor):
    """A runtime in a task; made on the driver."""

    def __init__(self, runtime: Runtime) -> None:
        self._steps = WorkerObject(runtime.query, _Steps(runtime))

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the states."""
        self._store = _SparkStore(handle)
        self._handle = handle

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803 - Spark's names
        """Process the rows of a key group."""
        from flowcore.keyed.packed import PACKED, Packed  # noqa: PLC0415

        names = PACKED.names[1:]
        items = [Packed(*row) for frame in rows for row in frame[names].itertuples(index=False, name=None)]
        return self._step(key, items, timerValues, expired=False)

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: Any,  # noqa: N803
        expiredTimerInfo: Any,  # noqa: N803, ARG002
    ) -> Iterator[pd.DataFrame]:
        """Process a key group without rows, whose timer has expired."""
        return self._step(key, [], timerValues, expired=True)

    def close(self) -> None:
        """Nothing ends with a task: users' functions stay open for the next one."""

    def _step(self, key: Any, items: list[Packed], timers: Any, *, expired: bool) -> Iterator[pd.DataFrame]:
        import pandas as pd  # noqa: PLC0415

        (group,) = key
        clock_ms = timers.getCurrentProcessingTimeInMs()
        with self._steps.use() as steps:
            stepped = steps.runtime.step(int(group), items, clock_ms, self._store, steps.states)
            name = f"{steps.runtime.name}/{group}"
        before_ms, wake_ms = stepped.wake_before_ms, stepped.manifest.wake_ms
        if wake_ms != before_ms:
            if before_ms is not None and not expired:  # Spark itself deletes the expired one
                self._handle.deleteTimer(before_ms)
            if wake_ms is not None:
                self._handle.registerTimer(wake_ms)
        rows = list(_contents(stepped, name))
        names, contents = [name for name, _ in rows], [each for _, each in rows]
        yield pd.DataFrame({"output": names, "content": contents, "key_group": int(group)})


class _SparkStore:
    def __init__(self, handle: StatefulProcessorHandle) -> None:
        self._manifest = handle.getValueState(MANIFEST, _CONTENT)
        self._segments = handle.getMapState(SEGMENTS, _NUMBER, _CONTENT)

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


def _contents(stepped: StepResult, group: str) -> Iterator[tuple[str, bytes]]:
    import pyarrow as pa  # noqa: PLC0415

    from flowcore.elements import LatencyMarkerEvent  # noqa: PLC0415
    from flowcore.keyed.operator import StepOutputs  # noqa: PLC0415
    from flowcore.serializers.events import LatencyMarkerEventSerializer  # noqa: PLC0415

    out: StepOutputs = stepped.outputs
    for output, batch in out.batches:
        yield output, batch.serialize().to_pybytes()
    for passing in out.passing:
        yield PASSING, passing
    if out.markers:
        serializer = LatencyMarkerEventSerializer()
        events = [serializer.encode(LatencyMarkerEvent.from_marker(marker)) for marker in out.markers]
        partitions = [marker.subtask for marker in out.markers]
        arrays: list[pa.Array[Any]] = [pa.array(events, pa.binary()), pa.array(partitions, pa.int32())]
        yield MARKERS, pa.record_batch(arrays, ["event", "partition"]).serialize().to_pybytes()
    emitted = {"emitted": [group, out.emitted]} if out.emitted else {}
    counters = json.dumps(out.counters | out.gauges | stepped.manifest.sizes() | emitted)
    yield COUNTERS, pa.record_batch([pa.array([counters])], ["counters"]).serialize().to_pybytes()
