"""The live stage: start its queries, watch them, and stop them all when one fails or a person says so.

Each query has its checkpoint and a lease of it: a second start on the same checkpoint is refused while
the first lives. In slice mode the queries stop by themselves when they have caught up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from pyspark.sql.streaming.query import StreamingQuery

from flowcore.api.operators import topic_of
from flowcore.errors import FlowcoreError, RunError
from flowcore.kafka.latency_collector import LatencyCollector
from flowcore.kafka.topics import ensure_topics, partition_counts
from flowcore.latency import LatencySummary
from flowcore.metrics.progress import FlowProgress, QueryProgress
from flowcore.planner.model import LiveQuery, LiveStage
from flowcore.planner.plan import Plan
from flowcore.settings import Settings
from flowcore.spark.checkpoint.lease import Leases
from flowcore.spark.checkpoint.plan_file import checkpoint_folder, require_checkpoints_fit
from flowcore.spark.context import Context, broker_of
from flowcore.spark.errors import ignore_lost_jvm, translate_run_errors
from flowcore.spark.results.joined import JoinedResults
from flowcore.spark.run.latency import track
from flowcore.spark.run.observation import Observation
from flowcore.spark.run.session import live_session
from flowcore.spark.run.supervised import SupervisedQuery
from flowcore.spark.run.task_slots import require_slots
from flowcore.spark.topics.side_channels import SideChannels
from flowcore.spark.topics.sinks import DEAD_LETTER_CONFIGS
from flowcore.spark.topics.stream_source import output_servers

__all__ = ["LiveRun", "prepare_topics", "wait_until_ended"]

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
        self._queries: list[SupervisedQuery] = []
        self._leases = Leases()
        self._results = JoinedResults(plan, self.context)
        self._collectors: tuple[LatencyCollector, ...] = ()
        self._observation = observation or Observation(plan, self.context)
        self._closes_observation = observation is None
        self._closing = ExitStack()

    def __enter__(self) -> Self:
        try:
            # Leases first: a start that is refused must change nothing for the run that lives.
            self._closing.enter_context(self._leases)
            for query in self.stage.queries:
                self._leases.take(self._checkpoint(query))
            require_checkpoints_fit(self.plan, self.context.settings)
            self._closing.enter_context(self._results)
            prepare_topics(self.stage, self.context.settings)
            meter = self._observation.prepare()
            for query in self.stage.queries:
                side_channels = SideChannels.of(
                    query, self.plan, self.context.settings, self._checkpoint(query)
                )
                self._queries.append(
                    SupervisedQuery(query, self.context, meter, self._results, side_channels)
                )
            require_slots(self.plan, self.context)
            by_query = {each.query: each.side_channels for each in self._queries}
            if any(side_channels.has_markers for side_channels in by_query.values()):
                self._collectors = self._closing.enter_context(track(self.plan, by_query, self.context))
            for each in self._queries:
                self._closing.callback(each.stop)
                each.start()
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
    def running(self) -> Mapping[str, StreamingQuery]:
        """Spark's own queries, as they were started last, by name."""
        return {each.query.name: each.running for each in self._queries if each.running is not None}

    @property
    def modes(self) -> Mapping[str, str]:
        """How each query was started last, by name; asks nobody."""
        return {each.query.name: each.mode for each in self._queries}

    @property
    def active(self) -> bool:
        """At least one query has not ended."""
        return any(each.active for each in self._queries)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until every query has ended by itself; True if they have.

        While it waits, queries are ended with their running batch and started anew where they fall behind,
        have caught up, or have another version of a result to join. That may take longer than the timeout.

        Args:
            timeout_s: Seconds to wait at most; None for as long as it takes.

        Raises:
            RunError: A query failed; the others are stopped.
        """
        return wait_until_ended(self, self._look, timeout_s)

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
        with ignore_lost_jvm():
            self._closing.close()

    def _look(self) -> None:
        try:
            with translate_run_errors(f"flow {self.plan.flow!r}", self.context.log):
                self._leases.check()
                for each in self._queries:
                    if (error := each.error) is not None:
                        what = f"query {each.query.name!r} of flow {self.plan.flow!r}"
                        with translate_run_errors(what, self.context.log):
                            raise error
                    each.look()
                self._results.release({pair for each in self._queries for pair in each.versions})
        except FlowcoreError as failure:
            self._observation.failed(str(failure))
            self.stop()
            raise

    def _checkpoint(self, query: LiveQuery) -> Path:
        return checkpoint_folder(query, self.context.flow, self.context.settings)


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


def _create_outputs(query: LiveQuery, partitions: int, settings: Settings) -> None:
    for sink in query.sinks:
        topic = topic_of(sink)
        if topic is not None:
            ensure_topics(broker_of(topic, settings), {topic.name: topic.partitions or partitions})


class _Active(Protocol):
    @property
    def active(self) -> bool:
        """It has not ended."""
        ...


def wait_until_ended(run: _Active, look: Callable[[], None], timeout_s: float | None) -> bool:
    """Wait until a run has ended by itself; True if it has.

    Args:
        run: What is waited for.
        look: Looks after it; raises what it has failed with.
        timeout_s: Seconds to wait at most; None for as long as it takes.
    """
    end = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        # Asked first: a query that fails after the look at failures has not ended well.
        active = run.active
        look()
        if not active:
            return True
        if end is not None and time.monotonic() >= end:
            return False
        time.sleep(_POLL_S)
