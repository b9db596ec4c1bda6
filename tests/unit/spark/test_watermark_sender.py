"""What a query's watermark sender emits is written, or written later."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from flowcore import Flow, KafkaTopic, monotonous
from flowcore.elements import RecordAttributes, StreamElement, Watermark
from flowcore.planner import plan_flow
from flowcore.spark.topics.watermarks import WatermarkSender, watermarks_of


class Writer:
    """Keeps what is written to the sinks."""

    def __init__(self) -> None:
        self.written: list[list[StreamElement[Any]]] = []

    def continues(self) -> bool:
        return False

    def write(self, elements: Iterable[StreamElement[Any]]) -> None:
        if found := list(elements):
            self.written.append(found)


class Running:
    """A query whose batches have each one record."""

    def __init__(self) -> None:
        self.reports: list[Any] = []
        self._jsq = SimpleNamespace(recentProgress=lambda: self.reports)

    def commit(self, newest_ms: int) -> None:
        number = len(self.reports)
        observed = {"flowcore-watermarks-bids": {"newest_0": newest_ms, "records_0": 1}}
        report = {"batchId": number, "durationMs": {"addBatch": 1}, "observedMetrics": observed}
        self.reports.append(SimpleNamespace(batchId=lambda: number, json=lambda: json.dumps(report)))


def test_elements_whose_state_was_not_saved_are_sent_later(tmp_path: Path) -> None:
    """While the disk is full nothing is sent; then the latest of each kind, whether or not there is news."""
    flow = Flow("f")
    bids = KafkaTopic("bids", schema="id BIGINT", event_time="id", watermark=monotonous())
    flow.read("bids", bids).write("out", KafkaTopic("out", elements="tagged"))
    (query,) = plan_flow(flow, "micro-batch").live_queries
    writer, running, state = Writer(), Running(), tmp_path / "away" / "watermarks.json"
    clock: Any = SimpleNamespace(
        now_ms=lambda: 1_000, every=lambda *_: contextlib.nullcontext(), attach=lambda _: None
    )
    follow: Any = running
    sender = WatermarkSender(
        query, watermarks=watermarks_of(query, {"bids": 1}, polls=True, expiry_ms=None),
        writer=writer, clock=clock, interval=timedelta(0), state=state, key_groups=None,  # type: ignore[arg-type]
    ).follow(follow)  # fmt: skip
    sender.begin(lags=None)
    for backlog, newest_ms in ((True, 5_000), (False, 6_000)):
        sender.report_backlog(backlog=backlog)
        running.commit(newest_ms)
        sender._try_to_poll()
    assert writer.written == []

    state.parent.mkdir()
    sender._try_to_poll()
    sender._try_to_poll()

    assert writer.written == [[RecordAttributes(backlog=False), Watermark(5_999)]]
    assert json.loads(state.read_text())["backlog"]["inputs"]
