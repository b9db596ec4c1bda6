"""The progress of one live query: its input, output, lag, watermarks and state.

Spark reports what a batch read when the batch ends, which in real-time mode is once in minutes. The ends of
topics are read from their broker, so output can be seen at any time.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping

from pyspark.sql.streaming.query import StreamingQuery

from flowcore.api.operators import Operator
from flowcore.backlog import MergedBacklog, Thresholds
from flowcore.elements import MIN_TIMESTAMP_MS
from flowcore.metrics.progress import PartitionProgress, QueryProgress
from flowcore.metrics.tally import Batch, BusyOperators, QueryTally, Rate, partitions_of
from flowcore.planner.model import LiveQuery
from flowcore.planner.plan import Plan
from flowcore.spark.errors import ignore_lost_jvm
from flowcore.spark.run.spark_query import RunningBatch
from flowcore.spark.topics.offsets import TopicEnds
from flowcore.spark.topics.reports import batches_after
from flowcore.watermarks.merge import PartitionWatermark
from flowcore.watermarks.progress import WatermarkProgress

__all__ = ["WAITING", "QueryMeter", "waiting_queries"]

WAITING = "waiting"
"""The mode of a query that is not started yet."""


def waiting_queries(plan: Plan, committed: Collection[str]) -> tuple[QueryProgress, ...]:
    """The live queries of a plan that wait for bounded stages; they hold no resources."""
    pending = {r.operator for stage in plan.bounded if stage.name not in committed for r in stage.results}
    return tuple(
        QueryProgress(name=query.name, mode=WAITING, active=True, backlog=_inputs(query, pending).backlog)
        for query in plan.live_queries
        if not set(query.after) <= {*committed}
    )


def _inputs(query: LiveQuery, pending: Collection[Operator] = ()) -> MergedBacklog:
    """The inputs of a query: bounded results, in backlog while they are pending, and sources.

    The backlog of results lasts until the sources have a status.
    """
    inputs = MergedBacklog(node.name for node in (*query.results, *query.sources))
    for node in query.results:
        inputs.receive(node.name, backlog=True)
    for node in query.results:
        if node not in pending:
            inputs.receive(node.name, backlog=False)
    return inputs


class QueryMeter:
    """Adds up the progress of one query over all its starts in a run.

    Args:
        tally: Starts at the offsets from which the query reads.
        active: Whether the query runs, or is about to be restarted.
        dead_letters: The topics of dead letters that no other query counts: a topic shows how many dead
            letters it has, and not which query wrote them.
    """

    def __init__(
        self,
        query: LiveQuery,
        tally: QueryTally,
        thresholds: Thresholds,
        active: Callable[[], bool],
        dead_letters: Collection[str],
    ) -> None:
        self._query = query
        self._tally = tally
        self._thresholds = thresholds
        self._active = active
        self._running: StreamingQuery | None = None
        self._watermarks: WatermarkProgress | None = None
        self._running_batch: RunningBatch | None = None
        self.bounded: Mapping[str, str] = {}
        self._inputs = _inputs(query)
        self._lagging: dict[str, bool] = {}
        self._busy_since: tuple[int, int] | None = None
        """The last batch before the running one, and the time at which the running one was first seen."""
        self._rows_in, self._rows_out = Rate(), Rate()
        self._running_since, self._running_rows = -1, 0
        """The last batch before the running one of a real-time query, and what the running one has read."""
        self._uncommitted_rows = 0
        """What batches had read that were not committed; the next start reads it again."""
        self._sources = {topic.name: node for node in query.sources if (topic := node.topic)}
        self._sinks = {topic.name for topic in query.topics_written}
        keyed = (node.name for exchange in query.exchanges for node in exchange)
        chains = (chain.name for chain in query.chains if chain.process is None)
        self._operators = BusyOperators(dict.fromkeys([*keyed, *chains]))
        self._written: Mapping[str, int] | None = None
        self._written_before: Counter[str] = Counter()
        self._dead_letters = dead_letters

    @property
    def mode(self) -> str | None:
        """The mode of the last start, None before the first."""
        return self._query.mode.value if self._running else None

    def started(
        self,
        query: LiveQuery,
        running: StreamingQuery,
        watermarks: WatermarkProgress | None,
        *,
        running_batch: RunningBatch | None,
        bounded: Mapping[str, str],
        written: Mapping[str, int] | None = None,
    ) -> None:
        """Record a start of the query; its counts continue. ``written`` is growing numbers by topic."""
        if written is not None:
            self._written_before.update(self._written or {})
            self._written = written
        self._take()  # the last batches of the query before
        if self._running_since == self._last_batch:
            self._uncommitted_rows += self._running_rows
        self._running_rows = 0
        self._query, self._running = query, running
        self._watermarks, self._running_batch, self.bounded = watermarks, running_batch, bounded

    def read(
        self,
        topics: TopicEnds,
        now_ms: int,
        transactions: Collection[int] | None,
        busy_ns: Mapping[str, int],
    ) -> QueryProgress:
        """The progress of the query.

        Args:
            transactions: The starts of the open ones; None if unknown.
            busy_ns: How long operators were busy, by name.
        """
        self._take()
        batch, busy = self._tally.last, self._busy
        unreported = self._count_running(self._running_batch) if self._running_batch else 0
        rows_in = self._tally.rows_in + self._uncommitted_rows + unreported
        rows_out = self._count(topics, self._sinks)
        watermarks = self._partition_watermarks()
        ends = topics.ends_read_by(self._query)
        partitions = partitions_of(self._sources, self._tally.offsets, ends, watermarks)
        lags = [one.lag for one in partitions if one.lag is not None]
        lag = max(sum(lags) - unreported, 0) if lags else None
        since_ms = self._tally.buffered_since_ms
        return QueryProgress(
            name=self._query.name,
            mode=self._query.mode.value,
            mode_reason="; ".join(self._query.mode.reasons),
            active=self._active(),
            batches=self._tally.batches,
            rows_in=rows_in,
            rows_per_second=self._rows_per_second(now_ms, rows_in, busy=busy),
            rows_out=rows_out,
            rows_out_per_second=self._rows_out.take(now_ms, rows_out),
            lag=lag,
            backlog=self._backlog(partitions, lag, now_ms, busy=busy),
            batch_ms=batch.length_ms if batch else None,
            watermark_ms=self._watermark_ms(),
            **self._tally.counts,
            buffered=self._tally.buffered,
            oldest_buffered_ms=None if since_ms is None else max(now_ms - since_ms, 0),
            dead_letters=self._count(topics, self._dead_letters),
            open_transactions=None if transactions is None else len(transactions),
            oldest_transaction_ms=max(now_ms - min(transactions), 0) if transactions else None,
            state_rows=batch.state_rows if batch else None,
            state_bytes=self._tally.state_bytes,
            bounded=self.bounded,
            partitions=partitions,
            operators=self._operators.take(now_ms, self._tally.batches, busy_ns, running=busy),
        )

    def _count_running(self, batch: RunningBatch) -> int:
        """What the running batch has read; the last known number if Spark does not answer."""
        if self._running_since != self._last_batch:
            self._running_since, self._running_rows = self._last_batch, 0
        self._running_rows = max(self._running_rows, batch.records(self._last_batch))
        return self._running_rows

    def _count(self, topics: TopicEnds, names: Collection[str]) -> int:
        """The records that topics have got; their offsets count the markers of transactions, too."""
        if self._written is None:
            return topics.records_since_start(self._query, names)
        return sum(self._written_before[name] + self._written.get(name, 0) for name in names)

    def _take(self) -> None:
        if self._running:
            with ignore_lost_jvm():
                self._tally.take(Batch.all_of(batches_after(self._last_batch, self._running)))

    @property
    def _last_batch(self) -> int:
        return self._tally.last.number if self._tally.last else -1

    def _rows_per_second(self, now_ms: int, rows_in: int, *, busy: bool) -> float | None:
        if self._running_batch:
            return self._rows_in.take(now_ms, rows_in)
        return self._tally.rows_per_second(now_ms, busy=busy)

    @property
    def _busy(self) -> bool:
        busy = False
        with ignore_lost_jvm():
            busy = self._running is not None and self._running.status["isTriggerActive"]
        return bool(busy)

    def _partition_watermarks(self) -> dict[str, Mapping[int, PartitionWatermark]]:
        known = self._watermarks.partitions() if self._watermarks else {}
        return {
            topic: {int(number): each for number, each in known[node.name].items()}
            for topic, node in self._sources.items()
            if node.name in known
        }

    def _backlog(
        self, partitions: Iterable[PartitionProgress], lag: int | None, now_ms: int, *, busy: bool
    ) -> bool | None:
        waits = self._waits_for_a_flush(now_ms, busy=busy)
        for topic, node in self._sources.items():
            lags = [one.lag for one in partitions if one.topic == topic and one.lag is not None]
            if lags and lag is not None:
                # Only the sum of what a real-time batch has read is known, and no partition lags by more.
                worst = min(max(lags), lag)
                lagging = not waits and self._thresholds.in_backlog(worst, before=self._lagging.get(topic))
                self._lagging[topic] = lagging
                self._inputs.receive(node.name, backlog=lagging)
        return self._inputs.backlog

    def _waits_for_a_flush(self, now_ms: int, *, busy: bool) -> bool:
        """Whether unread records only wait for the flush interval, and not for a batch that takes longer."""
        interval_ms = self._query.batch_interval_ms
        if interval_ms is None:
            return False
        if not busy:
            self._busy_since = None
        elif self._busy_since is None or self._busy_since[0] != self._last_batch:
            self._busy_since = self._last_batch, now_ms
        return self._busy_since is None or now_ms - self._busy_since[1] <= interval_ms

    def _watermark_ms(self) -> int | None:
        emitted_ms = self._watermarks.watermark_ms if self._watermarks else MIN_TIMESTAMP_MS
        return emitted_ms if emitted_ms > MIN_TIMESTAMP_MS else self._tally.watermark_ms
