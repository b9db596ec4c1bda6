"""A query that is stopped to be started again, when an outage begins in between."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flowcore import Flow, KafkaTopic
from flowcore.errors import UnreachableBrokerError
from flowcore.kafka.transactions import EXPIRED
from flowcore.metrics.progress import QueryProgress
from flowcore.planner import plan_flow
from flowcore.settings import Settings
from flowcore.spark.checkpoint import plan_file
from flowcore.spark.run import supervised
from flowcore.spark.run.patience import Patience
from flowcore.spark.run.supervised import SupervisedQuery
from flowcore.spark.topics.side_channels import SideChannels


class Running:
    """A start of a query, during which the clock is set back, unless it fails."""

    def __init__(self, prepared: Any, error: Exception | None) -> None:
        self.prepared, self.error = prepared, error
        self.ended, self.ending = error is not None, False
        self.outage = self.running = self.watermarks = self.written = None

    def poll_clock(self) -> bool:
        return True

    def stop(self) -> None:
        self.ended = True


def ignore(*_: Any, **__: Any) -> None:
    """Do nothing."""


def prepared(*_: Any, **__: Any) -> Any:
    side_channels = SideChannels()
    return SimpleNamespace(
        query=SimpleNamespace(exactly_once=True), joined=SimpleNamespace(versions={}), types={}, schemas={},
        side_channels=side_channels, catching_up=False, reads_histories=False, repeats=False,
    )  # fmt: skip


@pytest.mark.parametrize("error", [None, Exception(f"a commit failed: {EXPIRED}")], ids=["stopped", "slow"])
def test_query_waits_for_a_broker_that_is_gone_when_it_starts_again(
    error: Exception | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has neither ended nor failed: it is tried again, whether it was stopped or too slow."""
    flow = Flow("f")
    flow.read("in", KafkaTopic("in", "id BIGINT")).write("out", KafkaTopic("out"))
    (query,) = plan_flow(flow, "micro-batch").live_queries
    now_s, starts = [0.0], iter([True, *[False] * 5, True])

    def start(prepared: Any, *_: Any, **__: Any) -> Running:
        if not next(starts):
            msg = "the broker is gone"
            raise UnreachableBrokerError(msg)
        return Running(prepared, error)

    monkeypatch.setattr(supervised, "prepare_query", prepared)
    monkeypatch.setattr(supervised, "RunningQuery", start)
    monkeypatch.setattr(supervised, "Patience", partial(Patience, clock=lambda: now_s[0]))
    monkeypatch.setattr(supervised, "decide_joins", lambda *_: query)
    monkeypatch.setattr(plan_file, "write_plan_file", lambda *_, **__: None)
    known = QueryProgress(name=query.name, mode="micro-batch", active=True, backlog=False, lag=0)
    stub: Any = SimpleNamespace(
        add=ignore, note=ignore, started=ignore, query=lambda _: known, watch=ignore, pin=ignore,
        pin_newest=lambda *_: SimpleNamespace(versions={}, bytes={}), newer_versions=lambda *_: {},
    )  # fmt: skip
    context: Any = SimpleNamespace(
        flow="f", log="spark.log", settings=Settings.of({"state.dir": tmp_path}, environment={})
    )
    found = SupervisedQuery(query, context, stub, stub, SideChannels(), fence=stub, require_back=ignore)
    found.start()

    waits = []
    for _ in range(6):
        found.poll()
        waits.append(found.active and found.error is None)
        now_s[0] += 60

    assert waits == [True] * 6
    assert next(starts, None) is None
