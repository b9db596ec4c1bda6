"""Observation: how is the live run of a plan doing, and who is told?

A plan's queries may be started in parts, each by a `LiveRun`; they are observed as one run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import ExitStack
from dataclasses import replace

from flowcore.latency import LatencySummary
from flowcore.metrics.history import history_folder, last_progress
from flowcore.metrics.progress import FlowProgress
from flowcore.metrics.prometheus import PrometheusListener
from flowcore.metrics.reporting import ProgressListener, Reporter, listeners_of
from flowcore.planner.plan import Plan
from flowcore.spark.context import Context
from flowcore.spark.run.progress import RunMeter
from flowcore.spark.run.waiting import waiting_queries

__all__ = ["Observation"]


class Observation:
    """Looks at the live queries of one plan, and tells listeners from their start to their end.

    Args:
        plan: A plan with live queries.
        context: Session and settings.
    """

    def __init__(self, plan: Plan, context: Context) -> None:
        self._plan = plan
        self._context = context
        self._committed = frozenset(stage.name for stage in plan.bounded)
        self._state, self._error = "running", ""
        self._latencies: list[Callable[[], Iterable[LatencySummary]]] = []
        self._listeners: list[ProgressListener] = []
        self._meter: RunMeter | None = None
        self._reporter: Reporter | None = None
        self._closing = ExitStack()

    def prepare(self) -> RunMeter:
        """To be called before queries start, by the one that holds their checkpoints: what meters them.

        Raises:
            SettingsError: Prometheus has a port and nothing to show there.
            RunError: The port cannot be listened on.
            BrokerError: A broker cannot be reached.
        """
        if self._meter is None:
            settings = self._context.settings
            self._listeners = self._closing.enter_context(listeners_of(self._plan.flow, settings))
            last = last_progress(history_folder(settings.state_dir, self._plan.flow))
            self._meter = RunMeter(self._plan, self._context, last)
        return self._meter

    def begin(self, latency: Callable[[], Iterable[LatencySummary]]) -> None:
        """Queries have started; listeners are told from now on.

        Args:
            latency: Of these queries, in the last minute.
        """
        self._latencies.append(latency)
        if self._listeners and self._reporter is None:
            interval_s = self._context.settings.metrics_interval.total_seconds()
            self._reporter = self._closing.enter_context(Reporter(self.health, self._listeners, interval_s))

    def only(self, committed: Collection[str]) -> None:
        """No other bounded stages are committed yet; queries that need more are told of as waiting."""
        self._committed = frozenset(committed)

    def health(self) -> FlowProgress:
        """All that is known of the run now, as listeners are told."""
        latencies = [one for latency in self._latencies for one in latency()]
        progress = self.prepare().read(self._state, self._error, latencies)
        started = {query.name for query in progress.queries}
        waiting = waiting_queries(self._plan, self._committed) if self._state == "running" else ()
        more = (query for query in waiting if query.name not in started)
        return replace(progress, queries=(*progress.queries, *more))

    @property
    def metrics_url(self) -> str | None:
        """Where Prometheus finds the run's metrics, if it does."""
        return next((one.url for one in self._listeners if isinstance(one, PrometheusListener)), None)

    def failed(self, error: str) -> None:
        """A query failed; listeners are told when the observation is closed."""
        self._state, self._error = "failed", error

    def close(self) -> None:
        """Tell listeners of the end, once; queries may still run, and are about to be stopped."""
        if self._state == "running":
            self._state = "ended"
        self._closing.close()
