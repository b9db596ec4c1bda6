"""The supervisor: a sensor that launches a flow's live run again when it crashed, and tells what it did.

It asks `supervision` what to do. A run that a person stopped was told to by an event of its own, which
one that was ended by a signal (the machine shuts down) lacks. What happened can be read from the asset
check `running`, from the ticks of the sensor, and from the runs' tags.
"""

import time
from collections.abc import Mapping
from typing import Any

from dagster import (
    AssetCheckEvaluation,
    AssetCheckExecutionContext,
    AssetCheckResult,
    AssetChecksDefinition,
    AssetCheckSeverity,
    AssetKey,
    DagsterEventType,
    DagsterInstance,
    DagsterRunStatus,
    DefaultSensorStatus,
    RunRecord,
    RunRequest,
    RunsFilter,
    SensorDefinition,
    SensorEvaluationContext,
    SensorResult,
    asset_check,
    sensor,
)

from flowcore.dagster.names import identifier, live_key
from flowcore.dagster.restarts import (
    Attempt,
    Fate,
    GiveUp,
    Leave,
    Lost,
    Relaunch,
    RestartDecision,
    RestartPolicy,
    Wait,
    decide,
)
from flowcore.metrics.health import show_seconds
from flowcore.planner.plan import Plan

__all__ = [
    "GAVE_UP",
    "RESTART",
    "RUNNING_CHECK",
    "attempts_of",
    "running_check",
    "running_now",
    "supervision_sensor",
]

RUNNING_CHECK = "running"
"""Name of the asset check that tells what the supervisor sees."""

RESTART = "flowcore/restart"
"""Tag of a run that the supervisor launched: how many crashes in a row came before it."""

GAVE_UP = "flowcore/gave-up"
"""Tag of the run after which it launched no other."""

_EVERY_S = 15
_RETRY = "dagster/retry_number"
_NOT_GIVEN = ("dagster/", ".dagster/", "flowcore/")


def supervision_sensor(plan: Plan, policy: RestartPolicy) -> SensorDefinition:
    """The supervisor of a flow's live run; it is on unless a person turns it off.

    Args:
        plan: Of the flow; it has a live stage.
        policy: When a crashed run is launched again.
    """
    job, key = identifier(plan.flow, "live"), live_key(plan.flow)

    @sensor(
        name=identifier(plan.flow, "supervision"),
        job_name=job,
        minimum_interval_seconds=_EVERY_S,
        default_status=DefaultSensorStatus.RUNNING,
        description=f"Launches job `{job}` again when its run crashed: later each time, and at most "
        f"{policy.limit} times in a row. A run that was terminated stays so.",
    )
    def supervise(context: SensorEvaluationContext) -> SensorResult:
        instance = context.instance
        found = attempts_of(instance, job, key, policy.limit + 1)
        now_s = time.time()
        decision = decide(found, now_s, policy)
        told, passed, message = _told(decision, policy.limit, now_s)
        requests = []
        match decision:
            case Relaunch(run=run, crashes=crashes):
                requests.append(_again(instance, run, crashes))
            case Lost(run=run):
                lost = instance.get_run_by_id(run)
                if lost is not None and lost.status is DagsterRunStatus.STARTED:
                    instance.report_run_failed(lost, f"flowcore's supervisor: {message}")
            case GiveUp(run=run, crashes=crashes):
                instance.add_run_tags(run, {GAVE_UP: f"after {crashes} crashes in a row"})
            case _:
                pass
        news = told is not None and told != context.cursor
        check = _evaluation(key, message, passed=passed)
        return SensorResult(
            run_requests=requests,
            skip_reason=None if requests else message,
            asset_events=[check] if news and not passed else [],  # a run that beats says so itself
            cursor=told if news else context.cursor,
        )

    return supervise


def running_check(plan: Plan, policy: RestartPolicy) -> AssetChecksDefinition:
    """The check that the supervisor answers, for a person to ask."""
    job, key = identifier(plan.flow, "live"), live_key(plan.flow)

    @asset_check(
        asset=key,
        name=RUNNING_CHECK,
        description=f"The run of job `{job}` beats, or none is wanted: it was terminated, or never launched.",
    )
    def running(context: AssetCheckExecutionContext) -> AssetCheckResult:
        now_s = time.time()
        found = attempts_of(context.instance, job, key, policy.limit + 1)
        _, passed, message = _told(decide(found, now_s, policy), policy.limit, now_s)
        return AssetCheckResult(passed=passed, description=message)

    return running


