"""Launchers: sensors that run a flow's jobs when there is something to do. All are off until switched on.

What they look at is kept by others (manifests, the history of the run, Kafka), so a tick that is lost or
repeated changes nothing.
"""

import hashlib
import json

from dagster import (
    AssetSelection,
    AutomationCondition,
    AutomationConditionSensorDefinition,
    DefaultSensorStatus,
    RunRequest,
    SensorDefinition,
    SensorEvaluationContext,
    SensorResult,
    SkipReason,
    sensor,
)

from flowcore.api.operators import topic_of
from flowcore.dagster.attributes import Automation
from flowcore.dagster.jobs import UNLIMITED, live_jobs, unfinished
from flowcore.dagster.names import bounded_keys, identifier, op_name
from flowcore.dagster.resources import FlowcoreResource
from flowcore.errors import BrokerError, RunError
from flowcore.kafka.topics import ends_of
from flowcore.metrics.history import history_folder, last_progress
from flowcore.metrics.progress import FlowProgress
from flowcore.planner.plan import Plan
from flowcore.settings import Settings
from flowcore.spark.context import broker_of
from flowcore.spark.results.store import ResultStore
from flowcore.spark.run.bounded_stage import source_versions

__all__ = ["REFRESH_WHEN", "automation_sensor", "history_sensor", "lag_sensor"]

_EVERY_S = 60

REFRESH_WHEN = (
    (AutomationCondition.any_deps_updated() | AutomationCondition.code_version_changed())
    .since_last_handled()  # type: ignore[misc] # it is of assets, and takes assets or checks
    .with_label("new_input_or_new_code")
    & ~AutomationCondition.any_deps_in_progress()
    & ~AutomationCondition.in_progress()
)
"""When declarative automation makes a bounded asset anew: what it reads, or its code, is new."""


def automation_sensor(plan: Plan) -> SensorDefinition:
    """The sensor that carries out `REFRESH_WHEN` for a flow."""
    return AutomationConditionSensorDefinition(
        identifier(plan.flow, "automation"),
        target=AssetSelection.assets(*bounded_keys(plan)),
        default_status=DefaultSensorStatus.STOPPED,
        description=f"Makes the bounded assets of flow `{plan.flow}` anew when another flow made an asset "
        "that they read, or when their code has changed.",
        run_tags=UNLIMITED,
    )


def history_sensor(plan: Plan) -> SensorDefinition:
    """A sensor that runs the bounded stages when their files or topics have changed and come to rest."""
    job = identifier(plan.flow, "history")

    @sensor(
        name=identifier(plan.flow, "new_history"),
        job_name=job,
        minimum_interval_seconds=_EVERY_S,
        default_status=DefaultSensorStatus.STOPPED,
        description=f"Launches job `{job}` when sources of its stages have changed since they were read, and "
        "are the same at two looks: nobody writes them any more.",
    )
    def look(context: SensorEvaluationContext, flowcore: FlowcoreResource) -> SensorResult | SkipReason:
        try:
            changed, committed = _changed_sources(plan, flowcore.settings())
        except (RunError, BrokerError) as error:
            return SkipReason(str(error))
        if not changed:
            return SensorResult(skip_reason="no source has changed since it was read", cursor="")
        names, seen = ", ".join(changed), _digest({**changed, **committed})
        if seen != context.cursor:
            return SensorResult(skip_reason=f"{names} changed, and may still be written", cursor=seen)
        if waits := unfinished(context.instance, job):
            return SkipReason(waits)
        config = {"ops": {op_name(plan.flow, "history"): {"config": {"refresh": False}}}}
        # A run that fails is not repeated before something changes again.
        request = RunRequest(
            run_key=seen, run_config=config, tags={"flowcore/because": f"{names} changed"[:255]}
        )
        return SensorResult(run_requests=[request], cursor=seen)

    return look


def lag_sensor(plan: Plan, options: Automation) -> SensorDefinition:
    """A sensor that lets live queries that do not run catch up when enough is unread."""
    job = identifier(plan.flow, options.lag_job)

    @sensor(
        name=identifier(plan.flow, "lag"),
        job_name=job,
        minimum_interval_seconds=_EVERY_S,
        default_status=DefaultSensorStatus.STOPPED,
        description=f"Launches job `{job}` when {options.lag_records:,} records are unread and nothing runs.",
    )
    def look(context: SensorEvaluationContext, flowcore: FlowcoreResource) -> RunRequest | SkipReason:
        if waits := unfinished(context.instance, *live_jobs(plan)):
            return SkipReason(waits)
        settings = flowcore.settings()
        last = last_progress(history_folder(settings.state_dir, plan.flow))
        if last is None:
            return SkipReason("the flow never ran, so where it reads from is not known; launch it once")
        try:
            unread = _unread(plan, last, settings)
        except (RunError, BrokerError) as error:
            return SkipReason(str(error))
        if unread < options.lag_records:
            return SkipReason(f"{unread:,} records are unread, fewer than {options.lag_records:,}")
        return RunRequest(tags={"flowcore/because": f"{unread} records are unread"})

    return look


def _changed_sources(plan: Plan, settings: Settings) -> tuple[dict[str, str], dict[str, str]]:
    """What is to be read anew, by stage and source its version; and the committed version of each stage."""
    store = ResultStore(settings.state_dir, plan.flow)
    changed, committed = {}, {}
    for stage in plan.bounded:
        manifest = store.folder(stage.name).manifest()
        committed[stage.name] = manifest.version if manifest else ""
        for source, version in source_versions(stage, settings).items():
            if version and (manifest is None or version != manifest.sources.get(source)):
                changed[f"{stage.name}/{source}"] = version
    return changed, committed


def _digest(versions: dict[str, str]) -> str:
    return hashlib.sha256(json.dumps(versions, sort_keys=True).encode()).hexdigest()


def _unread(plan: Plan, last: FlowProgress, settings: Settings) -> int:
    """Records of the sources that no query has committed, at the query that is furthest behind."""
    servers = {
        topic.name: broker_of(topic, settings)
        for source in (plan.live.sources if plan.live else ())
        if (topic := topic_of(source))
    }
    ends = {name: ends_of(address, [name])[name] for name, address in servers.items()}
    unread = (
        sum(max(ends.get(one.topic, {}).get(one.partition, 0) - (one.offset or 0), 0) for one in partitions)
        for partitions in (query.partitions for query in last.queries)
    )
    return max(unread, default=0)
