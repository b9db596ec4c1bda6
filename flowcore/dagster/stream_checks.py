"""Health: the asset checks of a flow's stream.

A run answers them while it beats, a sensor while none does, and a person may ask at any time. Who is not the
run looks at what it left on disk (`flowcore.metrics.history`), and needs neither Spark nor the broker. An
outcome is told when it has changed.
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

from flowcore.dagster.attributes import Objectives
from flowcore.dagster.metadata import Metadata
from flowcore.dagster.names import identifier, live_key, op_name
from flowcore.dagster.objectives import ObjectiveResult, judge, judged
from flowcore.dagster.resources import FlowcoreResource
from flowcore.metrics.history import history_folder, last_progress
from flowcore.metrics.liveness import what_is_wrong
from flowcore.planner.plan import Plan

__all__ = ["evaluation", "health_checks", "health_sensor"]

_EVERY_S = 60


def health_checks(plan: Plan, objectives: Objectives) -> AssetChecksDefinition:
    """The checks of a flow's live queries."""
    key = live_key(plan.flow)
    specs = [AssetCheckSpec(name, asset=key, description=what) for name, what in judged(objectives).items()]

    @multi_asset_check(name=op_name(plan.flow, "health"), specs=specs, can_subset=True)
    def health(context: AssetCheckExecutionContext, flowcore: FlowcoreResource) -> Iterator[AssetCheckResult]:
        wanted = {check.name for check in context.selected_asset_check_keys}
        last = last_progress(history_folder(flowcore.settings().state_dir, plan.flow))
        for verdict in judge(last, time.time_ns() // 1_000_000, objectives):
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
    """A sensor that answers the checks where no run does; it is on unless a person turns it off."""
    key = live_key(plan.flow)

    @sensor(
        name=identifier(plan.flow, "health"),
        asset_selection=[key],
        minimum_interval_seconds=_EVERY_S,
        default_status=DefaultSensorStatus.RUNNING,
        description=f"Tells whether the stream of flow `{plan.flow}` holds its objectives, as asset checks, "
        "while no run of it does so.",
    )
    def watch(context: SensorEvaluationContext, flowcore: FlowcoreResource) -> SensorResult:
        last = last_progress(history_folder(flowcore.settings().state_dir, plan.flow))
        now_ms = time.time_ns() // 1_000_000
        if last is None:
            return SensorResult(skip_reason="the stream was never read, so there is nothing to judge")
        if what_is_wrong(last, now_ms) is None:
            return SensorResult(skip_reason="the run tells it itself", cursor="")
        told: dict[str, bool] = json.loads(context.cursor or "{}")
        news = [v for v in judge(last, now_ms, objectives) if told.get(v.name) is not v.passed]
        skip = f"{len(news)} checks have news" if news else "nothing has changed"
        return SensorResult(
            asset_events=[evaluation(plan.flow, verdict) for verdict in news],
            cursor=json.dumps(told | {verdict.name: verdict.passed for verdict in news}),
            skip_reason=skip,
        )

    return watch


def evaluation(flow: str, verdict: ObjectiveResult) -> AssetCheckEvaluation:
    """A verdict on a flow's live queries, as Dagster is told of it."""
    return AssetCheckEvaluation(
        asset_key=live_key(flow),
        check_name=verdict.name,
        passed=verdict.passed,
        severity=AssetCheckSeverity.WARN,
        description=verdict.words,
        metadata=_metadata(verdict),
    )


def _metadata(verdict: ObjectiveResult) -> Metadata:
    found: Metadata = {"limit": MetadataValue.float(float(verdict.limit))}
    if verdict.found is not None:
        found["found"] = MetadataValue.float(float(verdict.found))
    return found
