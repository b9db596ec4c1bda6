"""Jobs and schedules of a flow, and sensors that launch the jobs when there is work.

Sensors are off at first. Their state is kept elsewhere (manifests, the progress history, Kafka), so a lost or
repeated tick changes nothing.
"""

from __future__ import annotations

import hashlib
import json
from typing import Literal

import dagster as dg

from flowcore.dagster.attributes import Automation
from flowcore.dagster.live_asset import LiveConfig
from flowcore.dagster.names import bounded_keys, identifier, live_key, op_name
from flowcore.dagster.resources import FlowcoreResource
from flowcore.dagster.restart_sensor import decide
from flowcore.dagster.restarts import Leave
from flowcore.durations import read_clock_ms
from flowcore.errors import BrokerError, RunError
from flowcore.kafka.topics import end_offsets_of_topics
from flowcore.metrics.health import liveness_problem
from flowcore.metrics.history import history_folder, last_progress
from flowcore.metrics.progress import FlowProgress
from flowcore.planner.plan import Plan
from flowcore.settings import Settings
from flowcore.spark.context import broker_of, names_by_broker
from flowcore.spark.results.store import ResultStore
from flowcore.spark.run.bounded_stage import source_versions

__all__ = [
    "REFRESH_WHEN",
    "UNLIMITED",
    "build_automation_sensor",
    "build_history_sensor",
    "build_jobs",
    "build_lag_sensor",
    "live_job_names",
    "unfinished_run",
]

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
    jobs, schedules, retries, zone = [], [], automation.retries, automation.time_zone
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
            _build_schedule(plan.flow, "refresh_schedule", automation.refresh_cron, zone, (history,))
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
        # The pool would queue a slice after a live run, and one more at each tick.
        schedules.append(_build_schedule(plan.flow, "slice_schedule", automation.slice_cron, zone, names))
    return dg.Definitions(jobs=jobs, schedules=schedules)


