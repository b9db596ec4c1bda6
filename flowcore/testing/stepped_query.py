"""A stepped query: an operator on key groups, one micro-batch a step, as a test or a transcript gives them.

The stream is a folder of JSON files, each one step: records and control elements in order. It is the
runtime, the state store and the workers of a live query; only Kafka is not there. The clock may be moved by
hand: Spark keeps one for its tests.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import BooleanType, LongType, StringType

from flowcore.elements import LatencyMarker, LatencyMarkerEvent, StreamElement
from flowcore.errors import RunError
from flowcore.keyed.operator import KeyGroupOperator, StepOutputs
from flowcore.keyed.packing import InputColumns, Packing
from flowcore.keyed.runtime import Runtime
from flowcore.keyed.watermark_progress import WatermarkSource
from flowcore.serializers.events import LatencyMarkerEventSerializer
from flowcore.serializers.formats.raw import RawFormat
from flowcore.serializers.tagged import TaggedSerializer
from flowcore.spark.operators.key_groups import COUNTER_ROWS, MARKER_ROWS, by_key_group
from flowcore.spark.operators.processor import COUNTERS, MARKERS

__all__ = ["SteppedQuery"]

_KEY_GROUPS = 3
_SOURCE = "steps"
_starting = Lock()
"""The first batch of a query starts a Python process, for which Spark waits no longer than 10 s."""
_ELEMENTS: TaggedSerializer[bytes] = TaggedSerializer(RawFormat())
_EVENTS = LatencyMarkerEventSerializer()
_INPUTS = InputColumns(
    key_group="_group", source="_source", partition="_partition", offset="_offset", newest="_newest",
    element="_element", record="_record", marker="_marker",
)  # fmt: skip


class SteppedQuery:
    """A running query; a context manager that stops it.

    Args:
        spark: A session with the configuration of live queries.
        operator: What is run.
        rows: The columns of records.
        keys: Those of the key.
        folder: An empty folder, for the steps and the checkpoint.
        key_groups: How many there are.
        clock_ms: The clock at the start, which is then moved by hand; None for the time of day.
        relays: Control elements are passed on as they are, also such as say nothing new.
    """

    def __init__(
        self,
        spark: SparkSession,
        operator: KeyGroupOperator,
        *,
        rows: pa.Schema,
        keys: Sequence[str],
        folder: Path,
        key_groups: int = _KEY_GROUPS,
        clock_ms: int | None = None,
        relays: bool = False,
    ) -> None:
        self.spark = spark
        self.operator = operator
        self.rows = rows
        self.keys = keys
        self.folder = folder
        self.clock_ms = clock_ms
        self._key_groups = key_groups
        self._relays = relays
        self._files = self.folder / "steps"
        self._files.mkdir(parents=True)
        self._seen: list[tuple[str, bytes]] = []
        self._number = 0
        self._query: Any = None
        self._started = False

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._query.stop()

    def step(self, items: Iterable[Mapping[str, Any] | StreamElement[Any]]) -> StepOutputs:
        """Take records (mappings) and control elements, and say what came out.

        Raises:
            RunError: The batch failed; the step is undone, and the query goes on.
        """
        self._number += 1
        lines = [json.dumps(self._line(place, item)) for place, item in enumerate(items)]
        path = self._files / f"step-{self._number:06}.json"
        self._tell_time()
        self._seen.clear()
        try:
            self._process(path, lines)
        except PySparkException as error:
            # Its batch is planned and will be run again: without content it does nothing.
            self._write(path, [])
            self._start()
            self._query.processAllAvailable()
            raise RunError(str(error)) from error
        return self._outputs()

    def restart(self) -> None:
        """Stop the query and start it again on its checkpoint."""
        self._query.stop()
        self._start()

    def _process(self, path: Path, lines: Sequence[str]) -> None:
        with nullcontext() if self._started else _starting:
            self._write(path, lines)
            self._query.processAllAvailable()
        self._started = True

    def _start(self) -> None:
        self._started = False
        self._query = (
            self._stepped()
            .writeStream.foreachBatch(self._take)
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .outputMode("update")
            .trigger(processingTime="0 seconds")
            .start()
        )
        if self.clock_ms is not None:
            self._clock = _by_hand(self.spark, self._query, self.clock_ms)

    def _tell_time(self) -> None:
        if self.clock_ms is not None:
            self._clock.setTime(self.clock_ms)

    def _stepped(self) -> DataFrame:
        fields = from_arrow_schema(self.rows).add("_offset", LongType()).add("_element", StringType())
        fields = fields.add("_marker", StringType()).add("_record", BooleanType())
        frame = self.spark.readStream.schema(fields).option("maxFilesPerTrigger", 1).json(str(self._files))
        keys = ", ".join(f"`{key}`" for key in self.keys)
        group = f"CAST(pmod(hash({keys}), {self._key_groups}) AS INT)" if keys else "0"
        frame = frame.select(
            *(F.col(name) for name in self.rows.names),
            "_offset",
            F.expr("unhex(_element)").alias("_element"),
            F.expr("unhex(_marker)").alias("_marker"),
            "_record",
            F.expr(group).alias("_group"),
            F.lit(0).alias("_source"),
            F.lit(0).alias("_partition"),
            F.expr("CAST(NULL AS BIGINT)").alias("_newest"),
        )
        packing = Packing(inputs=_INPUTS, sources=(_SOURCE,), key_groups=self._key_groups, rows=self.rows)
        runtime = Runtime(
            operator=self.operator,
            query=str(self.folder),
            key_groups=self._key_groups,
            sources={_SOURCE: WatermarkSource(None, ("0",), relays=self._relays)},
            rows=self.rows,
        )
        # Starting Python takes longer than all steps of a transcript.
        return by_key_group(frame, packing, runtime, workers="steps")

    def _line(self, place: int, item: Mapping[str, Any] | StreamElement[Any]) -> dict[str, Any]:
        if isinstance(item, Mapping):
            return {"_record": True, **item, "_offset": place}
        if isinstance(item, LatencyMarker):
            event = _EVENTS.encode(LatencyMarkerEvent.from_marker(item))
            return {"_marker": event.hex(), "_offset": place}
        return {"_element": _ELEMENTS.encode(item).hex(), "_offset": place}

    def _write(self, path: Path, lines: Sequence[str]) -> None:
        part = path.with_name(f"_{path.name}")  # which Spark does not look at
        part.write_text("".join(f"{line}\n" for line in lines))
        part.replace(path)

    def _take(self, batch: DataFrame, _number: int) -> None:
        self._seen += [(row.output, bytes(row.content)) for row in batch.collect()]

    def _outputs(self) -> StepOutputs:
        found = StepOutputs()
        schemas = self.operator.outputs
        for output, content in self._seen:
            if output in schemas:
                found.rows(output, pa.ipc.read_record_batch(pa.py_buffer(content), schemas[output]))
            elif output == COUNTERS:
                counters = json.loads(_text(content))
                found.count("dropped_records", counters.get("dropped_records", 0))
            elif output == MARKERS:
                events = pa.ipc.read_record_batch(pa.py_buffer(content), MARKER_ROWS).column("event")
                found.markers += [_EVENTS.decode(event.as_py()).to_marker() for event in events]
        return found


def _by_hand(spark: SparkSession, query: Any, clock_ms: int) -> Any:
    """A clock that stands still, in place of the one by which a query numbers its batches' times."""
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - PySpark has no way to it
    clock = jvm.org.apache.spark.util.ManualClock(clock_ms)
    execution = query._jsq.streamingQuery()  # noqa: SLF001
    kind = execution.getClass()
    while kind.getSimpleName() != "StreamExecution":
        kind = kind.getSuperclass()
    field = kind.getDeclaredField("triggerClock")
    field.setAccessible(True)
    field.set(execution, clock)
    return clock


def _text(content: bytes) -> str:
    found: str = pa.ipc.read_record_batch(pa.py_buffer(content), COUNTER_ROWS).column(0)[0].as_py()
    return found
