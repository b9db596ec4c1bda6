"""One live query on its checkpoint, in one mode and with one version of the results that it joins.

A query is compiled before it is started, so that its successor can be compiled while it still runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from flowcore.api.decisions import Decision
from flowcore.durations import MILLISECOND
from flowcore.errors import OutageError
from flowcore.kafka.elements import ElementWriter
from flowcore.kafka.security import spark_login, task_login
from flowcore.kafka.transactions import TransactionalWriter
from flowcore.keyed.content import StoredSchemas
from flowcore.planner.model import LiveQuery
from flowcore.planner.rules.histories import find_histories
from flowcore.settings import Settings
from flowcore.spark.checkpoint.identity import CheckpointIdentity
from flowcore.spark.checkpoint.offset_log import (
    forget_unplanned_files,
    has_unfinished_batch,
    next_batch,
    planned_batches,
)
from flowcore.spark.checkpoint.plan_file import StateTypes, checkpoint_folder, require_fit
from flowcore.spark.checkpoint.storage import WATERMARKS
from flowcore.spark.compile.query import compile_query
from flowcore.spark.context import Context, output_servers
from flowcore.spark.errors import find_outage, translate_run_errors
from flowcore.spark.results.joined import Joined
from flowcore.spark.run.counted_bad_records import CountedBadRecords
from flowcore.spark.run.live_topics import prepare_ledger
from flowcore.spark.run.spark_query import end_after_batch, find_failure, has_ended
from flowcore.spark.run.wall_clock import WallClock
from flowcore.spark.topics.called_sink import CalledSink
from flowcore.spark.topics.dead_letter_sink import DeadLetterSink
from flowcore.spark.topics.histories import histories_pending, prepare_history
from flowcore.spark.topics.messages import LARGEST_BYTES
from flowcore.spark.topics.side_channels import SideChannels
from flowcore.spark.topics.sinks import (
    largest_batch_bytes,
    sink_options,
    start_files,
)
from flowcore.spark.topics.transactional_sink import TransactionalSink
from flowcore.spark.topics.watermarks import WatermarkSender, key_groups_of, watermarks_of
from flowcore.watermarks.progress import WatermarkProgress

__all__ = ["PreparedQuery", "RunningQuery", "choose_trigger", "prepare_query", "uses_processing_time"]


_SHORTEST_PAUSE = timedelta(milliseconds=200)
"""Between batches without input, if the settings say nothing else."""
_AT_ONCE = "0 milliseconds"
"""The interval of a query whose next batch begins as soon as there is input."""


@dataclass(frozen=True, slots=True)
class PreparedQuery:
    """A query that is compiled and may be started.

    Attributes:
        query: The query, with the mode to start it in.
        catching_up: It ends when it has read all records that are there.
        reads_histories: It reads the histories of its topics and nothing else, and ends.
        repeats: It runs its planned batch again and nothing else, and ends.
        types: The types of the state that Spark keeps, by operator.
        schemas: The schemas of the state of operators by key group, by name.
    """

    query: LiveQuery
    catching_up: bool
    joined: Joined
    side_channels: SideChannels
    frame: DataFrame
    types: StateTypes
    schemas: Mapping[str, StoredSchemas]
    reads_histories: bool = False
    repeats: bool = False


def prepare_query(
    query: LiveQuery,
    context: Context,
    joined: Joined,
    side_channels: SideChannels,
    batch_records: int | None = None,
    *,
    repeats: bool = False,
) -> PreparedQuery:
    """Compile a query, and check that it can continue from its checkpoint.

    If its topics have unread histories, the query reads them and ends. Otherwise, with ``batch_records``, it
    catches up in micro-batches of this many records and ends. Without, it runs in its own mode. A query that
    ``repeats`` ends after its planned batch.

    Raises:
        PlanError: Spark refuses an operator.
        StateError: The checkpoint was made by an incompatible plan.
    """
    if batch_records is not None:
        reason = f"it catches up, in batches of up to {batch_records:,} records"
        query = replace(query, mode=Decision("micro-batch", (reason,)))
        context = replace(context, settings=replace(context.settings, max_batch_records=batch_records))
    checkpoint = checkpoint_folder(query, context.flow, context.settings)
    histories = find_histories(query.operators)
    reads_histories = bool(histories) and histories_pending(checkpoint)
    with translate_run_errors(f"query {query.name!r}", context.log):
        if reads_histories:
            forget_unplanned_files(checkpoint)
            for node in histories:
                partitions = side_channels.partitions[node.live_topic.name]
                prepare_history(node, joined.frames[node.history], checkpoint, context, partitions=partitions)
        compiled = compile_query(query, context, joined, side_channels, reads_histories=reads_histories)
    require_fit(query, context.flow, checkpoint, compiled.types, compiled.schemas)
    return PreparedQuery(
        query, batch_records is not None, joined, side_channels, compiled.frame, compiled.types,
        compiled.schemas, reads_histories, repeats,
    )  # fmt: skip


class RunningQuery:
    """A query that was started; it ends by itself, after its batch, or at once.

    Args:
        identity: The identity of its checkpoint.
        lags: Its own backlog status, for tagged sinks; None if it writes only what it has read.
        counted: The bad records that another query has counted, if this query writes nothing else.

    Raises:
        BrokerError: Its ledger cannot be created.
        DeliveryError: Its next batch does not continue its ledger, or another checkpoint has written.
        RunError: Spark cannot start it.
    """

    def __init__(
        self, prepared: PreparedQuery, context: Context, identity: CheckpointIdentity,
        require_lease: Callable[[], object], *,
        lags: bool | None = None, counted: CountedBadRecords | None = None,
    ) -> None:  # fmt: skip
        self.prepared = prepared
        self._require_lease = require_lease
        self._context = context
        self._sink = self._transactional_sink(identity)
        self._dead_letters = self._dead_letter_sink(counted) if counted else None
        sink = self._sink or self._dead_letters
        self._called = CalledSink(sink) if sink else None
        self._closing = ExitStack()
        self._failure: Exception | None = None
        self._outage: OutageError | None = None
        self.ending = False
        self._clock = WallClock()
        self._pause_ms = 0
        self.watermarks: WatermarkProgress | None = None
        self._sender: WatermarkSender | None = None
        try:
            if prepared.side_channels.writes_watermarks:
                self._sender = self._prepare_sender(lags=lags)
            with translate_run_errors(f"query {self.name!r}", context.log):
                self.running = self._start(prepared)
            self._closing.callback(self.running.stop)
            if self._sender is not None:
                self._closing.enter_context(self._sender.follow(self.running, self._pause_ms))
                # Before the last poll, which then takes what each committed batch has reported.
                self._closing.callback(self.running.stop)
            if self._dead_letters is not None:
                self._closing.callback(self._dead_letters.stop)
        except BaseException:
            self.stop()
            raise

    @property
    def name(self) -> str:
        """The query's name."""
        return self.prepared.query.name

    @property
    def ended(self) -> bool:
        """Whether it has ended after a committed batch, failed, or was stopped."""
        return has_ended(self.running)

    @property
    def error(self) -> Exception | None:
        """The error with which it ended, if it failed."""
        if self._failure is None and (failure := find_failure(self.running, self._context.spark)):
            self._failure = (self._called.error if self._called else None) or failure
        return self._failure

    @property
    def outage(self) -> OutageError | None:
        """The outage by which it failed, if any."""
        if self._outage is None and self.ended:
            what = f"query {self.name!r} of flow {self._context.flow!r}"
            self._outage = find_outage(what, self.error, self._context.log)
        return self._outage

    @property
    def written(self) -> Mapping[str, int] | None:
        """The growing number of messages in committed transactions, by topic; None without transactions."""
        return self._sink.written if self._sink else None

    @property
    def waits(self) -> bool:
        """Whether it waits for the time of its next batch."""
        return self._pause_ms > 0 and not self.running.status["isTriggerActive"]

    def poll_clock(self) -> bool:
        """Whether it waits for a time that the machine's clock was about to reach when it was set back."""
        return self._clock.poll() and self.waits

    def report_backlog(self, *, backlog: bool) -> None:
        """Report to tagged sinks whether the query is in backlog."""
        if self._sender is not None:
            self._sender.report_backlog(backlog=backlog)

    def end_after_batch(self) -> None:
        """End it when its running batch is committed."""
        self.ending = True
        end_after_batch(self.running, self._context.spark)

    def stop(self) -> None:
        """Stop it at once, with its side channels; records that were not committed are read again."""
        self._closing.close()

    @property
    def _checkpoint(self) -> Path:
        return checkpoint_folder(self.prepared.query, self._context.flow, self._context.settings)

    def _prepare_sender(self, *, lags: bool | None) -> WatermarkSender:
        query, side_channels = self.prepared.query, self.prepared.side_channels
        topics = {
            topic: side_channels.sink_partitions[topic.name]
            for sink in side_channels.tagged_sinks
            if (topic := sink.topic)
        }
        servers = output_servers(query, self._context.settings)
        writer = self._closing.enter_context(
            ElementWriter(servers, topics, f"{self._context.flow}/{query.name}", side_channels.control_key)
        )
        self.watermarks = watermarks_of(
            query,
            side_channels.partitions,
            polls=side_channels.polls_watermarks,
            expiry_ms=side_channels.channel_expiry_ms,
        )
        sender = WatermarkSender(
            query,
            watermarks=self.watermarks,
            writer=writer,
            clock=self._context.clock,
            interval=self._context.settings.auto_watermark_interval,
            state=self._checkpoint / WATERMARKS,
            require_lease=self._require_lease,
            key_groups=key_groups_of(query),
        )
        sender.begin(lags=lags)
        return sender

    def _transactional_sink(self, identity: CheckpointIdentity) -> TransactionalSink | None:
        query, terms = self.prepared.query, identity.ledger
        if terms is None:
            return None
        servers = output_servers(query, self._context.settings)
        prepare_ledger(servers, self._context.flow, query.name, terms)
        writer = TransactionalWriter(
            login=task_login(servers),
            flow=self._context.flow,
            query=query.name,
            checkpoint=identity.checkpoint,
            terms=terms,
            batch_bytes=largest_batch_bytes(self.prepared.side_channels.limits.values()),
            message_bytes=LARGEST_BYTES,
            timeout_ms=self._context.settings.transaction_timeout // MILLISECOND,
        )
        batch = next_batch(self._checkpoint)
        repeats = writer.has_written(batch) or has_unfinished_batch(self._checkpoint)
        return TransactionalSink(writer, batch if repeats else None)

    def _dead_letter_sink(self, counted: CountedBadRecords) -> DeadLetterSink:
        (topic,) = self.prepared.query.topics_read
        return DeadLetterSink(topic.name, self._checkpoint, counted.judge, self._sink_options())

    def _sink_options(self) -> dict[str, str]:
        query, settings = self.prepared.query, self._context.settings
        limits = self.prepared.side_channels.limits.values()
        login = spark_login(output_servers(query, settings))
        return {**login, **sink_options(query, limits, settings.answer_timeout)}

    def _start(self, prepared: PreparedQuery) -> StreamingQuery:
        query, side_channels, settings = prepared.query, prepared.side_channels, self._context.settings
        by_processing_time = False
        # A query keeps the settings of its start. Packed rows and messages may be large.
        conf = self._context.spark.conf
        conf.set("spark.sql.execution.arrow.maxBytesPerBatch", str(64 << 20))
        if side_channels.has_key_groups:
            # Processing time may let windows emit without input.
            conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(1 << 17))
            expires = side_channels.channel_expiry_ms is not None
            ends = query.mode.value == "slice" or prepared.reads_histories
            by_processing_time = not ends and uses_processing_time(query, expires=expires)
            conf.set("spark.sql.streaming.noDataMicroBatches.enabled", str(by_processing_time).lower())
        writer = (
            prepared.frame.writeStream.queryName(query.name)
            .option("checkpointLocation", str(self._checkpoint))
            .outputMode("update")
        )
        trigger = {"once": True} if prepared.repeats else choose_trigger(
            query, settings, by_processing_time=by_processing_time,
            catching_up=prepared.catching_up or prepared.reads_histories,
        )  # fmt: skip
        writer = writer.trigger(**trigger)
        self._pause_ms = int(str(trigger.get("processingTime", _AT_ONCE)).split()[0])
        files = [sink.sink for sink in query.sinks if sink.topic is None]
        if files:
            batches = planned_batches(self._checkpoint)
            return start_files(query, files[0], writer.outputMode("append"), self._context, batches)
        if self._called is not None:
            return writer.foreachBatch(self._called).start()
        return writer.format("kafka").options(**self._sink_options()).start()


def choose_trigger(
    query: LiveQuery, settings: Settings, *, catching_up: bool, by_processing_time: bool
) -> dict[str, Any]:
    """The arguments of Spark's ``trigger``, which decide when a query takes a checkpoint."""
    if query.mode.value == "realtime":
        return {"realTime": f"{settings.realtime_batch // MILLISECOND} milliseconds"}
    if query.mode.value == "slice" or catching_up:
        return {"availableNow": True}
    interval = max(settings.trigger_interval, timedelta(milliseconds=query.batch_interval_ms or 0))
    if by_processing_time:  # batches without input, without a pause, would keep the machine busy
        interval = interval or settings.auto_watermark_interval or _SHORTEST_PAUSE
    return {"processingTime": f"{interval // MILLISECOND} milliseconds"}


def uses_processing_time(query: LiveQuery, *, expires: bool = False) -> bool:
    """Whether windows, timers or a buffer may emit without input, because processing time has passed.

    Args:
        expires: The silent channels of tagged topics become idle.
    """
    idle = any(
        node.watermark.idle_after_ms if node.watermark else expires and node.topic.elements == "tagged"
        for node in query.sources
        if node.topic is not None
    )
    return idle or bool(query.buffers) or any(node.emits_without_input for node in query.operators)
