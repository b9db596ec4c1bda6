"""The health of a plan's live run, for its supervisor and for listeners.

Several `LiveRun`s may start the queries of a plan; they are observed as one run.
"""

import os
import socket
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from pathlib import Path

from pyspark.sql.streaming.query import StreamingQuery

from flowcore.durations import read_clock_ms
from flowcore.errors import BrokerError
from flowcore.kafka.open_transactions import open_transactions
from flowcore.latency import LatencySummary
from flowcore.metrics.health import show_seconds
from flowcore.metrics.history import history_folder, last_progress
from flowcore.metrics.progress import FlowProgress, LatencyProgress, QueryProgress, Switch
from flowcore.metrics.prometheus import PrometheusListener
from flowcore.metrics.reporting import ProgressListener, Reporter, listeners_of
from flowcore.metrics.tally import QueryTally
from flowcore.metrics.usage import read_usage, root_of_run
from flowcore.planner.model import LiveQuery
from flowcore.planner.plan import Plan
from flowcore.planner.rules.execution import read_thresholds
from flowcore.spark.checkpoint.offset_log import committed_offsets
from flowcore.spark.context import Context, output_servers
from flowcore.spark.run.jvm import is_submitted
from flowcore.spark.run.query_meter import WAITING, QueryMeter, waiting_queries
from flowcore.spark.run.spark_query import RunningBatch
from flowcore.spark.topics.offsets import TopicEnds, start_offsets
from flowcore.watermarks.progress import WatermarkProgress

__all__ = ["Observation", "RunMeter"]

_SWITCHES = 10
_ANSWER_S = 2.0


class RunMeter:
    """Adds up the progress of a live run's queries; made before they are started.

    Spark keeps the last 100 batches, so `read` must be called at least once in 100 batches. Several threads
    may call it at the same time.

    Args:
        last: The last known progress of the run before, to detect switches of mode.

    Raises:
        BrokerError: A broker cannot be reached.
    """

    def __init__(self, plan: Plan, context: Context, last: FlowProgress | None = None) -> None:
        self._plan = plan
        self._context = context
        self._before = (
            {query.name: query.mode for query in last.queries if query.mode != WAITING} if last else {}
        )
        self._switches: tuple[Switch, ...] = last.switches if last else ()
        self._began_ms = read_clock_ms()
        self._topics = TopicEnds(plan, context)
        self._sinks: dict[str, dict[str, str]] = {}
        for sink in (each for query in plan.live_queries for each in query.sinks):
            if sink.topic is not None:
                topics = self._sinks.setdefault(str(context.servers(sink.topic)), {})
                topics[sink.topic.name] = f"{plan.flow}/{sink.name}"
        self._transactions: dict[str, list[int]] = {}
        self._queries: dict[str, QueryMeter] = {}
        self._counted: dict[str, set[str]] = {}
        """The topics of dead letters that a query counts, by the address of their broker."""
        self._reading = threading.Lock()

    def add(self, query: LiveQuery, checkpoint: Path, active: Callable[[], bool]) -> None:
        """Add a query before it is started, so that its lag is known.

        ``active`` returns whether the query runs, or is about to be restarted.
        """
        begins = {}
        with suppress(BrokerError):  # where the query begins if its checkpoint has no offsets
            for topic in filter(None, (source.topic for source in query.sources)):
                begins[topic.name] = start_offsets(topic, self._context.servers(topic))
        counts_bad = {source for each in self._plan.live_queries for source in each.counts_bad}
        tally = QueryTally(
            read_clock_ms(),
            begins | committed_offsets(checkpoint),
            by_offsets=not counts_bad.isdisjoint(query.dead_letters),
        )
        dead_letters = {node.dead_letter for node in query.dead_letters}
        if dead_letters and not query.exactly_once:  # which counts what is in its transactions
            counted = self._counted.setdefault(output_servers(query, self._context.settings), set())
            dead_letters -= counted
            counted |= dead_letters
        meter = QueryMeter(query, tally, read_thresholds(self._context.settings), active, dead_letters)
        self._queries = {**self._queries, query.name: meter}  # another thread may be reading

    def started(
        self,
        query: LiveQuery,
        running: StreamingQuery,
        *,
        bounded: Mapping[str, str],
        watermarks: WatermarkProgress | None = None,
        written: Mapping[str, int] | None = None,
        reason: str = "",
        pause_ms: int | None = None,
    ) -> None:
        """Record that a query was started or restarted; its counts continue.

        The query has the mode that it was started in. ``written`` is the number of messages in its committed
        transactions, by topic; None if it writes outside of transactions. ``pause_ms`` is how long it did not
        run. By default the reason is why it is in its mode.
        """
        meter = self._queries[query.name]
        before = meter.mode or self._before.get(query.name)
        refreshed = meter.mode is not None and meter.bounded != bounded
        if before and (refreshed or before != query.mode.value):
            reason = reason or "; ".join(query.mode.reasons)
            self._add_switch(query.name, before, query.mode.value, reason, pause_ms)
        batch = RunningBatch(self._context.spark, running) if query.mode.value == "realtime" else None
        with self._reading:
            meter.started(query, running, watermarks, running_batch=batch, bounded=bounded, written=written)

    def note(self, name: str, reason: str) -> None:
        """Record an event that does not change how a query runs."""
        mode = self._queries[name].mode or ""
        self._add_switch(name, mode, mode, reason)

    def query(self, name: str) -> QueryProgress:
        """The progress of one query."""
        with self._reading:
            self._poll_topics()
            return self._read(name, read_clock_ms())

    def read(
        self, state: str = "running", error: str = "", latencies: Iterable[LatencySummary] = ()
    ) -> FlowProgress:
        """The progress of the run; if a broker does not answer, with the last known ends of its topics."""
        with self._reading:
            self._poll_topics()
            self._poll_transactions()
            now_ms, silent_s = read_clock_ms(), self._topics.silent_s
            queries = tuple(self._read(name, now_ms) for name in self._queries)
        usage = read_usage(root_of_run(submitted=is_submitted()))
        if state != "running":  # those that are still active are about to be stopped
            queries = tuple(replace(query, active=False) for query in queries)
        return FlowProgress(
            flow=self._plan.flow,
            time_ms=now_ms,
            seconds=(now_ms - self._began_ms) / 1000,
            state=state,
            error=error,
            interval_s=self._context.settings.metrics_interval.total_seconds(),
            host=socket.gethostname(),
            pid=os.getpid(),
            broker_silent_ms=round(silent_s * 1000),
            **(asdict(usage) if usage else {}),
            queries=queries,
            latencies=tuple(map(LatencyProgress.of_summary, latencies)),
            switches=self._switches,
            sinks=self._sinks,
        )

    def _read(self, name: str, now_ms: int) -> QueryProgress:
        transactions, busy_ns = self._transactions.get(name), self._context.busy_times.read(name)
        return self._queries[name].read(self._topics, now_ms, transactions, busy_ns)

    def _poll_topics(self) -> None:
        for servers, away_s in self._topics.poll().items():
            for name, meter in self._queries.items():
                if meter.mode is not None:
                    self.note(name, f"broker {servers} answers again, after {show_seconds(away_s)} without")

    def _poll_transactions(self) -> None:
        """Ask for open transactions: for reports only, since a supervisor reads single queries often."""
        if self._topics.silent_s:
            return
        writers: dict[str, list[str]] = {}
        for query in self._plan.live_queries:
            if query.exactly_once and query.name in self._queries:
                servers = output_servers(query, self._context.settings)
                writers.setdefault(servers, []).append(query.name)
        for servers, names in writers.items():
            with suppress(BrokerError):  # the next poll asks again
                self._transactions |= open_transactions(servers, self._plan.flow, names, _ANSWER_S)

    def _add_switch(
        self, query: str, before: str, after: str, reason: str, pause_ms: int | None = None
    ) -> None:
        switch = Switch(
            time_ms=read_clock_ms(), query=query, before=before, after=after, reason=reason, pause_ms=pause_ms
        )
        self._switches = (*self._switches, switch)[-_SWITCHES:]


