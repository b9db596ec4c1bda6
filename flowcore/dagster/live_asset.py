"""The asset of a flow's live queries: a slice that catches up and ends, or a long run with heartbeats.

A heartbeat is a materialization in the middle of a run, so that Dagster plots its numbers while the run
lasts.
"""

import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import dagster as dg
from pydantic import Field

from flowcore.api.flow import Flow
from flowcore.background import PeriodicThread
from flowcore.dagster.attributes import AssetAttributes, Objectives
from flowcore.dagster.metadata import Metadata, progress_metadata
from flowcore.dagster.names import live_dependencies, live_key, op_name
from flowcore.dagster.resources import FlowcoreResource, SparkResource
from flowcore.dagster.restart_sensor import first_run, retried_run, running_evaluation
from flowcore.dagster.stream_checks import evaluate_objectives, evaluation
from flowcore.dagster.termination import (
    TerminationRequests,
    deferred_interrupts,
    survive_storage,
    was_terminated,
)
from flowcore.errors import MissingStateError, RunError
from flowcore.planner import plan_flow
from flowcore.planner.plan import Plan
from flowcore.settings import Settings
from flowcore.spark.checkpoint.plan_file import checkpoint_folder, plan_file_of
from flowcore.spark.context import spark_log
from flowcore.spark.errors import translate_disk_errors
from flowcore.spark.run.live_stage import LiveRun

__all__ = ["Heartbeat", "LiveConfig", "build_live_asset", "require_state", "watch"]

_POLL_S = 0.5
_AGAIN_S = 5.0
_REPEAT_S = 600.0
_REPORTS = 20
_log = logging.getLogger(__name__)


class LiveConfig(dg.Config):
    """Run configuration of the live queries."""

    mode: Literal["auto", "slice", "realtime", "micro-batch"] = Field(
        default="slice",
        description="slice: catch up with the topics, then end. auto: keep running, each query in "
        "real-time mode if it allows it. realtime and micro-batch: keep running, in this mode.",
    )
    run_seconds: float | None = Field(
        default=None, description="End after this many seconds. Default: run until it is terminated."
    )
    heartbeat_seconds: float = Field(
        default=10.0,
        ge=1.0,
        le=60.0,
        description="Seconds between two heartbeats in the asset's history. The supervisor takes a run "
        "without one for Automation.silent_s as lost.",
    )


def build_live_asset(
    flow: Flow, plan: Plan, attributes: AssetAttributes, objectives: Objectives
) -> dg.AssetsDefinition:
    """The asset of a flow's live queries.

    The run evaluates its own checks: of a check the UI shows only what belongs to the run of the latest
    materialization, which is the latest heartbeat. The flow is planned again for the mode of each run.
    """
    if plan.live is None:
        msg = f"flow {plan.flow!r} has no unbounded source: there is nothing to run live"
        raise RunError(msg)
    name = op_name(plan.flow, "live")
    operators = [node for query in plan.live.queries for node in query.operators]
    spec = attributes.spec(
        plan,
        live_key(plan.flow),
        "live",
        operators,
        deps=live_dependencies(plan),
        kind="kafka",
        skippable=True,
    )

    @dg.multi_asset(name=name, specs=[spec], pool=name)
    def live(
        context: dg.AssetExecutionContext,
        config: LiveConfig,
        flowcore: FlowcoreResource,
        spark: SparkResource,
    ) -> Iterator[dg.MaterializeResult]:  # type: ignore[type-arg]
        retried = retried_run(context.run)
        if retried is not None and was_terminated(context.instance, retried):
            context.log.info("run %s was terminated, and died meanwhile: this retry of it ends", retried)
            return
        # The heartbeats are the reports; those of a listener would be of no run.
        settings = replace(flowcore.settings(), dagster_url=None)
        run_plan = plan_flow(flow, None if config.mode == "auto" else config.mode, settings)
        # A disk that fails at a start is an outage, too.
        translated = translate_disk_errors(f"flow {flow.name!r}", spark_log(settings))
        with translated, deferred_interrupts() as interrupted:
            require_state(context, run_plan, settings)
            spark_context = spark.context(run_plan, settings)
            with LiveRun(run_plan, spark_context) as run:
                heartbeat = Heartbeat(context, run, objectives, config.heartbeat_seconds)
                watch(context, run, heartbeat, interrupted, config.run_seconds)
                if interrupted.is_set():
                    with survive_storage():
                        context.log.info("the live queries of flow %s are asked to stop", plan.flow)
                    heartbeat.beat()
                metadata = heartbeat.metadata()
        # A launch of the asset without a job runs its checks after this, also long ones of the project's.
        spark.send_heartbeats(context.instance, context.run.run_id)
        yield dg.MaterializeResult(metadata=metadata)

    return live