def _build_schedule(
    flow: str, name: str, cron: str, zone: str, jobs: tuple[str, ...]
) -> dg.ScheduleDefinition:
    """A schedule that launches the first of these jobs, unless a run of any of them has not ended."""
    job = jobs[0]

    @dg.schedule(
        name=identifier(flow, name),
        job_name=job,
        cron_schedule=cron,
        execution_timezone=zone,
        default_status=dg.DefaultScheduleStatus.STOPPED,
        description=f"Launch `{job}`, unless it runs or is queued.",
    )
    def launch(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        reason = unfinished_run(context.instance, *jobs)
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


_INTERVAL_S = 60

REFRESH_WHEN = (
    (dg.AutomationCondition.any_deps_updated() | dg.AutomationCondition.code_version_changed())
    .since_last_handled()  # type: ignore[misc] # it is of assets, and takes assets or checks
    .with_label("new_input_or_new_code")
    & ~dg.AutomationCondition.any_deps_in_progress()
    & ~dg.AutomationCondition.in_progress()
)
"""Declarative automation of a bounded asset: materialize it when its inputs or its code are new."""


def build_automation_sensor(plan: Plan) -> dg.SensorDefinition:
    """The sensor that evaluates `REFRESH_WHEN` for a flow."""
    return dg.AutomationConditionSensorDefinition(
        identifier(plan.flow, "automation"),
        target=dg.AssetSelection.assets(*bounded_keys(plan)),
        default_status=dg.DefaultSensorStatus.STOPPED,
        description=f"Materializes the bounded assets of flow `{plan.flow}` again when another flow has "
        "updated an asset that they read, or when their code has changed.",
        run_tags=UNLIMITED,
    )


def build_history_sensor(plan: Plan) -> dg.SensorDefinition:
    """A sensor that runs the bounded stages when their files or topics have changed and are stable again."""
    job = identifier(plan.flow, "history")

    @dg.sensor(
        name=identifier(plan.flow, "new_history"),
        job_name=job,
        minimum_interval_seconds=_INTERVAL_S,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description=f"Launches job `{job}` when sources of its stages have changed since they were read, and "
        "two ticks find the same versions, so that nobody writes them any more.",
    )
    def check_sources(
        context: dg.SensorEvaluationContext, flowcore: FlowcoreResource
    ) -> dg.SensorResult | dg.SkipReason:
        try:
            changed, committed = _changed_sources(plan, flowcore.settings())
        except (RunError, BrokerError) as error:
            return dg.SkipReason(str(error))
        if not changed:
            # Dagster keeps the cursor of before if it gets an empty one.
            return dg.SensorResult(skip_reason="no source has changed since it was read", cursor="-")
        names, versions = ", ".join(changed), json.dumps({**changed, **committed}, sort_keys=True)
        digest = hashlib.sha256(versions.encode()).hexdigest()
        if digest != context.cursor:
            return dg.SensorResult(skip_reason=f"{names} changed, and may still be written", cursor=digest)
        if reason := unfinished_run(context.instance, job):
            return dg.SkipReason(reason)
        # The run key prevents that a failed run is repeated before something changes again.
        request = dg.RunRequest(
            run_key=digest,
            run_config={"ops": {op_name(plan.flow, "history"): {"config": {"refresh": False}}}},
            tags={"flowcore/because": f"{names} changed"[:255]},
        )
        return dg.SensorResult(run_requests=[request], cursor=digest)

    return check_sources


def build_lag_sensor(plan: Plan, automation: Automation) -> dg.SensorDefinition:
    """A sensor that lets idle live queries catch up when their lag exceeds a limit.

    If it launches the live job, it leaves a crashed run to the supervisor, which waits, counts and gives up.
    """
    job, limit = identifier(plan.flow, automation.lag_job), automation.lag_records

    @dg.sensor(
        name=identifier(plan.flow, "lag"),
        job_name=job,
        minimum_interval_seconds=_INTERVAL_S,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description=f"Launches job `{job}` when {limit:,} records are unread and no live run is active.",
    )
    def check_lag(
        context: dg.SensorEvaluationContext, flowcore: FlowcoreResource
    ) -> dg.RunRequest | dg.SkipReason:
        if reason := unfinished_run(context.instance, *live_job_names(plan)):
            return dg.SkipReason(reason)
        if automation.lag_job == "live":
            decision, _, message = decide(context.instance, plan.flow, automation.restart_policy)
            if not isinstance(decision, Leave):  # else the launch would begin a new row of restarts
                return dg.SkipReason(message)
        settings = flowcore.settings()
        progress = last_progress(history_folder(settings.state_dir, plan.flow))
        if progress is None:
            return dg.SkipReason("the flow never ran, so its offsets are not known; launch it once")
        if liveness_problem(progress, read_clock_ms()) is None:
            return dg.SkipReason("the flow runs, though Dagster did not start it")
        try:
            lag = _lag(plan, progress, settings)
        except (RunError, BrokerError) as error:
            return dg.SkipReason(str(error))
        if lag < limit:
            return dg.SkipReason(f"{lag:,} records are unread, fewer than {limit:,}")
        return dg.RunRequest(tags={"flowcore/because": f"{lag} records are unread"})

    return check_lag


def _changed_sources(plan: Plan, settings: Settings) -> tuple[dict[str, str], dict[str, str]]:
    """The new versions of changed sources, by ``stage/source``, and the committed version of each stage."""
    store = ResultStore(settings.state_dir, plan.flow)
    changed, committed = {}, {}
    for stage in plan.bounded:
        manifest = store.folder(stage.name).manifest()
        committed[stage.name] = manifest.version if manifest else ""
        for source, version in source_versions(stage, settings).items():
            if version and (manifest is None or version != manifest.sources.get(source)):
                changed[f"{stage.name}/{source}"] = version
    return changed, committed


def _lag(plan: Plan, progress: FlowProgress, settings: Settings) -> int:
    """The largest number of uncommitted records of any query, by the current ends of the topics."""
    sources = plan.live.sources if plan.live else ()
    topics = [topic for source in sources if (topic := source.topic)]
    ends = {
        servers: end_offsets_of_topics(servers, names)
        for servers, names in names_by_broker(topics, settings).items()
    }
    queries = {query.name: query for query in plan.live_queries}
    lags = []
    for each in progress.queries:
        # A flow may read topics of one name on several brokers, each by a query of its own.
        read = queries[each.name].topics_read if each.name in queries else topics
        by_name = {topic.name: ends[broker_of(topic, settings)].get(topic.name, {}) for topic in read}
        lags.append(
            sum(
                max(by_name.get(one.topic, {}).get(one.partition, 0) - (one.offset or 0), 0)
                for one in each.partitions
            )
        )
    return max(lags, default=0)
