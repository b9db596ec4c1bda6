"""One live query on its checkpoint, in one mode and with one version of the results that it joins.

A query is compiled before it is started, so that its successor can be compiled while it still runs.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from flowcore.api.decisions import Decision
from flowcore.kafka.elements import ElementWriter
from flowcore.kafka.security import spark_login
from flowcore.keyed.emitted import CombinedElements
from flowcore.planner.model import LiveQuery
from flowcore.spark.checkpoint.plan_file import StateTypes, checkpoint_folder, require_fit
from flowcore.spark.compile.query import compile_query
from flowcore.spark.context import Context
from flowcore.spark.errors import translate_run_errors
from flowcore.spark.results.joined import Joined
from flowcore.spark.run.spark_query import end_after_batch, has_ended
from flowcore.spark.topics.side_channels import SideChannels
from flowcore.spark.topics.sinks import output_servers, sink_options, start_files
from flowcore.spark.topics.watermarks import WatermarkSender, watermarks_of
from flowcore.watermarks.progress import WatermarkProgress

__all__ = ["PreparedQuery", "RunningQuery", "prepare_query", "uses_processing_time"]


_SHORTEST_PAUSE = timedelta(milliseconds=200)
"""Between batches without input, if the settings say nothing else."""


@dataclass(frozen=True, slots=True)
class PreparedQuery:
    """A query that is compiled and may be started.

    Attributes:
        query: The query, with the mode to start it in.
        catching_up: It ends when it has read all records that are there.
        types: The types of the state that Spark keeps, by operator with state.
    """

    query: LiveQuery
    catching_up: bool
    joined: Joined
    side_channels: SideChannels
    frame: DataFrame
    types: StateTypes


def prepare_query(
    query: LiveQuery,
    context: Context,
    joined: Joined,
    side_channels: SideChannels,
    batch_records: int | None = None,
) -> PreparedQuery:
    """Compile a query, and check that it can continue from its checkpoint.

    With ``batch_records`` it catches up in micro-batches of this many records, and ends; otherwise it runs in
    its own mode.

    Raises:
        PlanError: Spark refuses an operator.
        StateError: The checkpoint was made by an incompatible plan.
    """
    if batch_records is not None:
        reason = f"it catches up, in batches of up to {batch_records:,} records"
        query = replace(query, mode=Decision("micro-batch", (reason,)))
        context = replace(context, settings=replace(context.settings, max_batch_records=batch_records))
    with translate_run_errors(f"query {query.name!r}", context.log):
        compiled = compile_query(query, context, joined, side_channels)
    require_fit(query, context.flow, checkpoint_folder(query, context.flow, context.settings), compiled.types)
    return PreparedQuery(
        query, batch_records is not None, joined, side_channels, compiled.frame, compiled.types
    )


class RunningQuery:
    """A query that was started; it ends by itself, after its batch, or at once.

    Raises:
        RunError: Spark cannot start it.
    """

    def __init__(self, prepared: PreparedQuery, context: Context) -> None:
        self.prepared = prepared
        self._context = context
        self._closing = ExitStack()
        self.ending = False
        with translate_run_errors(f"query {self.name!r}", context.log):
            self.running = self._start(prepared)
        self._closing.callback(self.running.stop)
        self.watermarks = self._send_watermarks() if prepared.side_channels.writes_watermarks else None

    @property
    def name(self) -> str:
        """The query's name."""
        return self.prepared.query.name

    @property
    def ended(self) -> bool:
        """It has ended after a committed batch, failed, or was stopped."""
        return has_ended(self.running)

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

    def _send_watermarks(self) -> WatermarkProgress:
        query, side_channels = self.prepared.query, self.prepared.side_channels
        topics = {
            topic: side_channels.partitions[topic.name]
            for sink in side_channels.tagged_sinks
            if (topic := sink.topic)
        }
        servers = output_servers(query, self._context.settings)
        writer = ElementWriter(servers, topics, f"{self._context.flow}/{query.name}")
        watermarks = watermarks_of(query, side_channels.partitions, polls=side_channels.polls_watermarks)
        sender = WatermarkSender(
            query,
            self.running,
            watermarks=watermarks,
            writer=writer,
            clock=self._context.clock,
            interval=self._context.settings.auto_watermark_interval,
            state=self._checkpoint / "watermarks.json",
            key_groups=_key_groups(query),
        )
        self._closing.enter_context(writer)
        self._closing.enter_context(sender)
        return watermarks

    def _start(self, prepared: PreparedQuery) -> StreamingQuery:
        query, side_channels, settings = prepared.query, prepared.side_channels, self._context.settings
        by_processing_time = False
        if side_channels.has_key_groups:
            # A query keeps the settings of its start. Processing time may let windows emit without input.
            conf = self._context.spark.conf
            conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(1 << 17))
            conf.set("spark.sql.execution.arrow.maxBytesPerBatch", str(64 << 20))  # of packed rows, too
            by_processing_time = query.mode.value != "slice" and uses_processing_time(query)
            conf.set("spark.sql.streaming.noDataMicroBatches.enabled", str(by_processing_time).lower())
        writer = (
            prepared.frame.writeStream.queryName(query.name)
            .option("checkpointLocation", str(self._checkpoint))
            .outputMode("update")
        )
        match query.mode.value:
            case "realtime":
                milliseconds = int(settings.realtime_batch.total_seconds() * 1000)
                writer = writer.trigger(realTime=f"{milliseconds} milliseconds")  # type: ignore[call-overload]
            case "slice":
                writer = writer.trigger(availableNow=True)
            case _ if prepared.catching_up:
                writer = writer.trigger(availableNow=True)
            case _:
                flush_interval = timedelta(milliseconds=query.batch_interval_ms or 0)
                interval = max(settings.trigger_interval, flush_interval)
                if by_processing_time:  # batches without input, without a pause, would keep the machine busy
                    interval = interval or settings.auto_watermark_interval or _SHORTEST_PAUSE
                milliseconds = int(interval.total_seconds() * 1000)
                writer = writer.trigger(processingTime=f"{milliseconds} milliseconds")
        files = [sink.sink for sink in query.sinks if sink.topic is None]
        if files:
            return start_files(files[0], writer.outputMode("append"), self._context)
        options = spark_login(output_servers(query, settings))
        return (
            writer.format("kafka")
            .options(**options, **sink_options(query, side_channels.limits.values()))
            .start()
        )


def _key_groups(query: LiveQuery) -> CombinedElements | None:
    if not query.keeps_key_groups:
        return None
    keyed = (node for exchange in query.exchanges for node in exchange)
    nodes = dict.fromkeys([*keyed, *query.buffers])
    return CombinedElements(f"{node.name}/{group}" for node in nodes for group in range(query.key_groups))


def uses_processing_time(query: LiveQuery) -> bool:
    """Whether windows, timers or a buffer may emit without input, because processing time has passed."""
    topics = [source.topic for source in query.sources]
    idle = any(topic and topic.watermark and topic.watermark.idle_after_ms for topic in topics)
    return idle or bool(query.buffers) or any(node.emits_without_input for node in query.operators)
