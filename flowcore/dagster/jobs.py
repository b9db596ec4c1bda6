"""Jobs: what of a flow is launched with one click, and whether it runs already."""

from __future__ import annotations

from typing import Literal

from dagster import (
    AssetSelection,
    DagsterInstance,
    DagsterRunStatus,
    Definitions,
    RunConfig,
    RunsFilter,
    define_asset_job,
)

from flowcore.dagster.live_asset import LiveConfig
from flowcore.dagster.names import bounded_keys, identifier, live_key, op_name
from flowcore.planner.plan import Plan

__all__ = ["UNLIMITED", "jobs_of", "live_jobs", "unfinished"]

UNLIMITED = {"dagster/max_runtime": "0"}
"""Run monitoring may have a limit for other jobs."""

_UNFINISHED = [
    DagsterRunStatus.QUEUED,
    DagsterRunStatus.NOT_STARTED,
    DagsterRunStatus.STARTING,
    DagsterRunStatus.STARTED,
    DagsterRunStatus.CANCELING,
]


def jobs_of(plan: Plan, retries: int) -> Definitions:
    """The jobs of a flow, which need no typing to launch.

    ``<flow>_history`` runs its bounded stages; ``<flow>_slice`` lets its live queries catch up and end;
    ``<flow>_live`` lets them stay.

    Args:
        plan: Of the flow.
        retries: How often Dagster repeats a run whose process was killed; one that failed it does not.
    """
    found = []
    if plan.bounded:
        found.append(_history_job(plan, retries))
    if plan.live is not None:
        found += [_live_job(plan, "slice", retries), _live_job(plan, "auto", retries)]
    return Definitions.merge(*found)


def live_jobs(plan: Plan) -> tuple[str, str]:
    """The jobs of which one run at a time holds the checkpoints."""
    return identifier(plan.flow, "slice"), identifier(plan.flow, "live")


def unfinished(instance: DagsterInstance, *jobs: str) -> str | None:
    """That a run of one of these jobs has not ended, in words; None if all have."""
    for job in jobs:
        runs = instance.get_run_ids(RunsFilter(job_name=job, statuses=_UNFINISHED), limit=1)
        if runs:
            return f"run {runs[0]} of job {job} has not ended"
    return None


def _history_job(plan: Plan, retries: int) -> Definitions:
    job = define_asset_job(
        identifier(plan.flow, "history"),
        AssetSelection.assets(*bounded_keys(plan)),
        description=f"Run the bounded stages of flow `{plan.flow}` and check what they leave.",
        tags={**UNLIMITED, "dagster/max_retries": str(retries)},
    )
    return Definitions(jobs=[job])


def _live_job(plan: Plan, mode: Literal["slice", "auto"], retries: int) -> Definitions:
    what = "catch up with the topics and end" if mode == "slice" else "run until they are terminated"
    job = define_asset_job(
        identifier(plan.flow, "slice" if mode == "slice" else "live"),
        AssetSelection.assets(live_key(plan.flow)).without_checks(),
        config=RunConfig(ops={op_name(plan.flow, "live"): LiveConfig(mode=mode)}),
        description=f"Let the live queries of flow `{plan.flow}` {what}.",
        # The supervisor counts and delays what the pool would start at once.
        tags={**UNLIMITED, "dagster/max_retries": str(retries if mode == "slice" else min(retries, 1))},
    )
    return Definitions(jobs=[job])
