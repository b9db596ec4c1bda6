"""A query that is stopped to be started again, when an outage begins in between."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flowcore import Flow, KafkaTopic
from flowcore.errors import UnreachableBrokerError
from flowcore.metrics.progress import QueryProgress
from flowcore.planner import plan_flow
from flowcore.settings import Settings
from flowcore.spark.checkpoint import plan_file
from flowcore.spark.run import supervised
from flowcore.spark.run.patience import Patience
from flowcore.spark.run.supervised import SupervisedQuery
from flowcore.spark.topics.side_channels import SideChannels


class Running:
    """A start of a query; the clock is set back in the first one."""

    def __init__(self, prepared: Any, *_: Any, **__: Any) -> None:
        self.prepared = prepared
        self.ended = self.ending = False
        self.error = self.outage = self.running = self.watermarks = self.written = None

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


def test_query_waits_for_a_broker_that_is_gone_when_it_starts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has not ended: it is tried again, although it was stopped by this process and has no error."""
    flow = Flow("f")
    flow.read("in", KafkaTopic("in", "id BIGINT")).write("out", KafkaTopic("out"))
    (query,) = plan_flow(flow, "micro-batch").live_queries
    now_s, starts = [0.0], iter([None, UnreachableBrokerError("the broker is gone"), None])

    def start(*arguments: Any, **options: Any) -> Running:
        if (error := next(starts)) is not None:
            raise error
        return Running(*arguments, **options)

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

    found.poll()
    waits = found.active
    now_s[0] += 60
    found.poll()

    assert waits
    assert found.active
    assert next(starts, "all made") == "all made"