class Observation:
    """Meters the live queries of one plan, and reports to listeners from their start to their end."""

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
        """Make the meter; must be called before queries start, by the owner of their checkpoints.

        Raises:
            SettingsError: Listeners are set, but metrics.interval is 0.
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
        """Begin to report, after queries have started."""
        self._latencies.append(latency)
        if self._listeners and self._reporter is None:
            interval_s = self._context.settings.metrics_interval.total_seconds()
            self._reporter = self._closing.enter_context(Reporter(self.health, self._listeners, interval_s))

    def set_committed(self, committed: Collection[str]) -> None:
        """Set the bounded stages that are committed; queries that need more are reported as waiting."""
        self._committed = frozenset(committed)

    def health(self) -> FlowProgress:
        """The progress of the run, as listeners get it."""
        latencies = [one for latency in self._latencies for one in latency()]
        progress = self.prepare().read(self._state, self._error, latencies)
        started = {query.name for query in progress.queries}
        waiting = waiting_queries(self._plan, self._committed) if self._state == "running" else ()
        more = (query for query in waiting if query.name not in started)
        return replace(progress, queries=(*progress.queries, *more))

    @property
    def metrics_url(self) -> str | None:
        """The address of the run's metrics for Prometheus; None if they are not served."""
        return next((one.url for one in self._listeners if isinstance(one, PrometheusListener)), None)

    def fail(self, error: str) -> None:
        """Record that a query failed; listeners are informed when the observation is closed."""
        self._state, self._error = "failed", error

    def close(self) -> None:
        """Report the end, once; queries may still run, and are about to be stopped."""
        if self._state == "running":
            self._state = "ended"
        self._closing.close()
