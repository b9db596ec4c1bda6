"""The live queries as one asset: a slice that catches up and ends, or a long run that beats.

A beat is a materialization in the middle of a run, so that Dagster plots its numbers while it lasts.
"""

import time
from typing import Literal

from dagster import (
    AssetCheckEvaluation,
    AssetExecutionContext,
    AssetMaterialization,
    AssetsDefinition,
    AssetSpec,
    Config,
    MaterializeResult,
    multi_asset,
)
from pydantic import Field

from flowcore.api.flow import Flow
from flowcore.dagster.attributes import Notes, Objectives
from flowcore.dagster.metadata import Metadata, plan_metadata, progress_metadata
from flowcore.dagster.names import asset_key, identifier, live_key, op_name, table_key
from flowcore.dagster.objectives import judge
from flowcore.dagster.orders import Orders
from flowcore.dagster.resources import FlowcoreResource, SparkResource
from flowcore.dagster.restart_sensor import RUNNING_CHECK, running_now
from flowcore.dagster.stream_checks import evaluation
from flowcore.dagster.termination import deferred_interrupts
from flowcore.errors import RunError
from flowcore.planner import plan_flow
from flowcore.planner.plan import Plan
from flowcore.planner.rules.fingerprint import fingerprint_operators
from flowcore.spark.run.live_stage import LiveRun

__all__ = ["LiveConfig", "live_asset"]

_LOOK_S = 0.5


class LiveConfig(Config):
    """How the live queries run, and for how long."""

    mode: Literal["auto", "slice", "realtime", "micro-batch"] = Field(
        default="slice",
        description="slice: catch up with the topics, then end. auto: stay, in real-time mode where every "
        "query allows it. realtime and micro-batch: stay, in this mode.",
    )
    run_seconds: float | None = Field(
        default=None, description="End after so many seconds; not given: run until it is terminated."
    )
    beat_seconds: float = Field(
        default=10.0, ge=1.0, description="Seconds between two reports in the asset's history."
    )


def live_asset(flow: Flow, plan: Plan, notes: Notes, objectives: Objectives) -> AssetsDefinition:
    """The asset of a flow's live queries.

    While it runs it answers its own checks: the UI shows of a check only what belongs to the run of the
    latest materialization, which is to say of the latest beat.

    Args:
        flow: Planned again for the mode of each run.
        plan: Of the flow; it has a live stage.
        notes: Owners, tags, descriptions.
        objectives: What its stream shall hold.
    """
    if plan.live is None:
        msg = f"flow {plan.flow!r} has no unbounded source: there is nothing to run live"
        raise RunError(msg)
    name = op_name(plan.flow, "live")
    results = [result.name for stage in plan.bounded for result in stage.results]
    sources = [asset_key(plan.flow, source) for source in plan.live.sources]

    spec = AssetSpec(
        live_key(plan.flow),
        deps=[*(table_key(plan.flow, result) for result in results), *sources],
        description=notes.descriptions.get("live", f"Live queries of flow `{plan.flow}`"),
        metadata=plan_metadata(plan),
        kinds={"spark", "kafka"},
        group_name=notes.group or identifier(plan.flow),
        owners=notes.owners,
        tags=notes.tags,
        code_version=fingerprint_operators(node for query in plan.live.queries for node in query.operators)[
            :12
        ],
    )

    @multi_asset(name=name, specs=[spec], pool=name)
    def live(
        context: AssetExecutionContext, config: LiveConfig, flowcore: FlowcoreResource, spark: SparkResource
    ) -> MaterializeResult:  # type: ignore[type-arg]
        settings = flowcore.settings()
        todays = plan_flow(flow, None if config.mode == "auto" else config.mode, settings)
        with deferred_interrupts() as interrupted:
            run = spark.context(todays, settings)
            with LiveRun(todays, run) as queries:
                beats, orders = _Beats(context, queries, objectives), Orders(context)
                while not interrupted.is_set() and not beats.over(config.run_seconds):
                    if queries.wait(_LOOK_S):
                        break
                    if orders.is_to_end():
                        interrupted.set()
                        break
                    if beats.since_last_s >= config.beat_seconds:
                        beats.beat()
                if interrupted.is_set():
                    context.log.info("the live queries of flow %s are asked to stop", plan.flow)
                    beats.beat()
                last = beats.last()
        return MaterializeResult(metadata=last)

    return live


class _Beats:
    """Reports on running queries."""

    def __init__(self, context: AssetExecutionContext, run: LiveRun, objectives: Objectives) -> None:
        self._context = context
        self._run = run
        self._objectives = objectives
        self._told: dict[str, bool] = {}
        if run.metrics_url:
            context.log.info("metrics for Prometheus are at %s", run.metrics_url)
        self._began = self._last = time.monotonic()

    @property
    def since_last_s(self) -> float:
        return time.monotonic() - self._last

    def over(self, run_seconds: float | None) -> bool:
        return run_seconds is not None and time.monotonic() - self._began >= run_seconds

    def beat(self) -> None:
        self._last = time.monotonic()
        metadata = self.last()
        self._context.log_event(AssetMaterialization(live_key(self._run.plan.flow), metadata=metadata))
        self._tell(RUNNING_CHECK, running_now(self._run.plan.flow))

    def last(self) -> Metadata:
        """How the queries are doing; checks that have come to another outcome are told along with it."""
        health = self._run.health()
        for verdict in judge(health, health.time_ms, self._objectives):
            self._tell(verdict.name, evaluation(health.flow, verdict))
        return progress_metadata(health)

    def _tell(self, name: str, found: AssetCheckEvaluation) -> None:
        if self._told.get(name) is not found.passed:
            self._told[name] = found.passed
            self._context.log_event(found)
