"""Run: a flow from its first bounded stage to its live queries.

Bounded stages run only where their result would be another one than what is committed. The session is
started for the plan, since real-time queries need a fixed number of task slots.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Protocol

from flowcore.api.flow import Flow
from flowcore.planner import plan_flow
from flowcore.planner.model import Mode
from flowcore.planner.plan import Plan
from flowcore.settings import Settings
from flowcore.spark.checkpoint.plan_file import require_checkpoints_fit
from flowcore.spark.context import Context
from flowcore.spark.run.bounded_stages import StageProgress, stages_side_by_side
from flowcore.spark.run.live_runs import LiveRuns
from flowcore.spark.run.live_stage import prepare_topics
from flowcore.spark.run.session import session
from flowcore.spark.run.task_slots import slots_needed

__all__ = ["Listener", "SilentListener", "open_context", "run_flow", "run_plan", "run_stages"]


class Listener(Protocol):
    """Told what a run is doing."""

    def planned(self, plan: Plan) -> None:
        """The plan is made; Spark is about to start."""

    def stage_changed(self, progress: StageProgress) -> None:
        """A bounded stage came into another state."""

    def live(self, run: LiveRuns) -> None:
        """The live queries run; return when the run shall end."""


class SilentListener:
    """Tells nobody; lives until the queries end."""

    def planned(self, plan: Plan) -> None:
        """Nothing."""

    def stage_changed(self, progress: StageProgress) -> None:
        """Nothing."""

    def live(self, run: LiveRuns) -> None:
        """Wait for the end of the queries."""
        run.wait()


def run_flow(
    flow: Flow,
    settings: Settings,
    *,
    mode: Mode | None = None,
    live: bool = True,
    refresh: bool = False,
    listener: Listener | None = None,
) -> None:
    """Run a flow: bounded stages as needed, then the live queries.

    Args:
        flow: The flow.
        settings: Broker, folders, and what else the run needs.
        mode: How live queries run; ``"slice"`` catches up and returns. Default: the fastest possible.
        live: Run the live queries; else only the bounded stages, for a live run elsewhere to take over.
        refresh: Run bounded stages even where nothing has changed.
        listener: Told of progress; decides when a live run ends. Default: it ends with its queries.

    Raises:
        FlowcoreError: Something in the flow, the settings or the run is wrong; the message says what.
    """
    listener = listener or SilentListener()
    plan = plan_flow(flow, mode, settings)
    if not live:
        plan = replace(plan, live=None)
    with open_context(plan, settings, listener) as context:
        run_plan(plan, context, refresh=refresh, listener=listener)


@contextmanager
def open_context(plan: Plan, settings: Settings, listener: Listener | None = None) -> Iterator[Context]:
    """A session with the slots that a plan needs; checkpoints and topics are checked before it starts."""
    require_checkpoints_fit(plan, settings)
    if plan.live is not None:
        prepare_topics(plan.live, settings)
    if listener is not None:
        listener.planned(plan)
    with session(settings, plan.flow, slots=slots_needed(plan, settings)) as spark:
        yield Context(spark, settings, plan.flow)


def run_plan(plan: Plan, context: Context, *, refresh: bool, listener: Listener) -> None:
    """Run the bounded stages as needed, and each live query when what it waits for is committed.

    Raises:
        FlowcoreError: A stage or a query failed; all others have ended.
    """
    committed: set[str] = set()
    with LiveRuns(plan, context) as runs:
        changes = stages_side_by_side(plan.bounded, context, refresh=refresh, meanwhile=runs.check)
        with closing(changes):
            runs.start(committed)
            for progress in changes:
                listener.stage_changed(progress)
                if progress.manifest is not None:
                    committed.add(progress.stage.name)
                    runs.start(committed)
        if plan.live is not None:
            listener.live(runs)


def run_stages(plan: Plan, context: Context, *, refresh: bool, listener: Listener) -> None:
    """Run the bounded stages whose result is not up to date, side by side where they may.

    Raises:
        FlowcoreError: A stage failed; the others were cancelled, if they had not been committed.
    """
    with closing(stages_side_by_side(plan.bounded, context, refresh=refresh)) as changes:
        for progress in changes:
            listener.stage_changed(progress)
