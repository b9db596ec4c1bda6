"""Retention of runs: what Dagster's storage keeps of a flow's live runs and slices.

Dagster itself keeps every run, its events and its output for ever; a heartbeat is an event.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
from dagster._core.storage.event_log import SqliteEventLogStorage

__all__ = ["remove_old_runs"]

_AT_ONCE = 10
"""Runs that are removed in one tick, which has a time limit."""
_ENDED = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]


def remove_old_runs(
    instance: dg.DagsterInstance, jobs: Collection[str], keep: timedelta, newest: int
) -> list[str]:
    """Remove the runs of some jobs that have ended long ago, with events and output; returns their ids.

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
                _remove(instance, run_id)
                removed.append(run_id)
    return removed


def _remove(instance: dg.DagsterInstance, run_id: str) -> None:
    """Remove a run: the run itself after its output, so that a failure is repaired at the next tick."""
    instance.compute_log_manager.delete_logs(prefix=[run_id])
    instance.delete_run(run_id)
    storage = instance.event_log_storage
    if isinstance(storage, SqliteEventLogStorage):  # which keeps the file of a run, with empty tables
        for suffix in ("", "-wal", "-shm"):
            Path(f"{storage.path_for_shard(run_id)}{suffix}").unlink(missing_ok=True)
