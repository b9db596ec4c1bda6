"""Automation: the jobs of a flow, which need no typing to launch, and the schedule of its slices."""

from typing import Literal

from dagster import (
    AssetSelection,
    DagsterRunStatus,
    DefaultScheduleStatus,
    Definitions,
    RunConfig,
    RunRequest,
    RunsFilter,
    ScheduleEvaluationContext,
    SkipReason,
    define_asset_job,
    schedule,
)

from flowcore.planner.plan import Plan
from pipelines.bridge.live import LiveConfig
from pipelines.bridge.names import bounded_keys, identifier, live_key, op_name

__all__ = ["automation"]

# Run monitoring may have a limit for other jobs.
_UNLIMITED = {"dagster/max_runtime": "0"}
_UNFINISHED = [
    DagsterRunStatus.QUEUED,
    DagsterRunStatus.NOT_STARTED,
    DagsterRunStatus.STARTING,
    DagsterRunStatus.STARTED,
    DagsterRunStatus.CANCELING,
]


def automation(plan: Plan, slice_cron: str) -> Definitions:
    """Jobs and schedule of a flow.

    ``<flow>_history`` runs its bounded stages; ``<flow>_slice`` lets its live queries catch up and end;
    ``<flow>_live`` lets them stay.

    Args:
        plan: Of the flow.
        slice_cron: When the schedule runs a slice; it does so once a person has switched it on.
    """
    found = []
    if plan.bounded:
        found.append(_history_job(plan))
    if plan.live is not None:
        found += [_live_job(plan, "slice"), _live_job(plan, "auto"), _slice_schedule(plan, slice_cron)]
    return Definitions.merge(*found)


def _history_job(plan: Plan) -> Definitions:
    job = define_asset_job(
        identifier(plan.flow, "history"),
        AssetSelection.assets(*bounded_keys(plan)),
        description=f"Run the bounded stages of flow `{plan.flow}` and check what they leave.",
        tags=_UNLIMITED,
    )
    return Definitions(jobs=[job])


def _live_job(plan: Plan, mode: Literal["slice", "auto"]) -> Definitions:
    what = "catch up with the topics and end" if mode == "slice" else "run until they are terminated"
    job = define_asset_job(
        identifier(plan.flow, "slice" if mode == "slice" else "live"),
        AssetSelection.assets(live_key(plan.flow)),
        config=RunConfig(ops={op_name(plan.flow, "live"): LiveConfig(mode=mode)}),
        description=f"Let the live queries of flow `{plan.flow}` {what}.",
        tags=_UNLIMITED,
    )
    return Definitions(jobs=[job])


def _slice_schedule(plan: Plan, cron: str) -> Definitions:
    job = identifier(plan.flow, "slice")
    jobs = (job, identifier(plan.flow, "live"))

    @schedule(
        name=identifier(plan.flow, "slice_schedule"),
        job_name=job,
        cron_schedule=cron,
        default_status=DefaultScheduleStatus.STOPPED,
        description=f"Let flow `{plan.flow}` catch up, unless it runs or waits to run.",
    )
    def slices(context: ScheduleEvaluationContext) -> RunRequest | SkipReason:
        # The pool would queue it behind a live run, and one more at each tick.
        for name in jobs:
            unfinished = context.instance.get_run_ids(
                RunsFilter(job_name=name, statuses=_UNFINISHED), limit=1
            )
            if unfinished:
                return SkipReason(f"run {unfinished[0]} of job {name} has not ended")
        return RunRequest()

    return Definitions(schedules=[slices])
