"""Health: the asset checks of a flow's stream, answered when a person asks and by a sensor once a minute.

They look at what the run left on disk (`flowcore.metrics.history`), so they need neither Spark nor the
broker. The sensor tells an outcome when it has changed, and once an hour.
"""

import json
import time
from collections.abc import Iterator

from dagster import (
    AssetCheckEvaluation,
    AssetCheckExecutionContext,
    AssetCheckResult,
    AssetChecksDefinition,
    AssetCheckSeverity,
    AssetCheckSpec,
    DefaultSensorStatus,
    MetadataValue,
    SensorDefinition,
    SensorEvaluationContext,
    SensorResult,
    multi_asset_check,
    sensor,
)

from flowcore.metrics.history import history_folder, last_progress
from flowcore.planner.plan import Plan
from flowcore.settings import Settings
from pipelines.bridge.metadata import Metadata
from pipelines.bridge.names import identifier, live_key, op_name
from pipelines.bridge.objectives import Verdict, judge, judged
from pipelines.bridge.options import Objectives
from pipelines.bridge.resources import FlowcoreResource

__all__ = ["health_checks", "health_sensor"]

_EVERY_S = 60
_TELL_AGAIN_S = 3_600


def health_checks(plan: Plan, objectives: Objectives) -> AssetChecksDefinition:
    """The checks of a flow's live queries."""
    key = live_key(plan.flow)
    specs = [AssetCheckSpec(name, asset=key, description=what) for name, what in judged(objectives).items()]

    @multi_asset_check(name=op_name(plan.flow, "health"), specs=specs, can_subset=True)
    def health(context: AssetCheckExecutionContext, flowcore: FlowcoreResource) -> Iterator[AssetCheckResult]:
        wanted = {check.name for check in context.selected_asset_check_keys}
        for verdict in _verdicts(plan, flowcore.settings(), objectives):
            if verdict.name in wanted:
                yield AssetCheckResult(
                    asset_key=key,
                    check_name=verdict.name,
                    passed=verdict.passed,
                    severity=AssetCheckSeverity.WARN,
                    description=verdict.words,
                    metadata=_metadata(verdict),
                )

    return health


def health_sensor(plan: Plan, objectives: Objectives) -> SensorDefinition:
    """A sensor that answers the checks; it is on unless a person turns it off, and starts nothing."""
    key = live_key(plan.flow)

    @sensor(
        name=identifier(plan.flow, "health"),
        asset_selection=[key],
        minimum_interval_seconds=_EVERY_S,
        default_status=DefaultSensorStatus.RUNNING,
        description=f"Tells whether the stream of flow `{plan.flow}` holds its objectives, as asset checks.",
    )
    def watch(context: SensorEvaluationContext, flowcore: FlowcoreResource) -> SensorResult:
        now_s = time.time()
        if last_progress(history_folder(flowcore.settings().state_dir, plan.flow)) is None:
            return SensorResult(skip_reason="the stream was never read, so there is nothing to judge")
        told: dict[str, tuple[bool, float]] = json.loads(context.cursor or "{}")
        events = []
        for verdict in _verdicts(plan, flowcore.settings(), objectives):
            passed, told_s = told.get(verdict.name, (None, 0.0))
            if passed is not verdict.passed or now_s - told_s >= _TELL_AGAIN_S:
                told[verdict.name] = verdict.passed, now_s
                events.append(
                    AssetCheckEvaluation(
                        asset_key=key,
                        check_name=verdict.name,
                        passed=verdict.passed,
                        severity=AssetCheckSeverity.WARN,
                        description=verdict.words,
                        metadata=_metadata(verdict),
                    )
                )
        skip = f"{len(events)} checks have news" if events else "nothing has changed"
        return SensorResult(asset_events=events, cursor=json.dumps(told), skip_reason=skip)

    return watch


def _verdicts(plan: Plan, settings: Settings, objectives: Objectives) -> list[Verdict]:
    last = last_progress(history_folder(settings.state_dir, plan.flow))
    return judge(last, time.time_ns() // 1_000_000, objectives)


def _metadata(verdict: Verdict) -> Metadata:
    found: Metadata = {"limit": MetadataValue.float(float(verdict.limit))}
    if verdict.found is not None:
        found["found"] = MetadataValue.float(float(verdict.found))
    return found
