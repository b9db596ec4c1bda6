"""Dagster's database is away while a live run goes on: heartbeats fail, the run does not."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest

from flowcore.dagster import (
    FlowcoreResource,
    SparkResource,
    definitions,
    flow_assets,
    live_asset,
    termination,
)
from flowcore.dagster.attributes import Objectives
from flowcore.dagster.live_asset import Heartbeat, require_state, watch
from flowcore.dagster.names import live_key
from flowcore.dagster.restart_sensor import first_run
from flowcore.dagster.termination import TerminationRequests
from flowcore.errors import MissingStateError, RunError
from flowcore.metrics.progress import FlowProgress, QueryProgress
from flowcore.planner import plan_flow
from flowcore.planner.plan import Plan
from flowcore.settings import Settings
from flowcore.spark.checkpoint.plan_file import checkpoint_folder, plan_file_of
from pipelines.auctions.flow import flow

pytestmark = pytest.mark.dagster

PROGRESS = FlowProgress(
    flow="auctions", time_ms=1_800_000_000_000, seconds=60.0,
    queries=(QueryProgress(name="bids", mode="realtime", active=True),),
)  # fmt: skip


@contextmanager
def _away(folder: Path) -> Iterator[None]:
    """Storage whose files cannot be opened, as of a database that does not answer."""
    stored, kept = folder / "history", folder / "away"
    stored.rename(kept)
    stored.touch()
    try:
        yield
    finally:
        stored.unlink()
        kept.rename(stored)


def _in_a_run(
    instance: dg.DagsterInstance, body: Callable[[dg.AssetExecutionContext], None], **tags: str
) -> dg.DagsterRun:
    @dg.asset(key=live_key("auctions"))
    def running(context: dg.AssetExecutionContext) -> None:
        body(context)

    return dg.materialize([running], instance=instance, tags=tags, raise_on_error=True).dagster_run


def test_heartbeat_that_fails_is_repeated_soon_and_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one is due soon, whatever the interval; requests to terminate are read again."""
    monkeypatch.setattr(termination, "_STORAGE_POLL_S", 0.0)
    monkeypatch.setattr(live_asset, "_AGAIN_S", 0.0)
    due = []

    def body(context: dg.AssetExecutionContext) -> None:
        run: Any = SimpleNamespace(plan=plan_flow(flow), health=lambda: PROGRESS, metrics_url=None)
        heartbeat = Heartbeat(context, run, Objectives(), 3600.0)
        requests = TerminationRequests(context)
        heartbeat.beat()
        due.append(heartbeat.is_due)
        with _away(tmp_path):
            heartbeat.beat()
            due.append(heartbeat.is_due)
            assert not requests.poll()
        heartbeat.beat()
        due.append(heartbeat.is_due)
        context.instance.report_run_canceling(context.run)
        assert requests.poll()

    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        run = _in_a_run(instance, body)
        beats = instance.fetch_materializations(live_key("auctions"), limit=10).records

    assert due == [False, True, False]
    assert len([beat for beat in beats if "seconds" in beat.asset_materialization.metadata]) == 2
    assert run.run_id == beats[0].run_id


def test_run_keeps_no_heartbeat_that_it_has_sent(tmp_path: Path) -> None:
    """It sends them for months, each with a hundred numbers; the event log has them."""
    kept = []

    def body(context: dg.AssetExecutionContext) -> None:
        run: Any = SimpleNamespace(plan=plan_flow(flow), health=lambda: PROGRESS, metrics_url=None)
        heartbeat = Heartbeat(context, run, Objectives(), 10.0)
        for _ in range(5):
            heartbeat.beat()
        kept.extend(context.consume_events())

    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        run = _in_a_run(instance, body)
        kinds = {dg.DagsterEventType.ASSET_MATERIALIZATION}
        sent = len(instance.all_logs(run.run_id, of_type=kinds))

    assert kept == []
    assert sent == 5 + 1  # and that of the asset itself


