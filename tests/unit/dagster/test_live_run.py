"""A run of live queries in Dagster, without Spark: what it does around them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from dagster import AssetCheckExecutionContext, AssetCheckResult, DagsterInstance, Definitions, asset_check

from flowcore import Flow, KafkaTopic
from flowcore.dagster import FlowcoreResource, SparkResource, definitions, flow_assets, live_asset
from flowcore.dagster.heartbeats import HEARTBEAT
from flowcore.dagster.names import live_key
from flowcore.metrics.progress import FlowProgress
from flowcore.planner.plan import Plan
from tests.waiting import wait_until


@contextmanager
def _ended(plan: Plan, _context: Any) -> Iterator[Any]:
    """Queries that have ended already."""
    progress = FlowProgress(flow=plan.flow, time_ms=1_800_000_000_000, seconds=1.0, queries=())
    yield SimpleNamespace(plan=plan, metrics_url=None, health=lambda: progress, wait=lambda _: True)


def test_run_sends_heartbeats_while_the_projects_checks_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are after the last heartbeat of the queries, and know nothing of heartbeats."""
    monkeypatch.setattr(SparkResource, "context", lambda *_: None)
    monkeypatch.setattr(live_asset, "LiveRun", _ended)
    flow = Flow("shop")
    flow.read("in", KafkaTopic("in", schema="id BIGINT")).write("out", KafkaTopic("out"))

    @asset_check(asset=live_key("shop"))
    def own(context: AssetCheckExecutionContext) -> AssetCheckResult:
        instance, run_id = context.instance, context.run.run_id
        wait_until(
            lambda: (run := instance.get_run_by_id(run_id)) and HEARTBEAT in run.tags,
            "it beats",
            timeout_s=30,
        )
        return AssetCheckResult(passed=True)

    flowcore = FlowcoreResource(more={"state.dir": str(tmp_path)})
    defs = Definitions.merge(
        definitions(flow_assets(flow), flowcore=flowcore), Definitions(asset_checks=[own])
    )
    with DagsterInstance.ephemeral() as instance:
        job = defs.resolve_implicit_global_asset_job_def()
        result = job.execute_in_process(
            instance=instance, asset_selection=[live_key("shop")], raise_on_error=False
        )
        checks = {each.check_name: each.passed for each in result.get_asset_check_evaluations()}

    assert checks.get("own")
