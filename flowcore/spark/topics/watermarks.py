"""Watermarks of live queries: from the sources to the sinks that write them.

Each batch observes the timestamps of its records, or its control elements. When the batch is committed, so
that all its records are in the sinks' topics, the driver merges the observations and writes the watermarks
that have changed. Record attributes are written likewise; the query's own backlog counts as another input. A
state file beside the checkpoint lets a restart continue where the last run stopped.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from operator import itemgetter
from pathlib import Path
from typing import Any, Self

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from flowcore.api.event_time import marker_condition, watermark_expression
from flowcore.api.operators import Operator, Read, WithEventTime
from flowcore.background import LoggedFailures
from flowcore.backlog import BacklogProgress
from flowcore.channels import MOST_SENDERS, channel_name
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
from flowcore.keyed.control import QUERY
from flowcore.keyed.emitted import SOURCES, CombinedElements, Report, add_to_report, latest_elements
from flowcore.planner.model import LiveQuery
from flowcore.planner.ways import find_origins
from flowcore.serializers.formats import RawFormat
from flowcore.serializers.tagged import TaggedSerializer
from flowcore.spark.checkpoint.offset_log import committed_batches, replace_file
from flowcore.spark.context import Clock
from flowcore.spark.frame.branches import Branch
from flowcore.spark.frame.rows import BRANCH, CHANNEL, ELEMENT, TIMESTAMP_MS, RowKind
from flowcore.spark.topics import elements
from flowcore.spark.topics.poll_times import ReadTime, has_read_all, is_due, poll_interval_s
from flowcore.spark.topics.reports import batches_after
from flowcore.watermarks import no_watermarks
from flowcore.watermarks.generated import NewestTimes
from flowcore.watermarks.merge import ChannelElements
from flowcore.watermarks.progress import WatermarkProgress, WatermarkSource

__all__ = [
    "WatermarkSender",
    "declared_senders",
    "key_groups_of",
    "newest_timestamp",
    "observation_name",
    "observe_watermarks",
    "watermark_source",
    "watermarks_of",
]  # fmt: skip

_MOST_OBSERVED = 2048
"""The most watermarks of a source, and the most other control elements, that a batch reports."""
_OTHERS_COUNT = "others_count"
_log = logging.getLogger(__name__)


def watermarks_of(
    query: LiveQuery, partitions: Mapping[str, int], *, polls: bool, expiry_ms: int | None
) -> WatermarkProgress:
    """The watermarks of the sources of tagged sinks, with the arguments of `watermark_source`."""
    return WatermarkProgress(
        {
            node.name: watermark_source(node, partitions, polls=polls, expiry_ms=expiry_ms)
            for node in find_origins(query.tagged_sinks)
        }
    )


def key_groups_of(query: LiveQuery) -> CombinedElements | None:
    """Where the tagged sinks of a query get their watermarks, if that is not from sources alone."""
    senders = {each for sink in query.tagged_sinks for each in query.find_senders(sink)}
    keyed = [node for node in query.keyed if node in senders]
    if not keyed:
        return None
    groups = [f"{node.name}/{group}" for node in keyed for group in range(query.key_groups)]
    return CombinedElements([*groups, *([SOURCES] if len(senders) > len(keyed) else [])])


def watermark_source(
    node: Operator, partitions: Mapping[str, int], *, polls: bool, expiry_ms: int | None = None
) -> WatermarkSource:
    """The watermarks of a source, or of an operator that assigns event time.

    Args:
        partitions: The number of partitions of each topic.
        polls: Periodic watermarks are emitted.
        expiry_ms: After which time a silent channel is idle; None for no limit.
    """
    strategy = node.watermark
    if strategy is None and not _is_tagged(node):
        strategy = no_watermarks()
    if strategy is not None and strategy.periodic and not polls:
        strategy = no_watermarks()
    topic = node.live_sources[0].topic
    names = tuple(map(str, range(partitions[topic.name] if topic else 0)))
    return WatermarkSource(strategy, names, declared_senders(node), expiry_ms)


def declared_senders(node: Operator) -> frozenset[str] | None:
    """The channels that the source of an operator declares, whose elements it follows; None if any counts."""
    topic = node.live_sources[0].topic
    return frozenset(topic.channels) if topic is not None and topic.channels is not None else None


def observation_name(node: Operator) -> str:
    """The name of the observation of a source, or of assigned event time, in a batch's progress."""
    return f"flowcore-watermarks-{node.name}"


