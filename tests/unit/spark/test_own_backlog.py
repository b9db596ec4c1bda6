"""A query in micro-batches writes its backlog status to tagged sinks between its starts only."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flowcore import Flow, KafkaTopic, monotonous
from flowcore.metrics.progress import QueryProgress
from flowcore.planner import plan_flow
from flowcore.planner.model import Mode
from flowcore.spark.run.own_backlog import OwnBacklog
from flowcore.spark.topics.side_channels import SideChannels


@dataclass
class Running:
    """A start of a query that keeps what is reported to its sinks."""

    ended: bool = False
    reported: list[bool] = field(default_factory=list)

    def report_backlog(self, *, backlog: bool) -> None:
        self.reported.append(backlog)


def own_backlog(mode: Mode, folder: Path, *, writes: bool = True) -> OwnBacklog:
    flow = Flow("f")
    bids = KafkaTopic("bids", schema="id BIGINT", event_time="id", watermark=monotonous())
    flow.read("bids", bids).write("out", KafkaTopic("out", elements="tagged"))
    (query,) = plan_flow(flow, mode).live_queries
    return OwnBacklog(query, SideChannels(writes_watermarks=writes), folder / "query")


def progress(*, backlog: bool | None) -> QueryProgress:
    return QueryProgress(name="q", mode="micro-batch", active=True, backlog=backlog, lag=9)


def test_status_changes_between_two_starts(tmp_path: Path) -> None:
    """While a start runs, its records have one status; the one after it is written when it has ended."""
    own, running = own_backlog("micro-batch", tmp_path), Running()
    started: Any = running
    own.begin(progress(backlog=True))
    assert own.for_sinks(lags=own.lags) is True

    own.report(progress(backlog=False), started)
    assert running.reported == []
    assert own.changes(progress(backlog=False), lagged=True)
    running.ended = True
    own.report(progress(backlog=True), started)

    assert running.reported == [False]
    assert own.for_sinks(lags=own.lags) is False


def test_status_changes_after_a_start_that_failed(tmp_path: Path) -> None:
    """If the query fails before its next start, it is started again with the status that it had."""
    own = own_backlog("micro-batch", tmp_path)
    own.begin(progress(backlog=True))
    found = [
        (own.changes(progress(backlog=backlog), lagged=lagged), own.lags)
        for backlog, lagged in ((False, True), (False, True), (True, True), (None, False))
    ]

    assert found == [(True, False), (True, False), (False, True), (False, False)]


def test_slice_has_no_status_of_its_own(tmp_path: Path) -> None:
    """Functions learn that all of it is backlog, whatever the lag is."""
    own, running = own_backlog("slice", tmp_path), Running(ended=True)
    started: Any = running
    own.begin(progress(backlog=False))
    own.report(progress(backlog=True), started)
    assert own.lags
    assert not own.changes(progress(backlog=False), lagged=True)
    assert running.reported == []
    assert own.for_sinks(lags=own.lags) is None


def test_query_without_tagged_sinks_runs_on(tmp_path: Path) -> None:
    """Nobody learns of the change."""
    own = own_backlog("micro-batch", tmp_path, writes=False)
    own.begin(progress(backlog=True))
    assert not own.changes(progress(backlog=False), lagged=True)
