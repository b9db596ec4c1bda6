"""Watermarks of live queries: from the sources to the sinks that write them.

Each batch observes the timestamps of its records, or its control elements. When the batch is committed, so
that all its records are in the sinks' topics, the driver merges the observations and writes the watermarks
that have changed. A state file beside the checkpoint lets a restart continue where the last run stopped.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from datetime import timedelta
from operator import itemgetter
from pathlib import Path
from typing import Any, Self

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from flowcore.api.connectors import KafkaTopic
from flowcore.api.event_time import marker_condition, watermark_expression
from flowcore.api.operators import Read
from flowcore.backlog import QueryInputs
from flowcore.durations import MILLISECOND
from flowcore.elements import (
    MAX_TIMESTAMP_MS,
    EndOfInput,
    RecordAttributes,
    StreamElement,
    Watermark,
    WatermarkStatus,
)
from flowcore.kafka.elements import ElementWriter
from flowcore.keyed.emitted import CombinedElements
from flowcore.planner.model import LiveQuery
from flowcore.serializers.formats import RawFormat
from flowcore.serializers.tagged import TaggedSerializer
from flowcore.spark.clock import Clock
from flowcore.spark.frame.branches import Branch
from flowcore.spark.frame.rows import BRANCH, CHANNEL, ELEMENT, TIMESTAMP_MS, RowKind
from flowcore.watermarks import no_watermarks
from flowcore.watermarks.arriving import channel_name
from flowcore.watermarks.generated import NewestTimes
from flowcore.watermarks.merge import ChannelElements
from flowcore.watermarks.progress import WatermarkProgress, WatermarkSource

__all__ = [
    "WatermarkSender", "newest_timestamp", "observation_name", "observe_watermarks", "watermark_source",
    "watermarks_of",
]  # fmt: skip

_SHORTEST_POLL_S = 0.02
_log = logging.getLogger(__name__)


def watermarks_of(query: LiveQuery, partitions: Mapping[str, int], *, polls: bool) -> WatermarkProgress:
    """The watermarks of a query's sources, with the arguments of `watermark_source`."""
    topics = {node.name: topic for node in query.sources if (topic := node.topic)}
    return WatermarkProgress(
        {
            name: watermark_source(topic, partitions, polls=polls)
            for name, topic in topics.items()
            if topic.watermark is not None or topic.elements == "tagged"
        }
    )


def watermark_source(topic: KafkaTopic, partitions: Mapping[str, int], *, polls: bool) -> WatermarkSource:
    """The watermarks of a topic.

    Args:
        topic: The topic.
        partitions: The number of partitions of each topic.
        polls: Periodic watermarks are emitted.
    """
    strategy = topic.watermark
    if strategy is None and topic.elements != "tagged":
        strategy = no_watermarks()
    if strategy is not None and strategy.periodic and not polls:
        strategy = no_watermarks()
    return WatermarkSource(strategy, tuple(map(str, range(partitions[topic.name]))))


def observation_name(node: Read) -> str:
    """The name of a source's observation in a batch's progress."""
    return f"flowcore-watermarks-{node.name}"


def newest_timestamp(node: Read, branch: Branch, condition: str) -> str:
    """The timestamp of a record that counts for watermarks if the condition holds, otherwise null."""
    marker, watermark = marker_condition(node), watermark_expression(node)
    time_ms = branch.expression(watermark) if watermark else TIMESTAMP_MS
    counts = f" AND {branch.expression(marker)}" if marker else ""
    return f"CASE WHEN {condition}{counts} THEN {time_ms} END"


def observe_watermarks(node: Read, branch: Branch, partitions: int) -> list[Column]:
    """The observation of a source in each batch: its newest timestamps, or its control elements."""
    topic = node.topic
    if topic is None or topic.watermark is None:
        fields = f"struct(partition, offset, hex({ELEMENT}) AS element, coalesce({CHANNEL}, '') AS channel)"
        return [
            F.expr(f"collect_list(CASE WHEN {BRANCH} = {RowKind.CONTROL} THEN {fields} END)").alias("control")
        ]
    found = []
    for number in range(partitions):
        mine = f"{BRANCH} = {branch.number} AND partition = {number}"
        found.append(F.expr(f"max({newest_timestamp(node, branch, mine)})").alias(f"newest_{number}"))
        found.append(F.expr(f"count_if({mine})").alias(f"records_{number}"))
    return found


