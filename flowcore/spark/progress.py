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
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from flowcore.elements import MIN_TIMESTAMP_MS
from flowcore.errors import BrokerError
from flowcore.graph.operators import topic_of
from flowcore.latency import LatencySummary
from flowcore.metrics.progress import FlowProgress, LatencyProgress, QueryProgress, Switch
from flowcore.metrics.tally import Batch, QueryTally, Rate, partitions_of
from flowcore.planner.plan import LiveQuery, Plan
from flowcore.spark.context import Context
from flowcore.spark.offsets import committed_offsets, start_offsets
from flowcore.spark.topic_ends import TopicEnds
from flowcore.spark.under_way import UnderWay
from flowcore.spark.waiting import WAITING, inputs_of
from flowcore.watermarks.merge import Standing
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
        self._last = last
        self._began_ms = _now_ms()
        self._topics = TopicEnds(plan, context)
        self._queries: dict[str, _QueryMeter] = {}
        self._reading = threading.Lock()

    def started(
        self,
        query: LiveQuery,
        running: StreamingQuery,
        *,
        checkpoint: Path,
        watermarks: QueryWatermarks | None = None,
    ) -> None:
        """Take in a query that was just started.

        Args:
            query: Its plan.
            running: The query.
            checkpoint: The folder of its checkpoint.
            watermarks: What its sources tell of event time, if they do.
        """
        joined = set(query.results)
        stages = [s.name for s in self._plan.bounded if joined & {result.operator for result in s.results}]
        pins = {stage: self._context.results.folder(stage).pinned(query.name) for stage in stages}
        meter = _QueryMeter(
            query,
            running,
            watermarks,
            tally=QueryTally(_now_ms(), self._begin(query) | committed_offsets(checkpoint)),
            under_way=UnderWay(self._context.spark, running) if query.mode.value == "realtime" else None,
            bounded={stage: version for stage, version in pins.items() if version},
        )
        self._queries = {**self._queries, query.name: meter}  # another thread may be reading

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
            self._topics.ask()
            now_ms = _now_ms()
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
            queries=queries,
            latencies=tuple(map(LatencyProgress.of_summary, latencies)),
            switches=self._switches(),
        )

    def _begin(self, query: LiveQuery) -> dict[str, dict[int, int]]:
        """Where the query begins to read if its checkpoint says nothing of it."""
        found = {}
        with suppress(BrokerError):
            for topic in filter(None, map(topic_of, query.sources)):
                found[topic.name] = start_offsets(topic, self._context.servers(topic))
        return found

    def _switches(self) -> tuple[Switch, ...]:
        if self._last is None:
            return ()
        before = {query.name: query.mode for query in self._last.queries if query.mode != WAITING}
        now = [
            Switch(
                time_ms=self._began_ms,
                query=name,
                before=before[name],
                after=meter.query.mode.value,
                reason="; ".join(meter.query.mode.reasons),
            )
            for name, meter in self._queries.items()
            if before.get(name, meter.query.mode.value) != meter.query.mode.value
        ]
        return (*self._last.switches, *now)[-_SWITCHES:]


class _QueryMeter:
    """What one query has done since it was started."""

    def __init__(
        self,
        query: LiveQuery,
        running: StreamingQuery,
        watermarks: QueryWatermarks | None,
        *,
        tally: QueryTally,
        under_way: UnderWay | None,
        bounded: Mapping[str, str],
    ) -> None:
        self.query = query
        self._running = running
        self._watermarks = watermarks
        self._tally = tally
        self._under_way = under_way
        self._bounded = bounded
        self._inputs = inputs_of(query)
        self._rows_in, self._rows_out = Rate(), Rate()
        self._sources = {topic.name: node for node in query.sources if (topic := topic_of(node))}
        self._sinks = {topic.name for sink in query.sinks if (topic := topic_of(sink))}
        self._letters = {topic.dead_letter for node in query.dead_letters if (topic := topic_of(node))}

    def read(self, topics: TopicEnds, now_ms: int) -> QueryProgress:
        self._tally.take(Batch.run_of(_batches_after(self._last_batch, self._running)))
        batch = self._tally.last
        under_way = self._under_way.records(self._last_batch) if self._under_way else 0
        rows_in, rows_out = self._tally.rows_in + under_way, topics.written(self._sinks)
        partitions = partitions_of(self._sources, self._tally.offsets, topics.ends, self._standings())
        lags = [one.lag for one in partitions if one.lag is not None]
        return QueryProgress(
            name=self.query.name,
            mode=self.query.mode.value,
            mode_reason="; ".join(self.query.mode.reasons),
            active=self._running.isActive,
            batches=self._tally.batches,
            rows_in=rows_in,
            rows_per_second=self._rows_per_second(now_ms, rows_in),
            rows_out=rows_out,
            rows_out_per_second=self._rows_out.take(now_ms, rows_out),
            lag=max(sum(lags) - under_way, 0) if lags else None,
            backlog=self._backlog(batch),
            batch_ms=batch.length_ms if batch else None,
            watermark_ms=self._watermark_ms(),
            late=self._tally.late,
            dropped=self._tally.dropped,
            dead_letters=topics.written(self._letters),
            state_rows=batch.state_rows if batch else None,
            state_bytes=self._tally.state_bytes,
            bounded=self._bounded,
            partitions=partitions,
        )

    @property
    def _last_batch(self) -> int:
        return self._tally.last.number if self._tally.last else -1

    def _rows_per_second(self, now_ms: int, rows_in: int) -> float | None:
        if self._under_way:
            return self._rows_in.take(now_ms, rows_in)
        return self._tally.rows_per_second(now_ms, busy=self._running.status["isTriggerActive"])

    def _standings(self) -> dict[str, Mapping[int, Standing]]:
        known = self._watermarks.sources if self._watermarks else {}
        return {
            topic: known[node.name].standings() for topic, node in self._sources.items() if node.name in known
        }

    def _backlog(self, batch: Batch | None) -> bool | None:
        lagging = batch.lagging if batch else {}
        for source in self.query.sources:
            topic = topic_of(source)
            if topic is not None and topic.name in lagging:
                self._inputs.tell(source.name, backlog=lagging[topic.name])
        return self._inputs.backlog

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
