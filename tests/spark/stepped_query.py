"""A query on Spark that runs one micro-batch for each step of a test.

Its source is a folder of JSON files, one a step, with records and control elements in order. It has the
runtime, the state store and the workers of a live query; only Kafka is missing.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from threading import Lock
from typing import Any, Self

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import BooleanType, LongType, StringType

from flowcore.elements import LatencyMarker, LatencyMarkerEvent, StreamElement
from flowcore.errors import RunError
from flowcore.keyed.exchange import Exchange
from flowcore.keyed.operator import KeyGroupOperator, StepOutputs
from flowcore.keyed.packing import InputColumns, Packing, Recipient
from flowcore.keyed.runtime import Runtime
from flowcore.serializers.events import LatencyMarkerEventSerializer
from flowcore.serializers.formats import RawFormat
from flowcore.serializers.tagged import TaggedSerializer
from flowcore.spark.busy_times import BusyTimes
from flowcore.spark.operators.key_groups import MARKER_ROWS, run_key_groups
from flowcore.spark.operators.processor import COUNTERS, MARKERS
from flowcore.watermarks.progress import WatermarkSource

_KEY_GROUPS = 3
_SOURCE = "steps"
_starting = Lock()
"""Held by a first batch, which starts a Python process: Spark waits at most 10 s for it."""
_ELEMENTS: TaggedSerializer[bytes] = TaggedSerializer(RawFormat())
_EVENTS = LatencyMarkerEventSerializer()
_INPUTS = InputColumns(
    channel="_partition", offset="_offset", newest="_newest",
    element="_element", marker="_marker",
)  # fmt: skip


class SteppedQuery:
    """A query over one operator; as a context manager, it runs until the end of the block.

    Args:
        spark: A session with the configuration of live queries.
        folder: An empty folder for the steps and the checkpoint.
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
    ) -> None:
        self.spark = spark
        self.operator = operator
        self.rows = rows
        self.keys = keys
        self.folder = folder
        self._key_groups = key_groups
        self._files = self.folder / "steps"
        self._files.mkdir(parents=True)
        self._seen: list[tuple[str, bytes]] = []
        self._number = 0
        self._query: Any = None
        self._started = False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def step(self, items: Iterable[Mapping[str, Any] | StreamElement[Any]]) -> StepOutputs:
        """Process records (mappings) and control elements, and return the outputs.

        Raises:
            RunError: The batch failed; the step is undone, and the query still runs.
        """
        self._number += 1
        lines = [json.dumps(self._line(place, item)) for place, item in enumerate(items)]
        path = self._files / f"step-{self._number:06}.json"
        self._seen.clear()
        try:
            self._process(path, lines)
        except PySparkException as error:
            # The batch is planned and runs again: without content it does nothing.
            self._write(path, [])
            self.start()
            self._query.processAllAvailable()
            raise RunError(str(error)) from error
        return self._outputs()

    def restart(self) -> None:
        """Stop the query and start it again on its checkpoint."""
        self.stop()
        self.start()

    def stop(self) -> None:
        self._query.stop()

    def _process(self, path: Path, lines: Sequence[str]) -> None:
        with nullcontext() if self._started else _starting:
            self._write(path, lines)
            self._query.processAllAvailable()
        self._started = True

    def start(self) -> None:
        self._started = False
        self._query = (
            self._build_frame()
            .writeStream.foreachBatch(self._take)
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .outputMode("update")
            .trigger(processingTime="0 seconds")
            .start()
        )

    def _build_frame(self) -> DataFrame:
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
            F.expr(f"CASE WHEN _record THEN {group} END").alias("_group"),
            F.lit(0).alias("_partition"),
            F.expr("CAST(NULL AS BIGINT)").alias("_newest"),
        )
        recipient = Recipient(key_group="_group", columns=tuple(self.rows.names))
        packing = Packing(
            inputs=_INPUTS, sources=(_SOURCE,), key_groups=self._key_groups, recipients=(recipient,)
        )
        runtime = Runtime(
            operator=self.operator,
            query=str(self.folder),
            key_groups=self._key_groups,
            sources={_SOURCE: WatermarkSource(None, ("0",))},
            rows=self.rows,
        )
        times = BusyTimes().for_tasks(self.spark.sparkContext, "query")
        return run_key_groups(frame, packing, Exchange(query=runtime.query, runtimes=(runtime,)), times)

    def _line(self, place: int, item: Mapping[str, Any] | StreamElement[Any]) -> dict[str, Any]:
        if isinstance(item, Mapping):
            return {"_record": True, **item, "_offset": place}
        if isinstance(item, LatencyMarker):
            event = _EVENTS.encode(LatencyMarkerEvent.from_marker(item))
            return {"_marker": event.hex(), "_offset": place}
        return {"_element": _ELEMENTS.encode(item).hex(), "_offset": place}

    def _write(self, path: Path, lines: Sequence[str]) -> None:
        part = path.with_name(f"_{path.name}")  # Spark ignores files whose name starts with _
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
                counters = json.loads(content)
                found.count("dropped_records", counters.get("dropped_records", 0))
            elif output == MARKERS:
                events = pa.ipc.read_record_batch(pa.py_buffer(content), MARKER_ROWS).column("event")
                found.markers += [_EVENTS.decode(event.as_py()).to_marker() for event in events]
        return found