def require_state(context: dg.AssetExecutionContext, plan: Plan, settings: Settings) -> None:
    """Check that a restarted run finds the state of the run before it, and does not begin anew unnoticed.

    Raises:
        MissingStateError: The state is missing.
    """
    first = first_run(context.run)
    reports = context.instance.fetch_materializations(live_key(plan.flow), limit=_REPORTS).records
    runs = (context.instance.get_run_by_id(report.run_id) for report in reports)
    beaten = next(filter(None, runs), None)  # a person's report has no run
    if first == context.run.run_id or beaten is None or first_run(beaten) != first:
        return
    checkpoints = [checkpoint_folder(query, plan.flow, settings) for query in plan.live_queries]
    if not any(plan_file_of(each).exists() for each in checkpoints):
        msg = (
            f"run {beaten.run_id}, which this run replaces, had checkpoints in {checkpoints[0].parent}, and "
            "there are none now, as if a disk was not mounted: the queries would read their sources from the "
            "start position, and skip or repeat records; bring the folder back, or launch the job by hand to "
            "start anew"
        )
        raise MissingStateError(msg)


class Heartbeat:
    """Reports the progress of running queries to Dagster, from one thread at a time."""

    def __init__(
        self, context: dg.AssetExecutionContext, run: LiveRun, objectives: Objectives, beat_s: float
    ) -> None:
        self._beat_s = beat_s
        self._context = context
        self._run = run
        self._objectives = objectives
        self._reported: dict[str, bool] = {}
        if run.metrics_url:
            context.log.info("metrics for Prometheus are at %s", run.metrics_url)
        self._began = self._last = self._cleared = time.monotonic()

    @property
    def is_due(self) -> bool:
        return time.monotonic() - self._last >= self._beat_s

    def has_lasted(self, seconds: float | None) -> bool:
        return seconds is not None and time.monotonic() - self._began >= seconds

    def beat_if_due(self) -> None:
        """Report a heartbeat if one is due; an error is logged, and the next one is sent in its time."""
        if self.is_due:
            try:
                self.beat()
            except Exception:  # noqa: BLE001 - the queries run on, and end the run if they cannot
                _log.exception("a heartbeat could not be sent; the run continues")

    def beat(self) -> None:
        """Report a heartbeat; if Dagster's storage fails, again soon."""
        self._last = time.monotonic()
        if self._last - self._cleared >= _REPEAT_S:  # others may have reported another outcome meanwhile
            self._cleared = self._last
            self._reported.clear()
        flow, metadata = self._run.plan.flow, self.metadata()
        beaten = False
        with survive_storage():
            self._log(dg.AssetMaterialization(live_key(flow), metadata=metadata))
            self._report(running_evaluation(flow))
            beaten = True
        if not beaten:
            self._last += min(_AGAIN_S - self._beat_s, 0.0)

    def metadata(self) -> Metadata:
        """The progress of the queries; also reports checks whose outcome was not reported recently."""
        progress = self._run.health()
        for result in evaluate_objectives(progress, progress.time_ms, self._objectives):
            self._report(evaluation(progress.flow, result))
        return progress_metadata(progress)

    def _report(self, found: dg.AssetCheckEvaluation) -> None:
        if self._reported.get(found.check_name) is not found.passed:
            with survive_storage():
                self._log(found)
                self._reported[found.check_name] = found.passed

    def _log(self, event: dg.AssetMaterialization | dg.AssetCheckEvaluation) -> None:
        # `DagsterEvent.from_step` has written it to the event log when `log_event` returns. The context also
        # keeps it, to pass it on when the op yields or returns, which here is after months.
        self._context.log_event(event)
        for _ in self._context.consume_events():
            pass


def watch(
    context: dg.AssetExecutionContext,
    run: LiveRun,
    heartbeat: Heartbeat,
    interrupted: threading.Event,
    run_seconds: float | None,
) -> None:
    """Wait until the queries end, an interrupt or a request ends them, or their time is over.

    A thread sends heartbeats meanwhile: between two polls the run may restart a query, or verify a new
    result, for minutes.
    """
    requests = TerminationRequests(context)
    with PeriodicThread("heartbeat", heartbeat.beat_if_due, _POLL_S):
        while not interrupted.is_set() and not heartbeat.has_lasted(run_seconds):
            if run.wait(_POLL_S):
                return
            if requests.poll():
                interrupted.set()