class WatermarkSender:
    """Writes a running query's watermarks to its sinks; a context manager with one thread.

    Args:
        clock: Processing time.
        interval: Processing time from one look at it to the next.
        state: The file of the state that a restart needs.
        key_groups: What the query's key groups emit; None if it has none, so that its sources decide.
    """

    def __init__(
        self,
        query: LiveQuery,
        running: StreamingQuery,
        *,
        watermarks: WatermarkProgress,
        writer: ElementWriter,
        clock: Clock,
        interval: timedelta,
        state: Path,
        key_groups: CombinedElements | None,
    ) -> None:
        self._query = query
        self._running = running
        self._watermarks = watermarks
        self._writer = writer
        self._state = state
        self._key_groups = key_groups
        self._clock = clock
        self._interval_ms = interval // MILLISECOND
        self._looked_ms = 0
        arriving = watermarks.partitions()
        self._inputs = QueryInputs((), (f"{name}/{each}" for name in arriving for each in arriving[name]))
        self._backlog: dict[str, bool] = {}
        self._attributes: list[RecordAttributes] = []
        self._serializer = TaggedSerializer(RawFormat())
        self._last_batch = -1
        interval_s = max(interval.total_seconds(), _SHORTEST_POLL_S)
        self._polling = clock.every(interval_s, f"watermarks-{query.name}", self._try_to_poll)

    def __enter__(self) -> Self:
        if self._state.exists():
            kept = json.loads(self._state.read_text())
            self._watermarks.restore(kept)
            self._watermarks.restart()
            if self._key_groups is not None:
                self._key_groups.restore(kept.get("key_groups") or {})
            for partition, backlog in kept.get("backlog", {}).items():
                self._receive_backlog(partition, RecordAttributes(backlog))
        self._polling.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._polling.__exit__(None, None, None)
        # A slice ends right after its last batch. A query that is stopped continues later.
        self._poll(looks=self._query.mode.value == "slice")

    def _try_to_poll(self) -> None:
        try:
            self._poll()
        except Exception:  # noqa: BLE001 - records continue, and the next poll may succeed
            _log.exception("watermarks of query %r were not sent: the next poll sends them", self._query.name)

    def _poll(self, *, looks: bool = False) -> None:
        # A trigger without input reports the number of the next batch.
        fresh = [
            batch
            for batch in self._running.recentProgress
            if batch["batchId"] > self._last_batch and "addBatch" in batch["durationMs"]
        ]
        for batch in fresh:
            self._last_batch = batch["batchId"]
            self._take(batch["observedMetrics"])
        now_ms = self._clock.now_ms()
        if looks or now_ms >= self._looked_ms + self._interval_ms:
            emitted: tuple[StreamElement[Any], ...] = self._watermarks.poll(now_ms)
            self._looked_ms = now_ms
        else:
            emitted = self._watermarks.emit()
        attributes, self._attributes = self._attributes, []
        self._writer.write((*attributes, *(self._key_groups.emit() if self._key_groups else emitted)))
        if fresh:
            part = self._state.with_suffix(".part")
            groups = None if self._key_groups is None else self._key_groups.snapshot()
            more = {"key_groups": groups, "backlog": self._backlog}
            part.write_text(json.dumps(self._watermarks.snapshot() | more))
            part.replace(self._state)

    def _take(self, metrics: Mapping[str, Any]) -> None:
        if self._key_groups is not None:
            reports = (each for row in metrics.values() if "emitted" in row for each in row["emitted"])
            for report in reports:
                self._key_groups.take(*json.loads(report))
        for node in self._query.sources:
            row = metrics.get(observation_name(node))
            if row is None:
                continue
            if "control" in row:
                self._take_elements(node.name, row["control"] or ())
                continue
            counts = {name.removeprefix("records_"): count for name, count in row.asDict().items()}
            read = [number for number in counts if number.isdigit() and counts[number]]
            newest_ms = {number: row[f"newest_{number}"] for number in read}
            self._watermarks.take(node.name, NewestTimes.of(newest_ms))

    def _take_elements(self, source: str, controls: Iterable[Any]) -> None:
        arrived: list[tuple[str, Watermark | WatermarkStatus]] = []
        for control in sorted(controls, key=itemgetter("offset")):
            element = self._serializer.decode(bytes.fromhex(control["element"]))
            if isinstance(element, EndOfInput):
                element = Watermark(MAX_TIMESTAMP_MS)
            if isinstance(element, RecordAttributes):
                self._receive_backlog(f"{source}/{control['partition']}", element)
            if isinstance(element, Watermark | WatermarkStatus):
                arrived.append((channel_name(str(control["partition"]), control["channel"]), element))
        if arrived:
            self._watermarks.arrive(source, ChannelElements.of(arrived)[0])

    def _receive_backlog(self, partition: str, attributes: RecordAttributes) -> None:
        """Take the backlog status of a partition; the combination over all is emitted where it changes."""
        self._backlog[partition] = attributes.backlog
        emitted = self._inputs.update(partition, backlog=attributes.backlog)
        self._attributes += [emitted] if emitted is not None else []
