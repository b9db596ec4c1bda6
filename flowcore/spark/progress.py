"""Progress: how much has a live query done since it was started?

Spark tells what a batch read when the batch ends, which in real-time mode is once in minutes. What has
come out is asked of the broker, so it can be seen at any time.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from flowcore.backlog.inputs import Inputs, lags
from flowcore.elements import MIN_TIMESTAMP_MS
from flowcore.errors import BrokerError
from flowcore.graph.operators import KeyGroupOperator, Operator, topic_of
from flowcore.kafka.topics import end_offsets
from flowcore.planner.plan import LiveQuery, Plan
from flowcore.settings import Settings
from flowcore.spark.by_key import counted_as
from flowcore.spark.context import broker_of

__all__ = ["ProgressMeter", "QueryProgress", "inputs_of", "waiting_queries"]


@dataclass(frozen=True, slots=True)
class QueryProgress:
    """What one query has done since it was started.

    Attributes:
        name: The query's.
        mode: How it runs.
        active: It has not ended.
        batches: Batches committed.
        rows_in: Records read in them.
        rows_per_second: Of the last one.
        rows_out: Records that came into its sinks' topics, whoever wrote them; dead letters not counted.
        dead_letters: Bad messages that came into the dead-letter topics that it writes.
        late: Records that left through the side outputs of its windows.
        dropped: Records that its windows dropped as late.
        state_bytes: What its windows keep, as of the last batch that all key groups had part in.
        watermark_ms: How far event time has come in its windows; None where there are none, or none yet.
        backlog: What it reads is history: a bounded result that it joins is pending, or a source lags by
            over `flowcore.backlog.inputs.CATCH_UP_S`, as its last batch told; None if that is not known.
    """

    name: str
    mode: str
    active: bool
    batches: int
    rows_in: int
    rows_per_second: float
    rows_out: int
    dead_letters: int = 0
    late: int = 0
    dropped: int = 0
    state_bytes: int = 0
    watermark_ms: int | None = None
    backlog: bool | None = None


def waiting_queries(plan: Plan, committed: Collection[str]) -> tuple[QueryProgress, ...]:
    """The live queries of a plan that wait for bounded stages, and hold nothing.

    Args:
        plan: What runs.
        committed: Names of the bounded stages that are committed.
    """
    pending = {r.operator for stage in plan.bounded if stage.name not in committed for r in stage.results}
    return tuple(
        QueryProgress(query.name, "waiting", False, 0, 0, 0.0, 0, backlog=inputs_of(query, pending).backlog)
        for query in (plan.live.queries if plan.live else ())
        if not set(query.after) <= {*committed}
    )


def inputs_of(query: LiveQuery, pending: Collection[Operator] = ()) -> Inputs:
    """What a query reads, with those of its bounded results that are pending; the others are no backlog."""
    inputs = Inputs((node.name for node in query.results), (node.name for node in query.sources))
    for node in query.results:
        if node not in pending:
            inputs.tell(node.name, backlog=False)
    return inputs


class ProgressMeter:
    """Adds up what one running query tells; made before the query is started.

    Spark keeps the last 100 batches, so `read` must be called at least as often as that many end.

    Raises:
        BrokerError: The broker of a sink cannot be reached.
    """

    def __init__(self, query: LiveQuery, settings: Settings) -> None:
        self._query = query
        topics = {topic.name: topic for sink in query.sinks if (topic := topic_of(sink))}
        self._topics = {name: broker_of(topic, settings) for name, topic in topics.items()}
        letters = [(topic.dead_letter, topic) for node in query.dead_letters if (topic := topic_of(node))]
        self._letters = {name: broker_of(topic, settings) for name, topic in letters}
        self._before = self._now = _records(self._topics), _records(self._letters)
        self._last_batch = -1
        self._batches = self._rows_in = 0
        self._windows = [counted_as(node) for node in query.operators if isinstance(node, KeyGroupOperator)]
        self._late = self._dropped = self._state_bytes = 0
        self._watermark_ms: int | None = None
        self._inputs = inputs_of(query)

    def read(self, running: StreamingQuery) -> QueryProgress:
        """What the query has done so far; ``rows_out`` stands still while the broker does not answer."""
        with suppress(BrokerError):
            self._now = _records(self._topics), _records(self._letters)
        for batch in running.recentProgress:
            if batch["batchId"] > self._last_batch:
                self._last_batch = batch["batchId"]
                self._batches += 1
                self._rows_in += batch["numInputRows"]
                self._take(batch["observedMetrics"])
        last = running.lastProgress
        if last:
            self._hear(last)
        return QueryProgress(
            name=self._query.name,
            mode=self._query.mode.value,
            active=running.isActive,
            batches=self._batches,
            rows_in=self._rows_in,
            rows_per_second=float(last["processedRowsPerSecond"] or 0.0) if last else 0.0,
            rows_out=self._now[0] - self._before[0],
            dead_letters=self._now[1] - self._before[1],
            late=self._late,
            dropped=self._dropped,
            state_bytes=self._state_bytes,
            watermark_ms=self._watermark_ms,
            backlog=self._inputs.backlog,
        )

    def _take(self, metrics: Mapping[str, Any]) -> None:
        for name in self._windows:
            row = metrics.get(name)
            if row is None or row["watermark_ms"] is None:  # a batch that no key group had part in
                continue
            self._late += row["late_records"]
            self._dropped += row["dropped_records"]
            self._state_bytes = row["state_bytes"]
            if row["watermark_ms"] != MIN_TIMESTAMP_MS:
                self._watermark_ms = row["watermark_ms"]

    def _hear(self, batch: Mapping[str, Any]) -> None:
        for source in self._query.sources:
            topic = topic_of(source)
            for each in batch["sources"]:
                read, there = _offsets(each.get("endOffset")), _offsets(each.get("latestOffset"))
                if topic is not None and topic.name in read and topic.name in there:
                    unread = sum(there[topic.name].values()) - sum(read[topic.name].values())
                    rate = float(each.get("processedRowsPerSecond") or 0.0)
                    self._inputs.tell(source.name, backlog=lags(unread, rate))


def _records(topics: Mapping[str, str]) -> int:
    return sum(sum(end_offsets(servers, name).values()) for name, servers in topics.items())


def _offsets(found: Any) -> dict[str, dict[str, int]]:
    """Offsets by topic and partition, as a batch tells them; nothing if it does not."""
    offsets = json.loads(found) if isinstance(found, str) else found
    return offsets if isinstance(offsets, dict) else {}
