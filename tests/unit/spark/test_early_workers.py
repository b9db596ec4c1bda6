"""Python workers that start while their query is compiled, without Spark."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from flowcore import Flow, KafkaTopic
from flowcore.planner import plan_flow
from flowcore.settings import Settings
from flowcore.spark.context import Context
from flowcore.spark.operators.key_groups import WORKER_POOL
from flowcore.spark.run.early_workers import start_workers


class Session:
    """A session whose frames keep the environment that their functions got; its jobs wait to be let go."""

    def __init__(self) -> None:
        self.sparkContext = SimpleNamespace(master="local[2]", environment={})
        self.pools: list[str | None] = []
        self.run: list[str | None] = []
        self.may_run = threading.Event()

    def range(self, _end: int, **_: Any) -> Any:
        return self

    def mapInArrow(self, *_: Any) -> Any:  # noqa: N802 - PySpark's name
        pool = self.sparkContext.environment.get(WORKER_POOL)
        self.pools.append(pool)

        def collect() -> None:
            self.may_run.wait(10)
            self.run.append(pool)

        return SimpleNamespace(collect=collect)


def test_pools_are_named_before_the_queries_are_compiled(tmp_path: Path) -> None:
    """The name of a pool is the context's, so another thread's functions would get it."""
    flow = Flow("f")
    source = flow.read("in", KafkaTopic("in", "user STRING, v BIGINT"))
    source.deduplicate(by="user", within=None, name="once").write("out", KafkaTopic("out"))
    stage = plan_flow(flow).live
    assert stage is not None
    session: Any = Session()
    context = Context(session, Settings.of({"state.dir": tmp_path}, environment={}), flow.name)

    start_workers(stage.queries, context)
    found = list(session.pools)
    (thread,) = [each for each in threading.enumerate() if each.name == "flowcore-workers"]
    session.may_run.set()
    thread.join(10)

    (query,) = stage.queries
    pool = str(tmp_path / flow.name / "checkpoints" / query.name / "1")
    assert found == session.run == [None, pool]
    assert session.sparkContext.environment == {}
