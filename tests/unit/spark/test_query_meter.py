"""The counts of a query grow over all its starts."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from flowcore import Flow, KafkaTopic
from flowcore.backlog import Thresholds
from flowcore.metrics.tally import QueryTally
from flowcore.planner import plan_flow
from flowcore.spark.run.query_meter import QueryMeter


class RealTimeQuery:
    """A query in real-time mode: the reports of its batches, and what its running batch has read."""

    def __init__(self) -> None:
        self.read = 0
        self.status = {"isTriggerActive": True}
        self._reports: list[Any] = []
        self._jsq = SimpleNamespace(recentProgress=lambda: self._reports)

    def commit(self, number: int, records: int) -> None:
        report = {
            "batchId": number,
            "timestamp": "1970-01-01T00:00:01.000Z",
            "numInputRows": records,
            "batchDuration": 1,
            "durationMs": {"addBatch": 1},
            "sources": [],
        }
        self._reports.append(SimpleNamespace(batchId=lambda: number, json=lambda: json.dumps(report)))
        self.read = 0

    def records(self, _committed: int) -> int:
        return self.read


class Meter:
    """The meter of one query, whose topic has 1,000 records that are not committed."""

    def __init__(self) -> None:
        flow = Flow("f")
        flow.read("bids", KafkaTopic("bids", schema="id BIGINT")).write("out", KafkaTopic("out"))
        (self._query,) = plan_flow(flow, "realtime").live_queries
        tally = QueryTally(0, {"bids": {0: 0}})
        self._meter = QueryMeter(self._query, tally, Thresholds(100, 10), lambda: True, ())
        self._now_ms = 0

    def start(self, running: Any) -> None:
        self._meter.started(self._query, running, None, running_batch=running, bounded={})

    def counts(self) -> tuple[int, int | None]:
        """The records that were read, and the lag."""
        self._now_ms += 1_000
        ends: Any = SimpleNamespace(
            ends_read_by=lambda _: {"bids": {0: 1_000}}, records_since_start=lambda *_: 0
        )
        found = self._meter.read(ends, self._now_ms, None, {})
        assert (found.rows_per_second or 0) >= 0
        return found.rows_in, found.lag


def test_records_of_a_batch_that_was_not_committed_stay_counted() -> None:
    """The next start reads them again, so that the lag is that before the batch."""
    meter, running, restarted = Meter(), RealTimeQuery(), RealTimeQuery()
    meter.start(running)
    running.read = 600
    assert meter.counts() == (600, 400)

    meter.start(restarted)
    assert meter.counts() == (600, 1_000)
    restarted.read = 200
    assert meter.counts() == (800, 800)
    restarted.commit(0, 300)
    assert meter.counts() == (900, 1_000)


def test_records_of_a_batch_that_was_committed_count_once() -> None:
    """Its report may come right before the next start."""
    meter, running, restarted = Meter(), RealTimeQuery(), RealTimeQuery()
    meter.start(running)
    running.read = 600
    assert meter.counts() == (600, 400)

    running.commit(0, 600)
    meter.start(restarted)

    assert meter.counts() == (600, 1_000)
    restarted.read = 10
    assert meter.counts() == (610, 990)


def test_records_stay_counted_while_spark_does_not_answer() -> None:
    """It gives 0 then."""
    meter, running = Meter(), RealTimeQuery()
    meter.start(running)
    running.read = 600
    meter.counts()

    running.read = 0

    assert meter.counts() == (600, 400)
    running.commit(0, 700)
    assert meter.counts() == (700, 1_000)
