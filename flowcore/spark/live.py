"""The live stage: start its queries, watch them, and stop them all when one fails or a person says so.

Each query has its checkpoint and a lock on it: a second start on the same checkpoint is refused while
the first lives. In slice mode the queries stop by themselves when they have caught up.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from flowcore.errors import FlowcoreError, RunError
from flowcore.graph.operators import Operator, topic_of
from flowcore.kafka.elements import ElementWriter
from flowcore.kafka.latency_collector import LatencyCollector
from flowcore.kafka.security import spark_login
from flowcore.kafka.topics import ensure_topics, partition_counts
from flowcore.latency.summary import LatencySummary
from flowcore.metrics.progress import FlowProgress, QueryProgress
from flowcore.planner.plan import LiveQuery, LiveStage, Plan
from flowcore.settings import Settings
from flowcore.spark.beside import Beside, tracks_latency
from flowcore.spark.boundary import while_running
from flowcore.spark.by_key import goes_by_clock
from flowcore.spark.checkpoints import check, check_plan, checkpoint_of, clear_unborn, record
from flowcore.spark.compile import CompiledQuery, compile_query
from flowcore.spark.context import Context, broker_of
from flowcore.spark.joined_results import joined_results
from flowcore.spark.latency import track
from flowcore.spark.lock import exclusive
from flowcore.spark.observation import Observation
from flowcore.spark.session import live_session
from flowcore.spark.sinks import DEAD_LETTER_CONFIGS, start_files
from flowcore.spark.stream_source import output_servers, sink_options
from flowcore.spark.watermarks import WatermarkSender, watermarks_of
from flowcore.watermarks.query import QueryWatermarks

__all__ = ["LiveRun", "prepare_topics", "slots_needed", "wait_until_ended"]

_POLL_S = 0.05


class LiveRun:
    """The running queries of one live stage; a context manager that stops them at its end.

    Args:
        plan: A plan with a live stage, of which every bounded stage is committed.
        context: Session and settings.
        observation: Of more queries than these, closed by whoever made it. Default: of these.

    Raises:
        RunError: A checkpoint is in use by another run, or a broker or topic is missing.
        StateError: A checkpoint was made by a plan that this one cannot go on from.
        ResultError: A bounded result is missing or damaged.
        PlanError: Spark refuses an operator.
    """

    def __init__(self, plan: Plan, context: Context, observation: Observation | None = None) -> None:
        if plan.live is None:
            msg = f"flow {plan.flow!r} has no unbounded source: there is nothing to run live"
            raise RunError(msg)
        self.plan = plan
        self.stage: LiveStage = plan.live
        self.context = Context(live_session(context.spark, context.settings), context.settings, context.flow)
        self._running: dict[str, StreamingQuery] = {}
        self._collectors: tuple[LatencyCollector, ...] = ()
        self._observation = observation or Observation(plan, self.context)
        self._closes_observation = observation is None
        self._closing = ExitStack()

    def __enter__(self) -> Self:
        try:
            # Locks first: a start that is refused must change nothing for the run that lives.
            for query in self.stage.queries:
                self._closing.enter_context(_only_run(self._checkpoint(query), query.name))
            check_plan(self.plan, self.context.settings)
            results, pin = self._closing.enter_context(joined_results(self.plan, self.context))
            prepare_topics(self.stage, self.context.settings)
            beside = {
                query: Beside.of(query, self.plan, self.context.settings, self._checkpoint(query))
                for query in self.stage.queries
            }
            compiled = {query: self._compile(query, results, beside[query]) for query in self.stage.queries}
            meter = self._observation.prepare()
            pin()
            for query, each in compiled.items():
                clear_unborn(self._checkpoint(query))
                record(query, self.plan.flow, self._checkpoint(query), each.types)
            if any(each.tracked for each in beside.values()):
                self._collectors = self._closing.enter_context(track(self.plan, beside, self.context))
            for query in self.stage.queries:
                with while_running(f"query {query.name!r}", self.context.log):
                    running = self._start(query, compiled[query].frame, beside[query])
                self._running[query.name] = running
                self._closing.callback(running.stop)
                watermarks = (
                    self._send_watermarks(query, beside[query]) if beside[query].watermarked else None
                )
                meter.started(query, running, checkpoint=self._checkpoint(query), watermarks=watermarks)
            self._observation.begin(self.latency)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def active(self) -> bool:
        """At least one query has not ended."""
        return any(query.isActive for query in self._running.values())

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until every query has ended by itself; True if they have.

        Args:
            timeout_s: Seconds to wait at most; None for as long as it takes.

        Raises:
            RunError: A query failed; the others are stopped.
        """
        return wait_until_ended(self, self._raise_failure, timeout_s)

    def progress(self) -> tuple[QueryProgress, ...]:
        """What each query has done; a real-time query tells what it has read every two seconds."""
        return self._observation.health().queries

    def health(self) -> FlowProgress:
        """All that is known of the run now, as listeners are told."""
        return self._observation.health()

    @property
    def metrics_url(self) -> str | None:
        """Where Prometheus finds the run's metrics, if it does."""
        return self._observation.metrics_url

    def latency(self) -> tuple[LatencySummary, ...]:
        """Of the markers that reached each sink in the last minute; none unless latency is tracked."""
        return tuple(one for collector in self._collectors for one in collector.recent())

    def stop(self) -> None:
        """Stop every query at once; what was not committed is read again by the next start."""
        if self._closes_observation:
            self._observation.close()
        self._closing.close()

    def _raise_failure(self) -> None:
        for name, query in self._running.items():
            error = query.exception() if not query.isActive else None
            if error is not None:
                try:
                    with while_running(f"query {name!r} of flow {self.plan.flow!r}", self.context.log):
                        raise error
                except FlowcoreError as failure:
                    self._observation.failed(str(failure))
                    self.stop()
                    raise

    def _checkpoint(self, query: LiveQuery) -> Path:
        return checkpoint_of(query, self.context.flow, self.context.settings)

    def _send_watermarks(self, query: LiveQuery, beside: Beside) -> QueryWatermarks:
        topics = {topic: beside.partitions[topic.name] for sink in beside.tagged if (topic := topic_of(sink))}
        writer = ElementWriter(
            output_servers(query, self.context.settings), topics, f"{self.plan.flow}/{query.name}"
        )
        watermarks = watermarks_of(query, beside.partitions)
        sender = WatermarkSender(
            query,
            self._running[query.name],
            watermarks=watermarks,
            writer=writer,
            interval_s=self.context.settings.auto_watermark_interval.total_seconds(),
            state=self._checkpoint(query).with_suffix(".watermarks.json"),
        )
        self._closing.enter_context(writer)
        self._closing.enter_context(sender)
        return watermarks

    def _compile(
        self, query: LiveQuery, results: Mapping[Operator, DataFrame], beside: Beside
    ) -> CompiledQuery:
        with while_running(f"query {query.name!r}", self.context.log):
            compiled = compile_query(query, self.context, results, beside)
        check(query, self.plan.flow, self._checkpoint(query), compiled.types)
        return compiled

    def _start(self, query: LiveQuery, frame: DataFrame, beside: Beside) -> StreamingQuery:
        by_clock = False
        if beside.windowed:
            # A query keeps what is set when it starts; without input the clock may still make windows emit.
            conf = self.context.spark.conf
            conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(1 << 17))
            conf.set("spark.sql.execution.arrow.maxBytesPerBatch", str(64 << 20))  # of packed rows, too
            by_clock = query.mode.value != "slice" and goes_by_clock(query)
            conf.set("spark.sql.streaming.noDataMicroBatches.enabled", str(by_clock).lower())
        writer = (
            frame.writeStream.queryName(query.name)
            .option("checkpointLocation", str(self._checkpoint(query)))
            .outputMode("update")
        )
        match query.mode.value:
            case "realtime":
                milliseconds = int(self.context.settings.realtime_batch.total_seconds() * 1000)
                writer = writer.trigger(realTime=f"{milliseconds} milliseconds")  # type: ignore[call-overload]
            case "slice":
                writer = writer.trigger(availableNow=True)
            case _:
                interval = self.context.settings.trigger_interval
                if by_clock:  # batches without input, one after the other, would keep the machine busy
                    interval = interval or self.context.settings.auto_watermark_interval
                milliseconds = int(interval.total_seconds() * 1000)
                writer = writer.trigger(processingTime=f"{milliseconds} milliseconds")
        files = [sink.sink for sink in query.sinks if topic_of(sink) is None]
        if files:
            return start_files(files[0], writer.outputMode("append"), self.context)
        options = spark_login(output_servers(query, self.context.settings))
        return (
            writer.format("kafka").options(**options, **sink_options(query, beside.limits.values())).start()
        )


