"""Recorded runs of the reference flow and ticks of its supervisor: events are real, runs are not executed."""

import time
from dataclasses import dataclass
from typing import Any

from dagster import (
    AssetCheckEvaluation,
    AssetKey,
    AssetMaterialization,
    AssetsDefinition,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    Definitions,
    SensorResult,
    asset,
    build_sensor_context,
)
from dagster._core.events import (
    DagsterEvent,
    DagsterEventType,
    JobFailureData,
    RunFailureReason,
    StepMaterializationData,
)
from dagster._core.execution.plan.objects import StepFailureData
from dagster._utils.error import SerializableErrorInfo

from flowcore.dagster import Automation, definitions, flow_assets
from flowcore.dagster.heartbeats import HEARTBEAT
from flowcore.dagster.names import live_key
from pipelines.auctions.flow import flow

__all__ = ["CONFIG", "DEFS", "LIMIT", "LIVE", "Supervised", "reported_checks"]

LIMIT = 2
OPTIONS = Automation(restarts=LIMIT, first_wait_s=0, longest_wait_s=0, silent_s=120, start_s=300)
DEFS = definitions(flow_assets(flow, automation=OPTIONS))
SUPERVISOR = next(
    each for each in DEFS.get_repository_def().sensor_defs if each.name == "auctions_supervision"
)
LIVE = DEFS.resolve_job_def("auctions_live")
CONFIG = {"ops": {"auctions__live": {"config": {"mode": "micro-batch", "heartbeat_seconds": 2.0}}}}
STEP_FAILED = JobFailureData(error=None, failure_reason=RunFailureReason.STEP_FAILURE)


@dataclass
class Supervised:
    """Runs of the live job, and the supervisor's ticks."""

    instance: DagsterInstance
    cursor: str | None = None

    def start(self, ago_s: float = 0.0, **tags: str) -> DagsterRun:
        run = self.instance.create_run_for_job(
            LIVE, run_config=CONFIG, tags={"shift": "night", **tags}, status=DagsterRunStatus.STARTING
        )
        self.record(run, DagsterEventType.RUN_START, ago_s=ago_s)
        return run

    def start_other(self, job: str, ago_s: float, **tags: str) -> DagsterRun:
        run = self.instance.create_run_for_job(
            DEFS.resolve_job_def(job), tags=tags, status=DagsterRunStatus.STARTING
        )
        self.record(run, DagsterEventType.RUN_START, ago_s=ago_s)
        return run

    def start_assets(self, *keys: AssetKey, ago_s: float) -> DagsterRun:
        """A run of selected assets that somebody launched without a job; without keys, of all there are."""
        location = Definitions(assets=[_stand_in(key) for key in keys or [live_key("auctions")]])
        run = self.instance.create_run_for_job(
            location.resolve_implicit_global_asset_job_def(),
            asset_selection=frozenset(keys) or None,
            status=DagsterRunStatus.STARTING,
        )
        self.record(run, DagsterEventType.RUN_START, ago_s=ago_s)
        return run

    def status(self, run: DagsterRun) -> DagsterRunStatus:
        now = self.instance.get_run_by_id(run.run_id)
        assert now
        return now.status

    def tags(self, run: DagsterRun) -> dict[str, str]:
        now = self.instance.get_run_by_id(run.run_id)
        assert now
        return dict(now.tags)

    def queue(self, **tags: str) -> DagsterRun:
        return self.instance.create_run_for_job(LIVE, run_config=CONFIG, tags=tags)

    def beat(self, run: DagsterRun, ago_s: float = 0.0) -> None:
        beat = StepMaterializationData(AssetMaterialization(live_key("auctions")), [])
        self.record(run, DagsterEventType.ASSET_MATERIALIZATION, beat, ago_s)

    def renew(self, run: DagsterRun, ago_s: float = 0.0) -> None:
        """Send the heartbeat of a run of bounded stages."""
        self.instance.add_run_tags(run.run_id, {HEARTBEAT: f"{time.time() - ago_s:.0f} {run.run_id}"})

    def crash(self, run: DagsterRun) -> None:
        self.record(run, DagsterEventType.RUN_FAILURE, STEP_FAILED)

    def fail(self, run: DagsterRun, error: str, *, direct: bool) -> None:
        """Record the error of a step, which Dagster wraps in one of its own."""
        info = SerializableErrorInfo("it is away", [], error)
        if not direct:
            info = SerializableErrorInfo(
                "Error occurred", [], "DagsterExecutionStepExecutionError", cause=info
            )
        data = StepFailureData(error=info, user_failure_data=None)
        self.record(run, DagsterEventType.STEP_FAILURE, data)

    def record(self, run: DagsterRun, kind: DagsterEventType, data: Any = None, ago_s: float = 0.0) -> None:
        event = DagsterEvent(kind.value, run.job_name, event_specific_data=data)
        self.instance.report_dagster_event(event, run.run_id, timestamp=time.time() - ago_s)

    def tick(self) -> SensorResult:
        with build_sensor_context(self.instance, cursor=self.cursor) as context:
            found = SUPERVISOR(context)
        assert isinstance(found, SensorResult)
        self.cursor = found.cursor
        return found

    def restart(self) -> DagsterRun | None:
        """One tick, and the run that it asks for, as the daemon would launch it."""
        requests = self.tick().run_requests or []
        return self.start(**requests[0].tags) if requests else None


def _stand_in(key: AssetKey) -> AssetsDefinition:
    @asset(key=key)
    def nothing() -> None:
        """Nothing is executed."""

    return nothing


def reported_checks(result: SensorResult) -> list[tuple[bool, str]]:
    events = [event for event in result.asset_events or [] if isinstance(event, AssetCheckEvaluation)]
    return [(event.passed, event.description or "") for event in events]
