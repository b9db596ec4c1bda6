"""Jobs and schedules of a flow."""

from __future__ import annotations

from typing import Literal

import dagster as dg

from flowcore.dagster.attributes import Automation
from flowcore.dagster.live_asset import LiveConfig
from flowcore.dagster.names import bounded_keys, identifier, live_key, op_name
from flowcore.planner.plan import Plan

UNLIMITED = {"dagster/max_runtime": "0"}
"""Run tag: exempt from the limit that run monitoring may set for other jobs."""

_UNFINISHED = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]


def build_jobs(plan: Plan, automation: Automation) -> dg.Definitions:
    """The jobs of a flow, which need no configuration, and its schedules, which are off at first.

    ``<flow>_history`` runs the bounded stages. ``<flow>_slice`` lets the live queries catch up and end.
    ``<flow>_live`` runs the live queries until they are terminated.
    """
    jobs, schedules, retries = [], [], automation.retries
    if plan.bounded:
        history = identifier(plan.flow, "history")
        jobs.append(
            dg.define_asset_job(
                history,
                dg.AssetSelection.assets(*bounded_keys(plan)),
                description=f"Run and check the bounded stages of flow `{plan.flow}`.",
                tags={**UNLIMITED, "dagster/max_retries": str(retries)},
            )
        )
        schedules.append(
            _build_schedule(plan.flow, "refresh_schedule", history, automation.refresh_cron, (history,))
        )
    if plan.live is not None:
        names = live_job_names(plan)
        modes: tuple[tuple[Literal["slice", "auto"], str, int], ...] = (
            ("slice", "catch up with the topics and end", retries),
            # Dagster retries at once; all further restarts are counted and delayed by the supervisor.
            ("auto", "run until they are terminated", min(retries, 1)),
        )
        for name, (mode, what, most) in zip(names, modes, strict=True):
            jobs.append(
                dg.define_asset_job(
                    name,
                    dg.AssetSelection.assets(live_key(plan.flow)).without_checks(),
                    config=dg.RunConfig(ops={op_name(plan.flow, "live"): LiveConfig(mode=mode)}),
                    description=f"Let the live queries of flow `{plan.flow}` {what}.",
                    tags={**UNLIMITED, "dagster/max_retries": str(most)},
                )
            )
        # The pool would queue a slice behind a live run, and one more at each tick.
        schedules.append(_build_schedule(plan.flow, "slice_schedule", names[0], automation.slice_cron, names))
    return dg.Definitions(jobs=jobs, schedules=schedules)


def _build_schedule(
    flow: str, name: str, job: str, cron: str, unless: tuple[str, ...]
) -> dg.ScheduleDefinition:
    @dg.schedule(
        name=identifier(flow, name),
        job_name=job,
        cron_schedule=cron,
        default_status=dg.DefaultScheduleStatus.STOPPED,
        description=f"Launch `{job}`, unless it runs or is queued.",
    )
    def launch(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        reason = unfinished_run(context.instance, *unless)
        return dg.SkipReason(reason) if reason else dg.RunRequest()

    return launch


def live_job_names(plan: Plan) -> tuple[str, str]:
    """The names of the slice and the live job; only one run of the two can hold the checkpoints."""
    return identifier(plan.flow, "slice"), identifier(plan.flow, "live")


def unfinished_run(instance: dg.DagsterInstance, *jobs: str) -> str | None:
    """A message that names an unfinished run of one of these jobs; None if there is none."""
    for job in jobs:
        runs = instance.get_run_ids(dg.RunsFilter(job_name=job, statuses=_UNFINISHED), limit=1)
        if runs:
            return f"run {runs[0]} of job {job} has not ended"
    return None
