"""The supervisor: a sensor that launches a crashed live run again, and the asset check `running`.

`restarts` decides what to do. A run that a person terminated has an event for it. A run that a signal ended,
as when the machine shuts down, has none. Decisions are visible in the check, in the sensor's ticks, and in
the tags of the runs.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import dagster as dg
from dagster._core.definitions.assets.job.asset_job import IMPLICIT_ASSET_JOB_NAME

from flowcore.dagster import restarts
from flowcore.dagster.heartbeats import last_heartbeat_s
from flowcore.dagster.launches import check_launch, refused_keys
from flowcore.dagster.names import bounded_keys, identifier, live_key
from flowcore.dagster.old_runs import remove_old_runs
from flowcore.dagster.restarts import Fate, RestartPolicy
from flowcore.dagster.termination import survive_storage, was_terminated
from flowcore.errors import OutageError
from flowcore.metrics.health import show_seconds
from flowcore.planner.plan import Plan

__all__ = [
    "GAVE_UP",
    "OVER",
    "RESTART",
    "build_restart_sensor",
    "build_running_check",
    "decide",
    "first_run",
    "retried_run",
    "running_evaluation",
]

RESTART = "flowcore/restart"
"""Tag of a run that the supervisor launched: the number of consecutive crashes before it."""

GAVE_UP = "flowcore/gave-up"
"""Tag of the last run, after which the supervisor launches no other."""

OVER = "flowcore/over"
"""Tag of a crashed run that is not to be restarted, since a later one ended as planned: its own id, so that a
launch that copies its tags does not count as such."""

_CHECK = "running"
_FIRST_RUN = "flowcore/first-run"
_OUTAGES = {each.__name__ for each in OutageError.__subclasses__()}
_INTERVAL_S = 15
_RUNS, _ENDED = "runs", "ended"
_NOTHING = "-"
"""Cursor at first. It is not empty, since Dagster keeps the cursor of before if it gets an empty one."""
_RETRY = "dagster/retry_number"
_NOT_COPIED = ("dagster/", ".dagster/", "flowcore/")


def build_restart_sensor(plan: Plan, policy: RestartPolicy, keep_runs: timedelta) -> dg.SensorDefinition:
    """The supervisor of a flow's runs, which also removes old live runs and slices; it is on at first."""
    live, slices, history = (identifier(plan.flow, mode) for mode in ("live", "slice", "history"))
    assets = {live_key(plan.flow), *bounded_keys(plan)}
    description = (
        f"Launches job `{live}` again after its run crashed: with growing delay, and at most "
        f"{policy.limit} times in a row, in an outage without end. A run that was terminated is not launched "
        "again. "
    )

    @dg.sensor(
        name=identifier(plan.flow, "supervision"),
        job_name=live if plan.live else None,
        minimum_interval_seconds=_INTERVAL_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=(description if plan.live else "")
        + "A run of the flow's jobs or assets that sends no heartbeats any more counts as failed.",
    )
    def supervise(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        instance = context.instance
        reported, *suspected = (context.cursor or _NOTHING).split("\n")
        silent = _silent_runs(instance, _other_runs(instance, (slices, history), assets), policy)
        for run in silent.keys() & set(suspected):
            _declare_failed(instance, run, silent[run])
        requests, evaluations, messages = [], [], list(silent.values())
        if plan.live is not None:
            decision, event, message = decide(instance, plan.flow, policy)
            requests = _carry_out(instance, decision, message, again=event == reported)
            messages.insert(0, message)
            if event is not None and event != reported:
                passed = isinstance(decision, restarts.Leave)
                # That it runs, its heartbeat reports.
                evaluations = [_evaluation(plan.flow, message, passed=passed)] if event != _RUNS else []
                reported = event
            with survive_storage():  # a restart is more urgent
                remove_old_runs(instance, (live, slices), keep_runs, newest=policy.attempts)
        return dg.SensorResult(
            run_requests=requests,
            skip_reason=None if requests else "; ".join(messages) or "no run is silent",
            asset_events=evaluations,
            cursor="\n".join([reported, *silent]),
        )

    return supervise


def _carry_out(
    instance: dg.DagsterInstance, decision: restarts.RestartDecision, message: str, *, again: bool
) -> list[dg.RunRequest]:
    """Do what was decided about the live run; ``again`` means that the last tick has decided the same."""
    match decision:
        case restarts.Relaunch(run=run, crashes=crashes):
            return [_restart_request(instance, run, crashes)]
        case restarts.Lost(run=run) if again:
            _declare_failed(instance, run, message)
        case restarts.GiveUp(run=run, crashes=crashes):
            instance.add_run_tags(run, {GAVE_UP: f"after {crashes} crashes in a row"})
        case restarts.Leave(over=over):
            for run in over:
                instance.add_run_tags(run, {OVER: run})
        case _:
            pass
    return []


def _other_runs(
    instance: dg.DagsterInstance, jobs: Iterable[str], assets: set[dg.AssetKey]
) -> Iterator[dg.RunRecord]:
    """Runs of a flow that have started: those of these jobs, and those of selected assets without a job."""
    started = [dg.DagsterRunStatus.STARTED]
    for job in jobs:
        yield from instance.get_run_records(dg.RunsFilter(job_name=job, statuses=started))
    of_any = dg.RunsFilter(job_name=IMPLICIT_ASSET_JOB_NAME, statuses=started)
    for record in instance.get_run_records(of_any):
        selected = record.dagster_run.asset_selection
        if selected and selected <= assets:  # others' assets send no heartbeats
            yield record


def _silent_runs(
    instance: dg.DagsterInstance, started: Iterable[dg.RunRecord], policy: RestartPolicy
) -> dict[str, str]:
    """Messages about those of these runs that send no heartbeats, by run."""
    found = {}
    for record in started:
        decision = restarts.decide_restart([_attempt(instance, record)], time.time(), policy)
        if isinstance(decision, restarts.Lost):
            found[decision.run] = _describe(decision)
    return found


def _declare_failed(instance: dg.DagsterInstance, run_id: str, message: str) -> None:
    """Let a run count as failed that two ticks have found silent.

    After an outage of this daemon or of its database, the run sends a heartbeat between them.
    """
    run = instance.get_run_by_id(run_id)
    if run is not None and run.status is dg.DagsterRunStatus.STARTED:
        instance.report_run_failed(run, f"flowcore's supervisor: {message}")


def build_running_check(plan: Plan, policy: RestartPolicy) -> dg.AssetChecksDefinition:
    """The asset check `running`, for a person to execute; otherwise the supervisor evaluates it."""
    job = identifier(plan.flow, "live")

    @dg.asset_check(
        asset=live_key(plan.flow),
        name=_CHECK,
        description=f"The run of job `{job}` sends heartbeats, or was terminated, or was never launched.",
    )
    def running(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        check_launch(context.run.run_config)  # the only op that has no resource, which would do so
        decision, _, message = decide(context.instance, plan.flow, policy)
        return dg.AssetCheckResult(passed=isinstance(decision, restarts.Leave), description=message)

    return running


def first_run(run: dg.DagsterRun) -> str:
    """The run that a person launched, of one that replaces it; else the run itself."""
    if _is_executed_again(run):
        return run.run_id
    return run.tags.get(_FIRST_RUN) or run.root_run_id or run.run_id


def retried_run(run: dg.DagsterRun) -> str | None:
    """The run that Dagster retries by this one, if it does."""
    return run.parent_run_id if _RETRY in run.tags else None


def _is_executed_again(run: dg.DagsterRun) -> bool:
    """Whether a person launched it by "Re-execute", which copies all tags but those of Dagster's retries."""
    return run.parent_run_id is not None and _RETRY not in run.tags


def running_evaluation(flow: str) -> dg.AssetCheckEvaluation:
    """The evaluation of `running` that a live run reports with its heartbeat."""
    return _evaluation(flow, "it runs", passed=True)


def _evaluation(flow: str, message: str, *, passed: bool) -> dg.AssetCheckEvaluation:
    return dg.AssetCheckEvaluation(
        asset_key=live_key(flow),
        check_name=_CHECK,
        passed=passed,
        severity=dg.AssetCheckSeverity.ERROR,
        description=message,
    )


def decide(
    instance: dg.DagsterInstance, flow: str, policy: RestartPolicy
) -> tuple[restarts.RestartDecision, str | None, str]:
    """Decide about a flow's live run.

    Returns the decision, the event that it reports (unique to its cause; None for no event), and a message.
    """
    now_s = time.time()
    job = identifier(flow, "live")
    started = dg.RunsFilter(job_name=job, statuses=[dg.DagsterRunStatus.STARTED])
    attempts = _attempts(instance, started, 1)
    attempts = attempts or _attempts(instance, dg.RunsFilter(job_name=job), policy.attempts)
    attempts = restarts.relevant_attempts(attempts)
    if attempts and attempts[0].fate is Fate.CRASHED:  # only then it matters why they did
        if was_terminated(instance, attempts[0].run):  # its worker died while it terminated
            attempts[0] = replace(attempts[0], fate=Fate.ENDED)
        attempts = [
            replace(each, outage=each.fate is Fate.CRASHED and _met_outage(instance, each.run))
            for each in attempts
        ]
    decision = restarts.decide_restart(attempts, now_s, policy)
    how, limit = "crashed", str(policy.limit)
    if attempts and attempts[0].outage:
        how, limit = "crashed in an outage", "any number"
    match decision:
        case restarts.Leave(why=why, running=running, ended=ended):
            return decision, _RUNS if running else _ENDED if ended else None, why
        case restarts.Wait(run=run, crashes=crashes, until_s=until_s):
            due = show_seconds(max(until_s - now_s, 0))
            message = f"run {run} {how}: restart {crashes} of {limit} is due in {due}"
            return decision, f"crashed {run}", message
        case restarts.Relaunch(run=run, crashes=crashes):
            return decision, f"again {run}", f"run {run} {how}: restart {crashes} of {limit}"
        case restarts.Lost(run=run):
            return decision, f"lost {run}", _describe(decision)
        case restarts.GiveUp(run=run, crashes=crashes):
            message = (
                f"run {run} is the last of {crashes} that crashed in a row: it is not launched again; see "
                "its log, fix the cause, and launch the job"
            )
            return decision, f"gave up {run}", message


def _describe(lost: restarts.Lost) -> str:
    return (
        f"run {lost.run} has sent no heartbeat for {show_seconds(lost.silent_s)}: its process or its machine "
        "is gone, or hangs; without a heartbeat until the next tick it counts as failed"
    )


def _attempts(instance: dg.DagsterInstance, chosen: dg.RunsFilter, count: int) -> list[restarts.Attempt]:
    """The latest of these runs as attempts, until so many were not withdrawn, or there are no more."""
    attempts: list[restarts.Attempt] = []
    cursor, left = None, count
    while left > 0:
        records = instance.get_run_records(chosen, limit=count, cursor=cursor)
        for record in records:
            # A run that was refused for its configuration did not begin, and says nothing about the stream.
            if not refused_keys(record.dagster_run.run_config):
                attempts.append(_attempt(instance, record))
                left -= not attempts[-1].withdrawn
        if len(records) < count:
            break
        cursor = records[-1].dagster_run.run_id
    return attempts


def _attempt(instance: dg.DagsterInstance, record: dg.RunRecord) -> restarts.Attempt:
    """A run as an attempt; if it runs, also its last heartbeat."""
    run, fate = record.dagster_run, _fate(instance, record)
    return restarts.Attempt(
        run=run.run_id,
        fate=fate,
        began_s=record.start_time or record.create_timestamp.timestamp(),
        started=record.start_time is not None,
        heartbeat_s=last_heartbeat_s(instance, record) if fate is Fate.RUNNING else None,
        ended_s=record.end_time,
        restarted=_RETRY in run.tags or (RESTART in run.tags and not _is_executed_again(run)),
    )


def _met_outage(instance: dg.DagsterInstance, run: str) -> bool:
    """Whether a run failed with an `OutageError`, by the names of errors in its log."""
    kinds = {dg.DagsterEventType.STEP_FAILURE}
    events = (entry.get_dagster_event() for entry in instance.all_logs(run, of_type=kinds))
    return any(name in _OUTAGES for event in events for name in _error_names(event))


def _error_names(event: dg.DagsterEvent) -> Iterator[str]:
    error = event.step_failure_data.error
    while error is not None:
        yield error.cls_name or ""
        error = error.cause


def _fate(instance: dg.DagsterInstance, record: dg.RunRecord) -> Fate:
    run = record.dagster_run
    match run.status:
        case dg.DagsterRunStatus.STARTED:
            return Fate.RUNNING
        case dg.DagsterRunStatus.CANCELED | dg.DagsterRunStatus.FAILURE if run.tags.get(OVER) == run.run_id:
            return Fate.ENDED
        case dg.DagsterRunStatus.SUCCESS:
            return Fate.ENDED
        case dg.DagsterRunStatus.CANCELED:
            return Fate.ENDED if was_terminated(instance, run.run_id) else Fate.CRASHED
        case dg.DagsterRunStatus.FAILURE:
            return Fate.PENDING if run.is_complete_and_waiting_to_retry else Fate.CRASHED
        case _:
            return Fate.PENDING


def _restart_request(instance: dg.DagsterInstance, run: str, crashes: int) -> dg.RunRequest:
    crashed = instance.get_run_by_id(run)
    config: Mapping[str, Any] = crashed.run_config if crashed else {}
    tags = crashed.tags.items() if crashed else ()
    copied = {tag: text for tag, text in tags if not tag.startswith(_NOT_COPIED)}
    first = first_run(crashed) if crashed else run
    # Dagster makes one run per run key, even if this tick is repeated.
    return dg.RunRequest(
        run_key=run,
        run_config=config,
        tags={**copied, RESTART: str(crashes), "flowcore/restart-of": run, _FIRST_RUN: first},
    )
