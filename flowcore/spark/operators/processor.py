"""The stateful processor that Spark calls in a worker for the key groups of a task.

It holds its exchange as bytes. At each start of such a query, Spark starts a Python process only to read the
declared states, so this module imports nothing that is slow to import.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from flowcore.keyed.state_cache import StateCache
from flowcore.spark.operators.worker_objects import WorkerObject

if TYPE_CHECKING:
    import pandas as pd

    from flowcore.keyed.exchange import Exchange, ExchangeResult
    from flowcore.keyed.packed import Packed
    from flowcore.spark.busy_times import TaskTimes

__all__ = ["COUNTERS", "MANIFESTS", "MARKERS", "PASSING", "SEGMENTS", "Processor", "open_states"]

MARKERS, COUNTERS, PASSING = "_markers", "_counters", "_passing"
"""Outputs besides an operator's own: ``event`` and ``partition``; a JSON object; rows that passed it."""
MANIFESTS, SEGMENTS = "manifests", "segments"
"""The names of the states in Spark's store."""

_CONTENT = StructType([StructField("content", BinaryType())])
_BYTES_AT_ONCE = 64 << 20
"""What leaves a step together: an Arrow array of all contents cannot hold 2 GiB."""
_SEGMENT = StructType([StructField("operator", StringType()), StructField("number", LongType())])


@dataclass(frozen=True, slots=True)
class _Steps:
    """An exchange in a worker, with the states that it caches."""

    exchange: Exchange
    states: StateCache = field(default_factory=StateCache)

    def close(self) -> None:
        self.exchange.close()


class Processor(StatefulProcessor):
    """An exchange in a task; made on the driver."""

    def __init__(self, exchange: Exchange, times: TaskTimes) -> None:
        self._steps = WorkerObject(exchange.query, _Steps(exchange))
        self._times = times

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
        processing_time_ms = timers.getCurrentProcessingTimeInMs()
        with self._steps.use() as steps:
            stepped = steps.exchange.step(int(group), items, processing_time_ms, self._store, steps.states)
            operators = [runtime.name for runtime in steps.exchange.runtimes]
        for number, one in stepped.steps:
            self._times.add(operators[number], one.busy_ns)
        before_ms, wake_ms = stepped.wake_before_ms, stepped.wake_ms
        if wake_ms != before_ms:
            if before_ms is not None and not expired:  # Spark itself deletes the expired one
                self._handle.deleteTimer(before_ms)
            if wake_ms is not None:
                self._handle.registerTimer(wake_ms)
        columns = ["operator", "output", "content"]
        for contents in _in_parts(_contents(stepped, [f"{name}/{group}" for name in operators])):
            rows = pd.DataFrame(contents, columns=columns)
            yield rows.assign(key_group=int(group))[["output", "content", "key_group", "operator"]]


def open_states(handle: StatefulProcessorHandle) -> tuple[Any, Any]:
    """Declare the states of a key group in Spark's store: its manifests, and its segments."""
    manifests = handle.getValueState(MANIFESTS, _CONTENT)
    return manifests, handle.getMapState(SEGMENTS, _SEGMENT, _CONTENT)


class _SparkStore:
    def __init__(self, handle: StatefulProcessorHandle) -> None:
        self._manifests, self._segments = open_states(handle)

    def manifests(self) -> bytes | None:
        found = self._manifests.get()
        return None if found is None else bytes(found[0])

    def put_manifests(self, manifests: bytes, /) -> None:
        self._manifests.update((manifests,))

    def segment(self, operator: str, number: int, /) -> bytes | None:
        found = self._segments.getValue((operator, number))
        return None if found is None else bytes(found[0])

    def put_segment(self, operator: str, number: int, content: bytes, /) -> None:
        self._segments.updateValue((operator, number), (content,))

    def remove_segment(self, operator: str, number: int, /) -> None:
        self._segments.removeKey((operator, number))


def _in_parts(contents: Iterable[tuple[int, str, bytes]]) -> Iterator[list[tuple[int, str, bytes]]]:
    part: list[tuple[int, str, bytes]] = []
    size_bytes = 0
    for each in contents:
        part.append(each)
        size_bytes += len(each[2])
        if size_bytes >= _BYTES_AT_ONCE:
            yield part
            part, size_bytes = [], 0
    yield part


def _contents(result: ExchangeResult, names: Sequence[str]) -> Iterator[tuple[int, str, bytes]]:
    """Operator, output and content of each packed row; ``names`` are those of the operators' key group."""
    import pyarrow as pa  # noqa: PLC0415

    from flowcore.elements import LatencyMarkerEvent  # noqa: PLC0415
    from flowcore.keyed.packed import EVERY  # noqa: PLC0415
    from flowcore.serializers.events import LatencyMarkerEventSerializer  # noqa: PLC0415

    for number, stepped in result.steps:
        out = stepped.outputs
        for output, batch in out.batches:
            length = max(1, batch.num_rows * _BYTES_AT_ONCE // max(batch.nbytes, 1))
            for start in range(0, max(batch.num_rows, 1), length):
                yield number, output, batch.slice(start, length).serialize().to_pybytes()
        if out.markers:
            serializer = LatencyMarkerEventSerializer()
            events = [serializer.encode(LatencyMarkerEvent.from_marker(marker)) for marker in out.markers]
            partitions = [marker.subtask for marker in out.markers]
            arrays: list[pa.Array[Any]] = [pa.array(events, pa.binary()), pa.array(partitions, pa.int32())]
            rows = pa.record_batch(arrays, ["event", "partition"])
            yield number, MARKERS, rows.serialize().to_pybytes()
        emitted = {"emitted": [names[number], out.emitted]} if out.emitted else {}
        counters = json.dumps(out.counters | out.gauges | stepped.manifest.sizes() | emitted)
        yield number, COUNTERS, counters.encode()
    yield from ((EVERY, PASSING, passing) for passing in result.passing)
