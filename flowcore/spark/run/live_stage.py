"""Start live queries, supervise them, and stop all when one fails or the caller ends the run.

Each query holds a lease of its checkpoint: while it runs, a second start on the same checkpoint is refused.
In slice mode the queries end by themselves when they have caught up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NoReturn, Protocol, Self

from pyspark.sql.streaming.query import StreamingQuery

from flowcore.errors import DamagedCheckpointError, FlowcoreError, RunError
from flowcore.kafka.latency_collector import LatencyCollector
from flowcore.latency import LatencySummary
from flowcore.metrics.progress import FlowProgress, QueryProgress
from flowcore.planner.model import LiveQuery, LiveStage
from flowcore.planner.plan import Plan
from flowcore.spark.checkpoint.identity import start_anew
from flowcore.spark.checkpoint.lease import Leases
from flowcore.spark.checkpoint.plan_file import (
    checkpoint_folder,
    require_checkpoints_fit,
)
from flowcore.spark.checkpoint.repartitioning import settle_repartition
from flowcore.spark.checkpoint.storage import find_torn_state, remove_torn_commit, require_space
from flowcore.spark.context import Context
from flowcore.spark.errors import ignore_lost_jvm, is_too_large, translate_run_errors
from flowcore.spark.results.joined import JoinedResults
from flowcore.spark.run.counted_bad_records import CountedBadRecords
from flowcore.spark.run.early_workers import start_workers
from flowcore.spark.run.fence import Fence
from flowcore.spark.run.limit_watch import LimitWatch
from flowcore.spark.run.live_topics import (
    create_companions,
    prepare_topics,
    skip_lost_markers,
    track_latency,
)
from flowcore.spark.run.observation import Observation
from flowcore.spark.run.session import live_session
from flowcore.spark.run.supervised import SupervisedQuery
from flowcore.spark.run.task_slots import require_slots
from flowcore.spark.topics.side_channels import SideChannels

__all__ = ["LiveRun", "wait_until_ended"]

_POLL_S = 0.05
_SHOWN = 5


class LiveRun:
    """The running queries of one live stage; a context manager that stops them at its end.

    Args:
        plan: A plan with a live stage, whose bounded stages are all committed.
        observation: Observes further queries too, and is closed by the caller. Default: a new observation.

    Raises:
        RunError: A checkpoint is in use by another run, or a broker or topic is missing.
        StateError: A checkpoint was made by an incompatible plan.
        ResultError: A bounded result is missing or damaged.
        PlanError: Spark refuses an operator.
    """

    def __init__(self, plan: Plan, context: Context, observation: Observation | None = None) -> None:
        if plan.live is None:
            msg = f"flow {plan.flow!r} has no unbounded source: there is nothing to run live"
            raise RunError(msg)
        self.plan = plan
        self.stage: LiveStage = plan.live
        self.context = replace(context, spark=live_session(context.spark, context.settings))
        context.clock.attach(self.context.spark)
        self._queries: list[SupervisedQuery] = []
        self._waiting: list[SupervisedQuery] = []
        self._fence = Fence(self.context.spark)
        self._leases = Leases(on_renewed=self._fence.extend)
        self._limits = LimitWatch(self.context.settings)
        self._results = JoinedResults(plan, self.context)
        self._collectors: tuple[LatencyCollector, ...] = ()
        self._observation = observation or Observation(plan, self.context)
        self._closes_observation = observation is None
        self._closing = ExitStack()

    def __enter__(self) -> Self:
        try:
            with translate_run_errors(f"flow {self.plan.flow!r}", self.context.log):
                self._open()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def running(self) -> Mapping[str, StreamingQuery]:
        """Spark's query of each query's last start, by name."""
        return {each.query.name: each.running for each in self._queries if each.running is not None}

    @property
    def modes(self) -> Mapping[str, str]:
        """The mode of each query's last start, by name."""
        return {each.query.name: each.mode for each in self._queries}

    @property
    def active(self) -> bool:
        """At least one query has not ended."""
        return bool(self._waiting) or any(each.active for each in self._queries)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until every query has ended by itself; True if they have.

        Meanwhile, a query is restarted after its running batch if it enters backlog, has caught up, or must
        join another version of a result. That may take longer than the timeout.

        Raises:
            RunError: A query failed; the others are stopped.
        """
        return wait_until_ended(self, self._poll, timeout_s)

    def progress(self) -> tuple[QueryProgress, ...]:
        """The progress of each query; Spark updates what a real-time query has read every two seconds."""
        return self._observation.health().queries

    def health(self) -> FlowProgress:
        """The progress of the run, as listeners get it."""
        return self._observation.health()

    @property
    def metrics_url(self) -> str | None:
        """The address of the run's metrics for Prometheus; None if they are not served."""
        return self._observation.metrics_url

    def latency(self) -> tuple[LatencySummary, ...]:
        """The latency of the markers that reached each sink in the last minute; none if it is not tracked."""
        return tuple(one for collector in self._collectors for one in collector.recent())

    def stop(self) -> None:
        """Stop every query at once; the next start reads again what was not committed."""
        if self._closes_observation:
            self._observation.close()
        with ignore_lost_jvm():
            self._closing.close()

    def _open(self) -> None:
        # Leases first: a refused start must not affect the run that holds the checkpoint.
        self._closing.enter_context(self._leases)
        self._leases.take(*map(self._checkpoint, self.stage.queries))
        for query in self.stage.queries:
            remove_torn_commit(self._checkpoint(query))
        self._leases.require()
        self._closing.enter_context(self._fence)
        require_checkpoints_fit(self.plan, self.context.settings)
        start_workers(self.stage.queries, self.context)
        for query in self.stage.queries:
            settle_repartition(self._checkpoint(query))
        self._closing.enter_context(self._results)
        partitions = prepare_topics(self.plan, self.context.settings)
        meter = self._observation.prepare()
        for query in self.stage.queries:
            side_channels = SideChannels.of(query, self.context.settings, self._checkpoint(query))
            self._queries.append(
                SupervisedQuery(
                    query,
                    self.context,
                    meter,
                    self._results,
                    side_channels,
                    fence=self._fence,
                    require_back=partial(self._require_back, query),
                    counted=self._counted_for(query),
                )
            )
        self._limits.begin((each.query, each.side_channels.limits) for each in self._queries)
        self._closing.enter_context(self._limits)
        require_slots(self.plan, self.context, partitions)
        by_query = {each.query: each.side_channels for each in self._queries}
        if any(side_channels.has_markers for side_channels in by_query.values()):
            self._collectors = self._closing.enter_context(track_latency(self.plan, by_query, self.context))
        for each in self._queries:
            self._skip_lost_markers(each)
            self._closing.callback(each.stop)
        self._waiting = [*self._queries]
        self._start_waiting()
        self._observation.begin(self.latency)

    def _counted_for(self, query: LiveQuery) -> CountedBadRecords | None:
        """The bad records of a query as another query counts them, if one does."""
        for counting in self.stage.queries:
            for source in {*counting.counts_bad}.intersection(query.dead_letters):
                find = partial(self._find, counting)
                return CountedBadRecords(source, self._checkpoint(counting), find)
        return None

    def _find(self, query: LiveQuery) -> SupervisedQuery | None:
        return next((each for each in self._queries if each.query is query), None)

    def _poll(self) -> None:
        try:
            with translate_run_errors(f"flow {self.plan.flow!r}", self.context.log):
                self._leases.check()
                self._fence.check()
                self._limits.check()
                for each in self._queries:
                    if (error := each.error) is not None:
                        self._raise(each.query, error)
                    each.poll()
                self._start_waiting()
                with suppress(OSError):  # the next release removes what is left
                    self._results.release({pair for each in self._queries for pair in each.versions})
        except FlowcoreError as failure:
            self._observation.fail(str(failure))
            self.stop()
            raise

    def _raise(self, query: LiveQuery, error: Exception) -> NoReturn:
        """Raise the error with which a query has ended, or its likely cause.

        That is a checkpoint that is gone, or a topic that takes smaller messages than before.
        """
        self._leases.require()
        if is_too_large(error):
            self._limits.check_now()
        try:
            with translate_run_errors(f"query {query.name!r} of flow {self.plan.flow!r}", self.context.log):
                raise error
        except DamagedCheckpointError as damaged:
            checkpoint = self._checkpoint(query)
            torn = ", ".join(map(str, find_torn_state(checkpoint)[:_SHOWN]))
            cut = f"; these files are cut off: {torn}" if torn else ""
            msg = f"{damaged}{cut}; or start anew: {start_anew([checkpoint])}"
            raise DamagedCheckpointError(msg) from error

    def _require_back(self, stopped: LiveQuery) -> None:
        """Check that the outage of a query has ended: there is space, and its brokers have the same topics.

        During a long one, latency markers may have expired that the query that it stopped has not read, or
        their topics been deleted, which would be an outage without end.

        Raises:
            OutageError: The outage has not ended.
            StateError: A topic was created again, or the folder of the checkpoints is gone.
            LostRecordsError: A topic has removed records that were not read.
            RunError: Another process has taken a lease.
        """
        self._leases.require()
        require_space(self._checkpoint(stopped).parent)
        # The brokers of other queries may be away for longer.
        prepare_topics(replace(self.plan, live=LiveStage((stopped,))), self.context.settings)
        if (found := self._find(stopped)) is not None:
            if found.side_channels.has_markers:
                create_companions([stopped], self.context)
            self._skip_lost_markers(found)

    def _skip_lost_markers(self, stopped: SupervisedQuery) -> None:
        skip_lost_markers(stopped.query, self.context, has_markers=stopped.side_channels.has_markers)

    def _start_waiting(self) -> None:
        """Start queries; in slice mode the reader of a cut starts when the writers of the cut have ended."""
        for each in tuple(self._waiting):
            follows = each.query.follows if each.query.mode.value == "slice" else ()
            writers = [one for one in self._queries if one.query.name in follows]
            if any(one in self._waiting or one.active or one.error for one in writers):
                continue
            for one in writers:
                one.stop()  # it writes its last watermarks
            self._waiting.remove(each)
            each.start()

    def _checkpoint(self, query: LiveQuery) -> Path:
        return checkpoint_folder(query, self.context.flow, self.context.settings)


class _Active(Protocol):
    @property
    def active(self) -> bool:
        """Whether it has not ended."""


def wait_until_ended(run: _Active, poll: Callable[[], None], timeout_s: float | None) -> bool:
    """Wait until a run has ended by itself; True if it has. ``poll`` raises the error of a failed run."""
    end = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        # Read before the poll: a query that fails after it would count as ended.
        active = run.active
        poll()
        if not active:
            return True
        if end is not None and time.monotonic() >= end:
            return False
        time.sleep(_POLL_S)