def newest_timestamp(node: Read | WithEventTime, branch: Branch, condition: str) -> str:
    """The timestamp of a record that counts for watermarks if the condition holds, otherwise null."""
    marker, watermark = marker_condition(node), watermark_expression(node)
    time_ms = branch.expression(watermark) if watermark else TIMESTAMP_MS
    counts = f" AND {branch.expression(marker)}" if marker else ""
    return f"CASE WHEN {condition}{counts} THEN {time_ms} END"


def observe_watermarks(
    node: Read | WithEventTime, branch: Branch, partitions: int, is_record: str
) -> list[Column]:
    """What is observed in each batch: the control elements of a source, and the newest timestamps.

    Args:
        is_record: True for the records of the branch, as SQL text.
    """
    found = [*_observe_control()] if _is_tagged(node) else []
    for number in range(partitions if node.watermark is not None else 0):
        mine = f"{is_record} AND partition = {number}"
        found.append(F.expr(f"max({newest_timestamp(node, branch, mine)})").alias(f"newest_{number}"))
        found.append(F.expr(f"count_if({mine})").alias(f"records_{number}"))
    return found


def _observe_control() -> Iterator[Column]:
    """The control elements of a batch, of which no more than a bound reach the driver.

    An aggregate for each channel and partition would be exact, but is evaluated for every record: with four
    partitions and two channels they took 1.2 microseconds a record, and these two lists take 0.3. A sample of
    the watermarks has elements of each channel of each partition, however many the other channels write. A
    missed watermark only makes the result lower. Of the other elements, the last ones are kept, which may be
    of one partition. Without the status of a channel that is active, the result would be too high, so their
    number says whether any may be missed.
    """
    is_control = f"{BRANCH} = {RowKind.CONTROL}"
    fields = f"struct(partition, offset, hex({ELEMENT}) AS element, coalesce({CHANNEL}, '') AS channel)"
    replaced = elements.is_passing_watermark(ELEMENT)
    lists = {
        "watermarks": (f"{is_control} AND {replaced}", "xxhash64(partition, offset)"),
        "others": (f"{is_control} AND NOT {replaced}", "offset"),
    }
    for name, (condition, order) in lists.items():
        kept = f"CASE WHEN {condition} THEN {fields} END, CASE WHEN {condition} THEN {order} END"
        yield F.expr(f"max_by({kept}, {_MOST_OBSERVED})").alias(name)
    yield F.expr(f"count_if({lists['others'][0]})").alias(_OTHERS_COUNT)


def _is_tagged(node: Operator) -> bool:
    return node.topic is not None and node.topic.elements == "tagged"


