"""Progress: what have the queries of a live run done since they were started?

Spark tells what a batch read when the batch ends, which in real-time mode is once in minutes. Where topics
end is asked of their broker, so what has come out can be seen at any time.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from flowcore.api.operators import topic_of
from flowcore.backlog import Thresholds
from flowcore.elements import MIN_TIMESTAMP_MS
from flowcore.errors import BrokerError
from flowcore.latency import LatencySummary
from flowcore.metrics.health import show_seconds
from flowcore.metrics.progress import (
    FlowProgress,
    LatencyProgress,
    PartitionProgress,
    QueryProgress,
    Switch,
)
from flowcore.metrics.tally import Batch, QueryTally, Rate, partitions_of
from flowcore.planner.model import LiveQuery
from flowcore.planner.plan import Plan
from flowcore.planner.rules.backlog import thresholds
from flowcore.spark.checkpoint.offsets import committed_offsets, start_offsets
from flowcore.spark.context import Context
from flowcore.spark.errors import ignore_lost_jvm
from flowcore.spark.run.records_under_way import UnderWay
from flowcore.spark.run.waiting import WAITING, inputs_of
from flowcore.spark.topics.ends import TopicEnds
from flowcore.watermarks.merge import PartitionWatermark
from flowcore.watermarks.query import QueryWatermarks

__all__ = ["RunMeter"]

_SWITCHES = 10


class RunMeter:
    """Adds up what the queries of one live run tell; made before they are started.

    Spark keeps the last 100 batches, so `read` must be called at least as often as that many end. Threads
    may call it at the same time.

    Args:
        plan: Of the run; it has a live stage.
        context: Session and settings.
        last: What was last known of the run before this one, to tell switches of mode by.

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
        self._began_ms = _now_ms()
        self._topics = TopicEnds(plan, context)
        self._queries: dict[str, _QueryMeter] = {}
        self._reading = threading.Lock()

    def about_to_start(self, query: LiveQuery, checkpoint: Path, active: Callable[[], bool]) -> None:
        """Take in a query before it is started, so that it is known how far behind it is.

        Args:
            query: Its plan.
            checkpoint: The folder of its checkpoint.
            active: Tells whether it runs, or is about to go on.
        """
        tally = QueryTally(_now_ms(), self._begin(query) | committed_offsets(checkpoint))
        meter = _QueryMeter(query, tally, thresholds(self._context.settings), active)
        self._queries = {**self._queries, query.name: meter}  # another thread may be reading

    def started(
        self,
        query: LiveQuery,
        running: StreamingQuery,
        *,
        bounded: Mapping[str, str],
        watermarks: QueryWatermarks | None = None,
        reason: str = "",
        pause_ms: int | None = None,
    ) -> None:
        """Take in that a query was just started, for the first time or anew; its counts go on.

        Args:
            query: Its plan, with the mode that it was started in.
            running: The query.
            bounded: By bounded stage the version of its result that it joins.
            watermarks: What its sources tell of event time, if they do.
            reason: Why it was started anew; default: why it is in its mode.
            pause_ms: How long it did not run, where it was started anew.
        """
        meter = self._queries[query.name]
        before = meter.mode or self._before.get(query.name)
        reason = reason or "; ".join(query.mode.reasons)
        refreshed = meter.mode is not None and meter.bounded != bounded
        if before and (refreshed or before != query.mode.value):
            switch = Switch(
                time_ms=_now_ms(),
                query=query.name,
                before=before,
                after=query.mode.value,
                reason=reason,
                pause_ms=pause_ms,
            )
            self._switches = (*self._switches, switch)[-_SWITCHES:]
        under_way = UnderWay(self._context.spark, running) if query.mode.value == "realtime" else None
        with self._reading:
            meter.started(query, running, watermarks, under_way=under_way, bounded=bounded)

    def note(self, name: str, reason: str) -> None:
        """Tell of something that a query goes on through as it is."""
        mode = self._queries[name].mode or ""
        switch = Switch(time_ms=_now_ms(), query=name, before=mode, after=mode, reason=reason)
        self._switches = (*self._switches, switch)[-_SWITCHES:]

    def query(self, name: str) -> QueryProgress:
        """What one query has done so far."""
        with self._reading:
            self._ask()
            return self._queries[name].read(self._topics, _now_ms())

    def read(
        self, state: str = "running", error: str = "", latencies: Iterable[LatencySummary] = ()
    ) -> FlowProgress:
        """What the run has done so far; ends of topics stand still while the broker does not answer.

        Args:
            state: See `FlowProgress`.
            error: See `FlowProgress`.
            latencies: Of the last minute.
        """
        with self._reading:
            self._ask()
            now_ms, silent_s = _now_ms(), self._topics.silent_s
            queries = tuple(meter.read(self._topics, now_ms) for meter in self._queries.values())
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
            queries=queries,
            latencies=tuple(map(LatencyProgress.of_summary, latencies)),
            switches=self._switches,
        )

    def _ask(self) -> None:
        for servers, away_s in self._topics.ask().items():
            for name, meter in self._queries.items():
                if meter.mode is not None:
                    self.note(name, f"broker {servers} answers again, after {show_seconds(away_s)} without")

    def _begin(self, query: LiveQuery) -> dict[str, dict[int, int]]:
        """Where the query begins to read if its checkpoint says nothing of it."""
        found = {}
        with suppress(BrokerError):
            for topic in filter(None, map(topic_of, query.sources)):
                found[topic.name] = start_offsets(topic, self._context.servers(topic))
        return found


