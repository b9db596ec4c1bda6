"""Run the bounded stages of a plan concurrently, and report the progress of each.

Each stage has its own thread, and its Spark jobs have their own scheduler pool, so that stages share the task
slots. The caller iterates over progress in its own thread. If a stage fails, or the caller stops iterating,
the jobs of the others are cancelled, and their results are not committed. Times are seconds.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from queue import Empty, SimpleQueue

from flowcore.errors import RunError
from flowcore.planner.model import BoundedStage
from flowcore.spark.context import Context
from flowcore.spark.results.manifest import Manifest
from flowcore.spark.run.bounded_stage import run_bounded, up_to_date

__all__ = ["StageProgress", "StageState", "run_concurrently"]

_log = logging.getLogger(__name__)

_POLL_S = 0.2


class StageState(StrEnum):
    """The state of a bounded stage."""

    WAITING = "waiting"
    """It waits for another stage, or for its turn."""
    RUNNING = "running"
    """It reads its input."""
    FINISHING = "finishing"
    """Its input has ended, and it commits its output."""
    COMMITTED = "committed"
    """Its output is visible."""
    FAILED = "failed"
    """It failed or was cancelled, without visible output."""


@dataclass(frozen=True, slots=True)
class StageProgress:
    """A bounded stage has entered a state.

    Attributes:
        seconds: The time that it spent in each of the states before.
        manifest: Its result, once it is committed.
        fresh: Whether it ran; false if its committed result is up to date.
    """

    stage: BoundedStage
    state: StageState
    seconds: tuple[tuple[StageState, float], ...] = ()
    manifest: Manifest | None = None
    fresh: bool = True
    error: BaseException | None = None


def run_concurrently(
    stages: Sequence[BoundedStage],
    context: Context,
    *,
    refresh: bool,
    meanwhile: Callable[[], None] = lambda: None,
) -> Generator[StageProgress]:
    """Run the stages whose result is not up to date, and yield each change of a stage's state.

    The stages are in their plan's order. ``refresh`` runs them all. ``meanwhile`` is called repeatedly while
    they run; an exception from it ends them.

    Raises:
        FlowcoreError: A stage failed; by then the others have ended.
    """
    run = _ConcurrentStages(stages, context, refresh=refresh)
    try:
        yield from run.changes(meanwhile)
    finally:
        run.stop()


class _ConcurrentStages:
    def __init__(self, stages: Sequence[BoundedStage], context: Context, *, refresh: bool) -> None:
        self._waiting = list(stages)
        self._names = {stage.name for stage in stages}
        self._context = context
        self._refresh = refresh
        self._threads: dict[str, threading.Thread] = {}
        self._events: SimpleQueue[StageProgress] = SimpleQueue()
        self._stopping = threading.Event()
        self._began = time.monotonic()

    def changes(self, meanwhile: Callable[[], None]) -> Iterator[StageProgress]:
        yield from (self._logged(StageProgress(stage, StageState.WAITING)) for stage in self._waiting)
        committed: set[str] = set()
        while committed != self._names:
            self._start_ready(committed)
            progress = self._next(meanwhile)
            if progress.state is StageState.COMMITTED:
                self._threads.pop(progress.stage.name).join()
                committed.add(progress.stage.name)
            yield self._logged(progress)
            if progress.error is not None:
                self.stop()
                while not self._events.empty():
                    yield self._logged(self._events.get())
                raise progress.error

    def _next(self, meanwhile: Callable[[], None]) -> StageProgress:
        while True:
            try:
                return self._events.get(timeout=_POLL_S)
            except Empty:
                meanwhile()

    def stop(self) -> None:
        """Cancel running jobs and wait for the threads' ends; a stage between two jobs starts no other."""
        self._stopping.set()
        for name, thread in self._threads.items():
            while thread.is_alive():
                self._context.spark.sparkContext.cancelJobsWithTag(self._tag(name))
                thread.join(_POLL_S)
        self._threads.clear()

    def _start_ready(self, committed: set[str]) -> None:
        for stage in tuple(self._waiting):
            # In a part of a plan, stages outside it are not waited for.
            ready = committed.issuperset(self._names.intersection(stage.after))
            if ready and len(self._threads) < self._context.settings.stages_at_once:
                self._waiting.remove(stage)
                # A daemon: a second Ctrl-C must not wait for a user's function.
                thread = threading.Thread(target=self._run, args=(stage,), name=stage.name, daemon=True)
                self._threads[stage.name] = thread
                thread.start()

    def _run(self, stage: BoundedStage) -> None:
        clock = _Clock(self._began)
        try:
            manifest = None if self._refresh else up_to_date(stage, self._context)
            fresh = manifest is None
            if manifest is None:
                self._report(stage, StageState.RUNNING, clock)
                spark = self._context.spark.sparkContext
                spark.addJobTag(self._tag(stage.name))
                spark.setLocalProperty("spark.scheduler.pool", stage.name)
                manifest = run_bounded(stage, self._context, finishing=lambda: self._finishing(stage, clock))
            self._report(stage, StageState.COMMITTED, clock, manifest=manifest, fresh=fresh)
        except BaseException as error:  # noqa: BLE001 - it is raised in the caller's thread
            self._report(stage, StageState.FAILED, clock, error=self._cancelled(stage) or error)

    def _cancelled(self, stage: BoundedStage) -> RunError | None:
        if not self._stopping.is_set():
            return None
        msg = f"stage {stage.name!r} was cancelled: its results are not visible; its next run starts anew"
        return RunError(msg)

    def _finishing(self, stage: BoundedStage, clock: _Clock) -> None:
        if cancelled := self._cancelled(stage):
            raise cancelled
        self._report(stage, StageState.FINISHING, clock)

    def _report(
        self,
        stage: BoundedStage,
        state: StageState,
        clock: _Clock,
        *,
        manifest: Manifest | None = None,
        fresh: bool = True,
        error: BaseException | None = None,
    ) -> None:
        self._events.put(StageProgress(stage, state, clock.enter(state), manifest, fresh, error))

    def _logged(self, progress: StageProgress) -> StageProgress:
        _log.info("stage %r of flow %r is %s", progress.stage.name, self._context.flow, progress.state)
        return progress

    def _tag(self, stage: str) -> str:
        # Spark's lists of tags are separated by commas.
        return f"flowcore-{self._context.flow}-{stage}-{id(self)}".replace(",", "_")


class _Clock:
    """Measures the time that a stage spends in each state."""

    def __init__(self, began: float) -> None:
        self._state = StageState.WAITING
        self._since = began
        self._seconds: list[tuple[StageState, float]] = []

    def enter(self, state: StageState) -> tuple[tuple[StageState, float], ...]:
        now = time.monotonic()
        self._seconds.append((self._state, now - self._since))
        self._state, self._since = state, now
        return tuple(self._seconds)
