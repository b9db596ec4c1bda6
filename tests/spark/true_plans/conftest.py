"""Compiles the live queries of a flow as a run does, without a broker, and shows Spark's physical plans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from flowcore import Flow
from flowcore.kafka.topics import TopicIdentity, TopicLimits
from flowcore.planner import plan_flow
from flowcore.planner.model import LiveQuery, Mode
from flowcore.planner.plan import Plan
from flowcore.settings import Settings
from flowcore.spark.compile.query import compile_query
from flowcore.spark.context import Context
from flowcore.spark.operators.chain_specs import spark_types
from flowcore.spark.results.joined import Joined
from flowcore.spark.run.session import live_session
from flowcore.spark.topics.side_channels import SideChannels


@dataclass(frozen=True)
class Compiled:
    """A live query, what the plan says about it, and Spark's plans of it.

    Attributes:
        analyzed: The logical plan as flowcore declares it, before Spark removes anything.
        physical: The physical plan; the sink is the first line, the source the last.
    """

    plan: Plan
    query: LiveQuery
    text: str
    analyzed: str
    physical: str


Compile = Callable[..., list[Compiled]]


@pytest.fixture
def compiled(spark: SparkSession, tmp_path: Path) -> Compile:
    """Compile every live query of a flow; tables that it joins are empty."""
    session = live_session(spark, Settings())
    session.conf.set("spark.sql.debug.maxToStringFields", "1000")
    # A plan is written by the settings of the active session, which may be one of an earlier test.
    session._jvm.SparkSession.setActiveSession(session._jsparkSession)  # type: ignore[union-attr]

    def compile_flow(
        flow: Flow,
        settings: dict[str, Any] | None = None,
        mode: Mode | None = None,
        table_bytes: dict[str, int] | None = None,
    ) -> list[Compiled]:
        given = {
            "state.dir": tmp_path / "state", "data.dir": tmp_path, "kafka.bootstrap.servers": "127.0.0.1:9",
            **(settings or {}),
        }  # fmt: skip
        typed = Settings.of(given, environment={})
        plan = plan_flow(flow, mode, typed, table_bytes)
        context = Context(session, typed, flow.name)
        return [_compile(plan, query, context) for query in plan.live_queries]

    return compile_flow


def _compile(plan: Plan, query: LiveQuery, context: Context) -> Compiled:
    topics = [topic.name for node in (*query.sources, *query.sinks) if (topic := node.topic)]
    channels = SideChannels.planned(
        query,
        dict.fromkeys(topics, TopicIdentity("", "", 2)),
        dict.fromkeys(topics, 2),
        dict.fromkeys(topics, TopicLimits(1 << 20, needs_key=False)),
        has_markers=query.latency.value.startswith("every"),
    )
    tables = {node: _empty(node, context.spark) for node in query.results}
    frame = compile_query(query, context, Joined({}, tables), channels).frame
    execution = frame._jdf.queryExecution()
    shown = context.spark._jvm.PythonSQLUtils.explainString(execution, "extended")  # type: ignore[union-attr]
    analyzed = shown.partition("== Analyzed Logical Plan ==")[2].partition("== Optimized")[0]
    physical = shown.partition("== Physical Plan ==")[2]
    return Compiled(plan, query, plan.explain(verbose=True), analyzed, physical)


def _empty(node: Any, spark: SparkSession) -> DataFrame:
    ddl = ", ".join(f"{name} {kind.simpleString()}" for name, kind in spark_types(node.schema).items())
    return spark.createDataFrame([], ddl)