def running_now(flow: str) -> AssetCheckEvaluation:
    """What a live run says of that check when it beats."""
    return _evaluation(live_key(flow), "it runs", passed=True)


def attempts_of(instance: DagsterInstance, job: str, key: AssetKey, most: int) -> list[Attempt]:
    """The runs of a live job, latest first.

    Args:
        instance: Where they are known.
        job: The job's name.
        key: What they beat on.
        most: How many at most.
    """
    records = instance.get_run_records(RunsFilter(job_name=job), limit=most)
    return [_attempt(instance, record, key, latest=not number) for number, record in enumerate(records)]


def _evaluation(key: AssetKey, message: str, *, passed: bool) -> AssetCheckEvaluation:
    return AssetCheckEvaluation(
        asset_key=key,
        check_name=RUNNING_CHECK,
        passed=passed,
        severity=AssetCheckSeverity.ERROR,
        description=message,
    )


def _attempt(instance: DagsterInstance, record: RunRecord, key: AssetKey, *, latest: bool) -> Attempt:
    run = record.dagster_run
    return Attempt(
        run=run.run_id,
        fate=_fate(instance, record),
        began_s=record.start_time or record.create_timestamp.timestamp(),
        sign_s=_last_beat(instance, run.run_id, key) if latest else None,
        ended_s=record.end_time,
        restarted=RESTART in run.tags or _RETRY in run.tags,
    )


def _fate(instance: DagsterInstance, record: RunRecord) -> Fate:
    run = record.dagster_run
    match run.status:
        case DagsterRunStatus.STARTED:
            return Fate.RUNNING
        case DagsterRunStatus.SUCCESS:
            return Fate.ENDED
        case DagsterRunStatus.CANCELED:
            return Fate.ENDED if _was_asked_to_end(instance, run.run_id) else Fate.CRASHED
        case DagsterRunStatus.FAILURE:
            return Fate.PENDING if run.is_complete_and_waiting_to_retry else Fate.CRASHED
        case _:
            return Fate.PENDING


def _was_asked_to_end(instance: DagsterInstance, run: str) -> bool:
    """Who asks a run to end, or marks it as ended, does so from outside; the run itself adds why it ended."""
    kinds = {DagsterEventType.RUN_CANCELING, DagsterEventType.RUN_CANCELED}
    events = (entry.get_dagster_event() for entry in instance.all_logs(run, of_type=kinds))
    return any(event.event_specific_data is None for event in events)


def _last_beat(instance: DagsterInstance, run: str, key: AssetKey) -> float | None:
    for record in instance.fetch_materializations(key, limit=1).records:
        if record.run_id == run:
            return record.timestamp
    return None


def _again(instance: DagsterInstance, run: str, crashes: int) -> RunRequest:
    crashed = instance.get_run_by_id(run)
    config: Mapping[str, Any] = crashed.run_config if crashed else {}
    given = (
        {tag: text for tag, text in crashed.tags.items() if not tag.startswith(_NOT_GIVEN)} if crashed else {}
    )
    # Of one key Dagster makes one run, whatever becomes of this tick.
    return RunRequest(
        run_key=run, run_config=config, tags={**given, RESTART: str(crashes), "flowcore/restart-of": run}
    )


def _told(decision: RestartDecision, limit: int, now_s: float) -> tuple[str | None, bool, str]:
    """What tells it from other news, None if it is none; whether it is good; and in words."""
    match decision:
        case Leave(why=why, running=running):
            return "runs" if running else None, True, why
        case Wait(run=run, crashes=crashes, until_s=until_s):
            due = show_seconds(max(until_s - now_s, 0))
            return f"crashed {run}", False, f"run {run} crashed: restart {crashes} of {limit} is due in {due}"
        case Relaunch(run=run, crashes=crashes):
            return f"again {run}", False, f"run {run} crashed: restart {crashes} of {limit}"
        case Lost(run=run, silent_s=silent_s):
            message = (
                f"run {run} has given no sign for {show_seconds(silent_s)}: its process or its machine is "
                "gone, or hangs; it counts as failed"
            )
            return f"lost {run}", False, message
        case GiveUp(run=run, crashes=crashes):
            message = (
                f"run {run} is the last of {crashes} that crashed in a row: it is not launched again; see "
                "its log, mend what is wrong, and launch the job"
            )
            return f"gave up {run}", False, message
