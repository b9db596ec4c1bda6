"""Heartbeats, which show the supervisor that the process of a run exists.

A run of live queries materializes its asset (`live_asset`). A run of bounded stages has nothing to report
before their end, so it renews a tag.
"""

from __future__ import annotations

import re
import time

import dagster as dg

from flowcore.background import PeriodicThread
from flowcore.dagster.termination import survive_storage

__all__ = ["HEARTBEAT", "heartbeat_thread", "last_heartbeat_s"]

HEARTBEAT = "flowcore/heartbeat"
"""Tag of a run of bounded stages: the time of its last heartbeat, in seconds since the epoch, and its id."""

_INTERVAL_S = 10.0
"""Less than between two ticks of the supervisor: both of them do not find an old tag only because Dagster's
storage was away, or the machine was suspended."""


def heartbeat_thread(instance: dg.DagsterInstance, run_id: str) -> PeriodicThread:
    """A thread that renews the tag of a run."""

    def renew() -> None:
        with survive_storage():
            instance.add_run_tags(run_id, {HEARTBEAT: f"{int(time.time())} {run_id}"})

    return PeriodicThread("heartbeat", renew, _INTERVAL_S, at_once=True)


def last_heartbeat_s(instance: dg.DagsterInstance, record: dg.RunRecord) -> float | None:
    """The time of a run's last heartbeat of either kind, None if there is none."""
    run = record.dagster_run
    # Of its own events: others, too, may report materializations of the asset.
    kinds = {dg.DagsterEventType.ASSET_MATERIALIZATION}
    found = instance.get_records_for_run(run.run_id, of_type=kinds, limit=1, ascending=False)
    times = [beat.timestamp for beat in found.records]
    # A launch may set any text, and a run that is launched again has the tag of the run before it.
    tag = re.fullmatch("([0-9]{1,12})( .*)?", run.tags.get(HEARTBEAT, ""))
    # Without an id it is of a run that an earlier version began, or was copied from one.
    if tag and (tag[2] == f" {run.run_id}" or (not tag[2] and float(tag[1]) >= (record.start_time or 0))):
        times.append(float(tag[1]))
    # After the clock was set back, an earlier heartbeat of the other kind has a later time.
    return min(times, key=lambda each: abs(time.time() - each), default=None)
