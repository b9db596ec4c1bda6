"""Run a flow from its first bounded stage to its live queries.

A bounded stage is skipped if its committed result is up to date. The session is started for the plan, since
real-time queries need a fixed number of task slots.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Protocol

from flowcore.api.flow import Flow
from flowcore.planner import plan_flow
from flowcore.planner.model import Mode
from flowcore.planner.plan import Plan
from flowcore.planner.rules.functions import require_known_functions
from flowcore.settings import Settings
from flowcore.spark.checkpoint.plan_file import require_checkpoints_fit
from flowcore.spark.context import Context, spark_log
from flowcore.spark.errors import translate_disk_errors
from flowcore.spark.run.bounded_stages import StageProgress, run_concurrently
from flowcore.spark.run.live_runs import LiveRuns
from flowcore.spark.run.live_settings import require_live_settings
from flowcore.spark.run.live_topics import prepare_topics, require_schemas
from flowcore.spark.run.lost_records import skip_lost_records
from flowcore.spark.run.private import prepare_state_folder
from flowcore.spark.run.session import session
from flowcore.spark.run.task_slots import slots_needed
from flowcore.spark.topics.source_files import require_files

__all__ = ["Listener", "SilentListener", "open_context", "run_flow", "run_plan"]


class Listener(Protocol):
    """Gets the events of a run."""

    def planned(self, plan: Plan) -> None:
        """The plan is made, and Spark is about to start."""

    def stage_changed(self, progress: StageProgress) -> None:
        """A bounded stage entered a state."""

    def live(self, run: LiveRuns) -> None:
        """The live queries have started; returning ends the run."""


class SilentListener:
    """Ignores events; the run ends with its queries."""

    def planned(self, plan: Plan) -> None:
        """Do nothing."""

    def stage_changed(self, progress: StageProgress) -> None:
        """Do nothing."""

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
    skip_lost: bool = False,
    listener: Listener | None = None,
) -> None:
    """Run a flow: bounded stages as needed, then the live queries.

    Args:
        mode: How live queries run; ``"slice"`` catches up and returns. Default: the fastest possible.
        live: Run the live queries too; otherwise only the bounded stages, for a live run in another process.
        refresh: Run bounded stages even if their results are up to date.
        skip_lost: Continue where topics have records, after lost ones, and list these; otherwise the start
            is refused. See `flowcore.spark.run.lost_records`.
        listener: Gets events, and decides when a live run ends. Default: it ends with its queries.

    Raises:
        FlowcoreError: The flow, the settings or the run failed.
    """
    # A disk that fails at a start is an outage, too.
    with translate_disk_errors(f"flow {flow.name!r}", spark_log(settings)):
        prepare_state_folder(settings.state_dir)
        require_known_functions(flow, settings)
        plan = plan_flow(flow, mode, settings)
        if not live:
            plan = replace(plan, live=None)
        if skip_lost:
            require_checkpoints_fit(plan, settings)  # before they are changed
            skip_lost_records(plan, settings)
        with open_context(plan, settings, listener) as context:
            run_plan(plan, context, refresh=refresh, listener=listener)


@contextmanager
def open_context(plan: Plan, settings: Settings, listener: Listener | None = None) -> Iterator[Context]:
    """Check settings, checkpoints, files, topics and schemas, then open a session with the plan's slots."""
    require_live_settings(plan, settings)
    require_checkpoints_fit(plan, settings)
    for stage in plan.bounded:
        if not stage.after:  # another stage may write what this one reads
            require_files(stage.sources, settings)
    partitions = prepare_topics(plan, settings)
    schemas = require_schemas(plan, settings)
    if listener is not None:
        listener.planned(plan)
    with session(settings, plan.flow, slots=slots_needed(plan, settings, partitions)) as spark:
        yield Context(spark, settings, plan.flow, schemas=schemas)


def run_plan(
    plan: Plan, context: Context, *, refresh: bool = False, listener: Listener | None = None
) -> None:
    """Run the bounded stages as needed, and start each live query when its bounded stages are committed.

    Raises:
        FlowcoreError: A stage or a query failed; all others have ended.
    """
    listener = listener or SilentListener()
    committed: set[str] = set()
    with LiveRuns(plan, context) as runs:
        changes = run_concurrently(plan.bounded, context, refresh=refresh, meanwhile=runs.check)
        with closing(changes):
            runs.start(committed)
            for progress in changes:
                listener.stage_changed(progress)
                if progress.manifest is not None:
                    committed.add(progress.stage.name)
                    runs.start(committed)
        if plan.live is not None:
            listener.live(runs)