def test_heartbeats_continue_while_a_poll_of_the_run_takes_long(tmp_path: Path) -> None:
    """As while it verifies a new result; also after one heartbeat has failed, in a thread of their own."""
    calls = iter(range(1_000))

    def health() -> FlowProgress:
        if next(calls) == 0:
            msg = "the progress cannot be read now"
            raise RunError(msg)
        return PROGRESS

    def body(context: dg.AssetExecutionContext) -> None:
        def wait(_: float) -> bool:
            for _ in range(1_200):
                if len(context.instance.fetch_materializations(live_key("auctions"), limit=2).records) > 1:
                    break
                time.sleep(0.1)
            return True

        run: Any = SimpleNamespace(plan=plan_flow(flow), health=health, metrics_url=None, wait=wait)
        watch(context, run, Heartbeat(context, run, Objectives(), 0.0), threading.Event(), None)

    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        _in_a_run(instance, body)
        beats = instance.fetch_materializations(live_key("auctions"), limit=10).records

    assert len([beat for beat in beats if "seconds" in beat.asset_materialization.metadata]) >= 2


@pytest.mark.parametrize(("repeat_s", "reports"), [(3600.0, 1), (0.0, 3)], ids=["soon", "later"])
def test_checks_are_reported_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repeat_s: float, reports: int
) -> None:
    """Their outcome is the same, but a sensor may have reported another one meanwhile."""
    monkeypatch.setattr(live_asset, "_REPEAT_S", repeat_s, raising=False)

    def body(context: dg.AssetExecutionContext) -> None:
        run: Any = SimpleNamespace(plan=plan_flow(flow), health=lambda: PROGRESS, metrics_url=None)
        heartbeat = Heartbeat(context, run, Objectives(), 3600.0)
        for _ in range(3):
            heartbeat.beat()

    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        run = _in_a_run(instance, body)
        kinds = {dg.DagsterEventType.ASSET_CHECK_EVALUATION}
        events = [entry.get_dagster_event() for entry in instance.all_logs(run.run_id, of_type=kinds)]
        names = [event.asset_check_evaluation_data.check_name for event in events]

    assert [names.count(name) for name in ("running", "late_share")] == [reports, reports]


def test_run_in_dagster_reports_by_its_heartbeats_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listener would report the same asset twice, and the second time of no run."""
    seen: list[Settings] = []

    def start(_resource: SparkResource, _plan: Plan, settings: Settings) -> None:
        seen.append(settings)
        msg = "no Spark is needed to see the settings"
        raise RunError(msg)

    monkeypatch.setattr(SparkResource, "context", start)
    more = {"metrics.dagster.url": "http://dagster:3000", "state.dir": str(tmp_path / "state")}
    defs = definitions(flow_assets(flow), flowcore=FlowcoreResource(more=more))
    with dg.DagsterInstance.ephemeral() as instance:
        job = defs.resolve_job_def("auctions_live")
        assert not job.execute_in_process(instance=instance, raise_on_error=False).success

    assert [(each.dagster_url, each.state_dir) for each in seen] == [(None, tmp_path / "state")]


def test_restarted_run_without_its_checkpoints_is_refused(tmp_path: Path) -> None:
    """Else a flow whose disk is not mounted would begin anew by itself; a person may launch it so."""
    plan = plan_flow(flow)
    settings = Settings.of({"state.dir": tmp_path / "state"}, environment={})
    with dg.DagsterInstance.ephemeral() as instance:
        first = _in_a_run(instance, lambda _: None)
        restarted = {"flowcore/first-run": first.run_id}

        def check(context: dg.AssetExecutionContext) -> None:
            require_state(context, plan, settings)

        def refuse(context: dg.AssetExecutionContext) -> None:
            with pytest.raises(MissingStateError, match="launch the job by hand"):
                require_state(context, plan, settings)

        run = _in_a_run(instance, refuse, **restarted)
        assert first_run(run) == first.run_id
        query = plan.live_queries[0]
        path = plan_file_of(checkpoint_folder(query, "auctions", settings))
        path.parent.mkdir(parents=True)
        path.touch()
        _in_a_run(instance, check, **restarted)
        path.unlink()
        instance.report_runless_asset_event(dg.AssetMaterialization(live_key("auctions")))  # a person's
        _in_a_run(instance, refuse, **restarted)
        _in_a_run(instance, check, **{"flowcore/first-run": "one that never had state"})
        _in_a_run(instance, check)