class WatermarkSender:
    """Writes a query's watermarks to its sinks; a context manager with one thread while the query runs.

    `begin` is called before the query starts, `follow` with the query that was started.

    Args:
        clock: Processing time.
        interval: Least processing time between two polls of periodic watermarks.
        state: The file of the state that a restart needs.
        require_lease: Raises if another process may write in its place.
        key_groups: What the query's key groups emit; None if it has none, so that its sources decide.
    """

    def __init__(
        self,
        query: LiveQuery,
        *,
        watermarks: WatermarkProgress,
        writer: ElementWriter,
        clock: Clock,
        interval: timedelta,
        state: Path,
        require_lease: Callable[[], object],
        key_groups: CombinedElements | None,
    ) -> None:
        self._query = query
        self._running: StreamingQuery | None = None
        self._watermarks = watermarks
        self._writer = writer
        self._state = state
        self._require_lease = require_lease
        self._key_groups = key_groups
        self._clock = clock
        self._interval_ms = interval // MILLISECOND
        self._polled_ms = 0
        self._read_time = ReadTime(clock.now_ms())
        channels = {name: [*each] for name, each in watermarks.partitions().items()}
        declared = {node.name: declared_senders(node) for node in find_origins(query.tagged_sinks)}
        self._followed = frozenset(declared)
        senders = {name: each for name, each in declared.items() if each is not None}
        self._backlog = BacklogProgress({**channels, QUERY: [QUERY]}, (), senders)
        self._lags: bool | None = None
        self._has_lagged = False
        self._attributes: list[RecordAttributes] = []
        self._unsaved, self._unsent = False, list[StreamElement[Any]]()
        """What an attempt left whose file, or topics, could not be written; emitted elements are new ones."""
        self._serializer = TaggedSerializer(RawFormat())
        self._last_batch = -1
        self._ignoring: set[str] = set()
        what = f"watermarks of query {query.name!r}"
        self._failures = LoggedFailures(
            _log, f"{what} were not sent: each poll tries it again", f"{what} are sent again"
        )
        self._announces = False
        """Readers may take the channel for idle, since `flowcore watermarks --reset` writes in its name."""
        interval_s = poll_interval_s(interval)
        self._polling = clock.every(interval_s, f"watermarks-{query.name}", self._try_to_poll)

    def begin(self, *, lags: bool | None) -> None:
        """Restore the state of a restart, and write the attributes of the records that follow.

        Args:
            lags: The query's own backlog status; None if it writes only what it has read.
        """
        self._lags = lags
        self._last_batch = max(committed_batches(self._state.parent), default=-1)
        if self._state.exists():
            kept = json.loads(self._state.read_text())
            self._watermarks.restore(kept)
            self._watermarks.restart()
            if self._key_groups is not None:
                self._key_groups.restore(kept.get("key_groups") or {})
            self._backlog.restore(kept.get("backlog", {}))
            self._has_lagged = QUERY in kept.get("backlog", {}).get("inputs", {})
            # A channel may have become active in a batch that was committed and not polled.
            if kept.get("batch", self._last_batch) < self._last_batch:
                self._activate_sources()
            if self._backlog.backlog is not None:
                self._attributes.append(RecordAttributes(self._backlog.backlog))
        self._take_own_backlog()
        try:
            self._announces = self._writer.continues()
            self._writer.write(self._attributes[-1:])
        except Exception:  # noqa: BLE001 - the next poll writes them again
            _log.exception("attributes of query %r were not sent: they follow later", self._query.name)
        else:
            self._attributes.clear()

    def follow(self, running: StreamingQuery, pause_ms: int = 0) -> Self:
        """Take the batches of the query that was started, with a pause between triggers; enter the result."""
        self._running, self._read_time.pause_ms = running, pause_ms
        return self

    def __enter__(self) -> Self:
        self._polling.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._polling.__exit__(None, None, None)
        # A slice ends right after its last batch. A query that is stopped continues later.
        if self._query.mode.value == "slice":
            self._poll(at_once=True)
        else:
            self._try_to_poll()

    def report_backlog(self, *, backlog: bool) -> None:
        """Take the query's own backlog status; a query that has never been in backlog writes nothing."""
        self._lags = backlog

    def _try_to_poll(self) -> None:
        with self._failures:  # records continue, and the next poll may succeed
            self._poll()

    def _poll(self, *, at_once: bool = False) -> None:
        self._require_lease()
        waits = self._running is not None and has_read_all(self._running)  # as of before the reports
        found = batches_after(self._last_batch, self._running) if self._running is not None else []
        # A trigger without input reports the number of the next batch.
        fresh = [batch for batch in found if "addBatch" in batch["durationMs"]]
        if fresh and fresh[0]["batchId"] > self._last_batch + 1:
            self._activate()
        for batch in fresh:
            self._last_batch = batch["batchId"]
            self._take(batch.get("observedMetrics") or {})
        now_ms = self._clock.now_ms()
        read_ms = self._read_time.advance(now_ms, found, waits=waits)
        if at_once or is_due(now_ms, self._polled_ms, self._interval_ms):
            emitted: tuple[StreamElement[Any], ...] = self._watermarks.poll(read_ms)
            self._polled_ms = now_ms
        else:
            emitted = self._watermarks.emit()
        self._take_own_backlog()
        attributes, self._attributes = self._attributes, []
        progress = emitted if self._key_groups is None else self._combine(self._key_groups, emitted)
        if self._announces and progress:
            self._announces = False
            if not any(isinstance(each, WatermarkStatus) for each in progress):
                progress = (WatermarkStatus(idle=False), *progress)
        self._unsent = [*latest_elements(self._unsent), *attributes, *progress]
        self._unsaved = self._unsaved or bool(fresh or attributes)
        if self._unsaved:  # a restart writes the last elements again, also those that were not written
            groups = None if self._key_groups is None else self._key_groups.snapshot()
            more = {"key_groups": groups, "backlog": self._backlog.snapshot(), "batch": self._last_batch}
            replace_file(self._state, json.dumps(self._watermarks.snapshot() | more))
            self._unsaved = False
        self._writer.write(self._unsent)
        self._unsent = []

    def _activate(self) -> None:
        """Let all channels and key groups be active, since Spark has dropped reports that were not polled."""
        self._activate_sources()
        if self._key_groups is not None:
            self._key_groups.activate()

    def _activate_sources(self) -> None:
        for name in self._followed:
            self._watermarks.activate(name)

    @staticmethod
    def _combine(
        key_groups: CombinedElements, emitted: Iterable[StreamElement[Any]]
    ) -> tuple[StreamElement[Any], ...]:
        """What key groups emit, and sources from which a tagged sink reads directly."""
        report: Report = {}
        for element in emitted:
            add_to_report(report, element)
        key_groups.take(SOURCES, report)
        return key_groups.emit()

    def _take(self, metrics: Mapping[str, Any]) -> None:
        if self._key_groups is not None:
            rows = filter(None, metrics.values())
            reports = (each for row in rows if "emitted" in row for each in row["emitted"])
            for report in reports:
                self._key_groups.take(*json.loads(report))
        for node in (*self._query.sources, *self._query.assigners):
            found = metrics.get(observation_name(node))
            if found is None:
                continue
            derived = (each.name for each in self._query.assigners if node in each.live_sources)
            controls = [each for kind in ("watermarks", "others") for each in found.pop(kind, None) or ()]
            are_missed = found.pop(_OTHERS_COUNT, 0) > _MOST_OBSERVED
            for name in self._followed.intersection((node.name, *derived)):
                if are_missed:  # before those that are known, of which each channel's last status counts
                    self._watermarks.activate(name)
                self._take_elements(name, controls)
            counts = {name.removeprefix("records_"): count for name, count in found.items()}
            read = [number for number in counts if number.isdigit() and counts[number]]
            newest_ms = {number: found[f"newest_{number}"] for number in read}
            self._watermarks.take(node.name, NewestTimes.of(newest_ms))

    def _take_elements(self, source: str, controls: Iterable[Any]) -> None:
        arrived: list[tuple[str, Watermark | WatermarkStatus]] = []
        for control in sorted(controls, key=itemgetter("offset")):
            element = self._serializer.decode(bytes.fromhex(control["element"]))
            if isinstance(element, EndOfInput):
                element = Watermark(MAX_TIMESTAMP_MS)
            channel = channel_name(str(control["partition"]), control["channel"])
            if isinstance(element, RecordAttributes):
                self._receive_backlog(source, channel, backlog=element.backlog)
            if isinstance(element, Watermark | WatermarkStatus):
                arrived.append((channel, element))
                if element == Watermark(MAX_TIMESTAMP_MS):
                    self._receive_backlog(source, channel, backlog=None)
        if arrived:
            self._watermarks.arrive(source, ChannelElements.from_elements(arrived)[0])
            if self._watermarks.ignored[source] and source not in self._ignoring:
                self._ignoring.add(source)
                _log.warning(
                    "source %r has more than %s senders of control elements to one partition: later ones do "
                    "not count; declare channels= of its topic",
                    source, MOST_SENDERS,
                )  # fmt: skip

    def _take_own_backlog(self) -> None:
        if self._lags or (self._has_lagged and self._lags is not None):
            self._has_lagged = True
            self._receive_backlog(QUERY, QUERY, backlog=self._lags)

    def _receive_backlog(self, source: str, channel: str, *, backlog: bool | None) -> None:
        """Take the backlog status of a channel; the combination over all is emitted where it changes."""
        emitted = self._backlog.receive(source, channel, backlog=backlog)
        self._attributes += [emitted] if emitted is not None else []