class _QueryMeter:
    """What one query has done since it was started."""

    def __init__(
        self, query: LiveQuery, tally: QueryTally, thresholds: Thresholds, active: Callable[[], bool]
    ) -> None:
        self._query = query
        self._tally = tally
        self._thresholds = thresholds
        self._active = active
        self._running: StreamingQuery | None = None
        self._watermarks: QueryWatermarks | None = None
        self._under_way: UnderWay | None = None
        self.bounded: Mapping[str, str] = {}
        self._inputs = inputs_of(query)
        self._lagging: dict[str, bool] = {}
        self._busy_since: tuple[int, int] | None = None
        """The batch that was the last one when the running one was seen first, and the clock then."""
        self._rows_in, self._rows_out = Rate(), Rate()
        self._sources = {topic.name: node for node in query.sources if (topic := topic_of(node))}
        self._sinks = {topic.name for sink in query.sinks if (topic := topic_of(sink))}
        self._letters = {topic.dead_letter for node in query.dead_letters if (topic := topic_of(node))}

    @property
    def mode(self) -> str | None:
        """How it was started last, None if it was not."""
        return self._query.mode.value if self._running else None

    def started(
        self,
        query: LiveQuery,
        running: StreamingQuery,
        watermarks: QueryWatermarks | None,
        *,
        under_way: UnderWay | None,
        bounded: Mapping[str, str],
    ) -> None:
        self._take()  # the last batches of what ran before
        self._query, self._running = query, running
        self._watermarks, self._under_way, self.bounded = watermarks, under_way, bounded

    def read(self, topics: TopicEnds, now_ms: int) -> QueryProgress:
        self._take()
        batch = self._tally.last
        under_way = self._under_way.records(self._last_batch) if self._under_way else 0
        rows_in, rows_out = self._tally.rows_in + under_way, topics.written(self._sinks)
        partitions = partitions_of(self._sources, self._tally.offsets, topics.ends, self._standings())
        lags = [one.lag for one in partitions if one.lag is not None]
        lag = max(sum(lags) - under_way, 0) if lags else None
        since_ms = self._tally.held_since_ms
        return QueryProgress(
            name=self._query.name,
            mode=self._query.mode.value,
            mode_reason="; ".join(self._query.mode.reasons),
            active=self._active(),
            batches=self._tally.batches,
            rows_in=rows_in,
            rows_per_second=self._rows_per_second(now_ms, rows_in),
            rows_out=rows_out,
            rows_out_per_second=self._rows_out.take(now_ms, rows_out),
            lag=lag,
            backlog=self._backlog(partitions, lag, now_ms),
            batch_ms=batch.length_ms if batch else None,
            watermark_ms=self._watermark_ms(),
            late=self._tally.late,
            dropped=self._tally.dropped,
            saved=self._tally.saved,
            held=self._tally.held,
            oldest_held_ms=None if since_ms is None else max(now_ms - since_ms, 0),
            dead_letters=topics.written(self._letters),
            state_rows=batch.state_rows if batch else None,
            state_bytes=self._tally.state_bytes,
            bounded=self.bounded,
            partitions=partitions,
        )

    def _take(self) -> None:
        if self._running:
            with ignore_lost_jvm():
                self._tally.take(Batch.all_of(_batches_after(self._last_batch, self._running)))

    @property
    def _last_batch(self) -> int:
        return self._tally.last.number if self._tally.last else -1

    def _rows_per_second(self, now_ms: int, rows_in: int) -> float | None:
        if self._under_way:
            return self._rows_in.take(now_ms, rows_in)
        return self._tally.rows_per_second(now_ms, busy=self._busy)

    @property
    def _busy(self) -> bool:
        busy = False
        with ignore_lost_jvm():
            busy = self._running is not None and self._running.status["isTriggerActive"]
        return bool(busy)

    def _standings(self) -> dict[str, Mapping[int, PartitionWatermark]]:
        known = self._watermarks.sources if self._watermarks else {}
        return {
            topic: known[node.name].standings() for topic, node in self._sources.items() if node.name in known
        }

    def _backlog(self, partitions: Iterable[PartitionProgress], lag: int | None, now_ms: int) -> bool | None:
        waits = self._waits_for_a_flush(now_ms)
        for topic, node in self._sources.items():
            lags = [one.lag for one in partitions if one.topic == topic and one.lag is not None]
            if lags and lag is not None:
                # Of what a real-time batch has read only the sum is known, and no partition lags by more.
                worst = min(max(lags), lag)
                lagging = not waits and self._thresholds.in_backlog(worst, before=self._lagging.get(topic))
                self._lagging[topic] = lagging
                self._inputs.update(node.name, backlog=lagging)
        return self._inputs.backlog

    def _waits_for_a_flush(self, now_ms: int) -> bool:
        """What is unread is what comes in a flush interval, unless a batch takes longer to read it."""
        interval_ms = self._query.batch_interval_ms
        if interval_ms is None:
            return False
        if not self._busy:
            self._busy_since = None
        elif self._busy_since is None or self._busy_since[0] != self._last_batch:
            self._busy_since = self._last_batch, now_ms
        return self._busy_since is None or now_ms - self._busy_since[1] <= interval_ms

    def _watermark_ms(self) -> int | None:
        told_ms = self._watermarks.watermark_ms if self._watermarks else MIN_TIMESTAMP_MS
        return told_ms if told_ms > MIN_TIMESTAMP_MS else self._tally.watermark_ms


def _batches_after(number: int, running: StreamingQuery) -> list[dict[str, Any]]:
    """What Spark tells of the batches after one, oldest first."""
    # PySpark's own way asks the JVM dozens of questions for each of the last hundred.
    recent = running._jsq.recentProgress()  # noqa: SLF001
    found = []
    for each in reversed(range(len(recent))):
        if recent[each].batchId() <= number:
            break
        found.append(json.loads(recent[each].json()))
    return found[::-1]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
