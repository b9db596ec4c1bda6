"""Retention of runs: what Dagster's storage keeps of a flow's live runs and slices.

Dagster itself keeps every run and every event for ever; a heartbeat is an event.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime, timedelta

import dagster as dg

__all__ = ["remove_old_runs"]

_AT_ONCE = 10
"""Runs that are removed in one tick, which has a time limit."""
_ENDED = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]


def remove_old_runs(
    instance: dg.DagsterInstance, jobs: Collection[str], keep: timedelta, newest: int
) -> list[str]:
    """Remove the runs of some jobs, with their events, that have ended long ago; returns their ids.

    Args:
        keep: Runs that changed within this time stay.
        newest: The newest runs of each job stay, too: this many.
    """
    removed: list[str] = []
    before = datetime.now(UTC) - keep
    for job in jobs:
        recent = instance.get_run_records(dg.RunsFilter(job_name=job), limit=newest)
        kept = {record.dagster_run.run_id for record in recent}
        old = dg.RunsFilter(job_name=job, statuses=_ENDED, updated_before=before)
        for record in instance.get_run_records(old, limit=_AT_ONCE + newest, ascending=True):
            run_id = record.dagster_run.run_id
            if run_id not in kept and len(removed) < _AT_ONCE:
                instance.delete_run(run_id)
                removed.append(run_id)
    return removed
