"""When a query that an outage has stopped may start again."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flowcore import Flow, KafkaTopic
from flowcore.errors import UnreachableBrokerError
from flowcore.planner import plan_flow
from flowcore.planner.model import LiveQuery
from flowcore.planner.plan import Plan
from flowcore.settings import Settings
from flowcore.spark.context import Clock, Context
from flowcore.spark.run import live_stage
from flowcore.spark.run.live_stage import LiveRun
from flowcore.spark.run.supervised import SupervisedQuery
from flowcore.spark.topics.side_channels import SideChannels

NEAR, FAR = "near:1", "far:1"


def test_query_waits_for_its_own_brokers_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another query of the flow may be in an outage for hours."""
    flow = Flow("f")
    for name, servers in (("near", NEAR), ("far", FAR)):
        read = flow.read(name, KafkaTopic(name, schema="id BIGINT", servers=servers))
        read.write(f"{name}-out", KafkaTopic(f"{name}-out", servers=servers))
    plan = plan_flow(flow, "micro-batch")
    asked: list[tuple[str, ...]] = []

    def ask(queries: Iterable[LiveQuery]) -> None:
        topics = [topic for query in queries for topic in (*query.topics_read, *query.topics_written)]
        asked.append(tuple(topic.name for topic in topics))
        if any(topic.servers == FAR for topic in topics):
            msg = "far:1 does not answer"
            raise UnreachableBrokerError(msg)

    def prepare(plan: Plan, _: Settings) -> None:
        ask(plan.live_queries)

    monkeypatch.setattr(live_stage, "live_session", lambda *_: None)
    monkeypatch.setattr(live_stage, "Fence", lambda _: SimpleNamespace(extend=lambda *_: None))
    monkeypatch.setattr(live_stage, "skip_lost_markers", lambda *_, **__: False)
    monkeypatch.setattr(live_stage, "prepare_topics", prepare)
    monkeypatch.setattr(live_stage, "create_companions", lambda queries, _: ask(queries))
    (tmp_path / "f" / "checkpoints").mkdir(parents=True)
    settings = Settings.of({"state.dir": tmp_path}, environment={})
    no_session: Any = None  # Spark is not used
    clock = Clock()
    monkeypatch.setattr(clock, "attach", lambda _: None)
    run = LiveRun(plan, Context(no_session, settings, "f", clock))
    for query in plan.live_queries:
        supervised: Any = SupervisedQuery.__new__(SupervisedQuery)
        supervised.query, supervised.side_channels = query, SideChannels(has_markers=True)
        run._queries.append(supervised)
    near, far = plan.live_queries

    run._require_back(near)

    assert asked == [("near", "near-out")] * 2
    with pytest.raises(UnreachableBrokerError):
        run._require_back(far)
