"""Automation: the schedules of a flow, and everything else that launches its jobs or looks after them."""

from __future__ import annotations

from dagster import (
    DefaultScheduleStatus,
    Definitions,
    RunRequest,
    ScheduleDefinition,
    ScheduleEvaluationContext,
    SensorDefinition,
    SkipReason,
    schedule,
)

from flowcore.dagster.attributes import Automation, Objectives
from flowcore.dagster.dead_letter_checks import dead_letter_sensor
from flowcore.dagster.external_assets import dead_lettered
from flowcore.dagster.jobs import jobs_of, live_jobs, unfinished
from flowcore.dagster.names import identifier
from flowcore.dagster.restart_sensor import supervision_sensor
from flowcore.dagster.sensors import automation_sensor, history_sensor, lag_sensor
from flowcore.dagster.stream_checks import health_sensor
from flowcore.planner.plan import Plan

__all__ = ["automation_of"]


def automation_of(plan: Plan, options: Automation, objectives: Objectives) -> Definitions:
    """Jobs, schedules and sensors of a flow."""
    schedules: list[ScheduleDefinition] = []
    sensors: list[SensorDefinition] = []
    if plan.bounded:
        schedules.append(_schedule(plan, "history", "refresh_schedule", options.refresh_cron))
        sensors += [history_sensor(plan), automation_sensor(plan)]
    if plan.live is not None:
        schedules.append(_schedule(plan, "slice", "slice_schedule", options.slice_cron))
        sensors += [supervision_sensor(plan, options.restart_policy), health_sensor(plan, objectives)]
        sensors.append(lag_sensor(plan, options))
        if dead_lettered(plan):
            sensors.append(dead_letter_sensor(plan))
    return Definitions.merge(
        jobs_of(plan, options.retries), Definitions(schedules=schedules, sensors=sensors)
    )


def _schedule(plan: Plan, what: str, name: str, cron: str) -> ScheduleDefinition:
    job = identifier(plan.flow, what)
    # The pool would queue a slice behind a live run, and one more at each tick.
    before = live_jobs(plan) if what == "slice" else (job,)

    @schedule(
        name=identifier(plan.flow, name),
        job_name=job,
        cron_schedule=cron,
        default_status=DefaultScheduleStatus.STOPPED,
        description=f"Launch `{job}`, unless it runs or waits to run.",
    )
    def launch(context: ScheduleEvaluationContext) -> RunRequest | SkipReason:
        waits = unfinished(context.instance, *before)
        return SkipReason(waits) if waits else RunRequest()

    return launch