def prepare_topics(stage: LiveStage, settings: Settings) -> None:
    """Check that sources exist, and create what is written to.

    Raises:
        BrokerError: A broker cannot be reached.
        RunError: A source topic does not exist and may not be created.
    """
    for source in stage.sources:
        topic = topic_of(source)
        if topic is None:
            continue
        servers = broker_of(topic, settings)
        if topic.partitions is not None:
            ensure_topics(servers, {topic.name: topic.partitions})
        partitions = partition_counts(servers, [topic.name])[topic.name]
        if partitions is None:
            msg = (
                f"source {source.name!r}: topic {topic.name!r} does not exist at {servers}: the query would "
                "fail at its first batch; start its producer first, or pass partitions= to create it"
            )
            raise RunError(msg)
        for query in stage.queries:
            if source in query.sources:
                _create_outputs(query, partitions, settings)
                if topic.on_error == "dead-letter":
                    letters = {topic.dead_letter: 1}
                    ensure_topics(output_servers(query, settings), letters, DEAD_LETTER_CONFIGS)


def slots_needed(plan: Plan, settings: Settings) -> int:
    """Tasks that shall be able to run at the same time, 0 if the plan has no live queries.

    A real-time query holds its slots as long as it lives. Batches of other queries would wait for each
    other on fewer slots than their tasks, while those wait for the broker; twice the cores is enough.
    One more is for Spark's own small jobs, such as sending a joined table to all tasks.
    """
    held = shared = 0
    for query in plan.live.queries if plan.live else ():
        partitions = 0
        for source in query.sources:
            topic = topic_of(source)
            if topic is not None:
                counts = partition_counts(broker_of(topic, settings), [topic.name])
                partitions += counts[topic.name] or topic.partitions or 1
        if tracks_latency(query, settings, checkpoint_of(query, plan.flow, settings)):
            partitions *= 2  # their companion topics have as many
        if query.mode.value == "realtime":
            held += partitions + (settings.shuffle_partitions if query.updating else 0)
        else:
            shared += partitions
    slots = held + min(shared, 2 * (os.cpu_count() or 1))
    return slots + 1 if held else slots


def _create_outputs(query: LiveQuery, partitions: int, settings: Settings) -> None:
    for sink in query.sinks:
        topic = topic_of(sink)
        if topic is not None:
            ensure_topics(broker_of(topic, settings), {topic.name: topic.partitions or partitions})


def _only_run(checkpoint: Path, name: str) -> AbstractContextManager[None]:
    refusal = (
        f"query {name!r} already runs on the checkpoint {checkpoint}: two would write everything twice and "
        "spoil it; stop the other run, or set another state.dir"
    )
    return exclusive(checkpoint.with_name(f".{name}.lock"), refusal)


class _Active(Protocol):
    @property
    def active(self) -> bool:
        """It has not ended."""
        ...


def wait_until_ended(run: _Active, raise_failure: Callable[[], None], timeout_s: float | None) -> bool:
    """Wait until a run has ended by itself; True if it has.

    Args:
        run: What is waited for.
        raise_failure: Looks whether it has failed.
        timeout_s: Seconds to wait at most; None for as long as it takes.
    """
    end = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        # Asked first: a query that fails after the look at failures has not ended well.
        active = run.active
        raise_failure()
        if not active:
            return True
        if end is not None and time.monotonic() >= end:
            return False
        time.sleep(_POLL_S)
