"""Supervised queries: in which mode and with which results shall a query run now, and how does it get there?

It is ended with its running batch and started anew on the same checkpoint: in micro-batches of all that is
there while it is in backlog, in its own mode when it is not, and with a result that was committed meanwhile.
What it goes on with is compiled while it still runs, so a version that cannot be joined changes nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql.streaming.query import StreamingQuery

from flowcore.backlog.checkpoints import batch_records
from flowcore.errors import FlowcoreError
from flowcore.planner.model import LiveQuery
from flowcore.planner.rules.backlog import backlog_interval, thresholds
from flowcore.spark.checkpoint.backlog_status import BacklogStatusWriter
from flowcore.spark.checkpoint.plan_file import checkpoint_folder, clear_unused_log, write_plan_file
from flowcore.spark.context import Context
from flowcore.spark.errors import ignore_lost_jvm
from flowcore.spark.results.joined import Joined, JoinedResults
from flowcore.spark.run.progress import RunMeter
from flowcore.spark.run.running_query import Prepared, RunningQuery, prepare
from flowcore.spark.topics.side_channels import SideChannels

__all__ = ["SupervisedQuery"]

_log = logging.getLogger(__name__)
_LOOK_S = 2.0


class SupervisedQuery:
    """One live query of a run, from its first start to the end of the run.

    Args:
        query: As it is planned.
        context: The live session and settings.
        meter: Of the run.
        results: What the run's queries join.
        side_channels: What the query carries beside its records.

    Raises:
        FlowcoreError: It cannot be compiled, or may not go on from its checkpoint.
    """

    def __init__(
        self,
        query: LiveQuery,
        context: Context,
        meter: RunMeter,
        results: JoinedResults,
        side_channels: SideChannels,
    ) -> None:
        self.query = query
        self.side_channels = side_channels
        self._context = context
        self._meter = meter
        self._results = results
        self._per_second: float | None = None
        self._rows_in = 0
        self._started = (0, 0.0)
        self._reason = ""
        self._looked_s = 0.0
        self._running: RunningQuery | None = None
        self._backlog_status = BacklogStatusWriter(self._checkpoint) if side_channels.has_key_groups else None
        self._ends_backlog = False
        meter.about_to_start(query, self._checkpoint, lambda: self.active)
        self._next = self._prepare(results.newest(query), behind=self._behind())

    @property
    def running(self) -> StreamingQuery | None:
        """Spark's own query, as it was started last."""
        return self._running.running if self._running else None

    @property
    def mode(self) -> str:
        """How it was started last."""
        return (self._running.prepared if self._running else self._next).query.mode.value

    @property
    def active(self) -> bool:
        """It runs, or is about to go on; of a JVM that is gone, it is `look` that tells."""
        running = self._running
        active = running is not None
        if running is not None:
            with ignore_lost_jvm():
                active = not running.ended or (self._goes_on(running) and self.error is None)
        return active

    @property
    def error(self) -> Exception | None:
        """Why it has failed."""
        running = self._running
        return running.running.exception() if running is not None and running.ended else None

    @property
    def versions(self) -> set[tuple[str, str]]:
        """Stage and version of all results that it joins, or is about to join."""
        prepared = [self._next, *([self._running.prepared] if self._running else [])]
        return {pair for one in prepared for pair in one.joined.versions.items()}

    def start(self) -> None:
        """Start it for the first time.

        Raises:
            RunError: Spark cannot.
        """
        clear_unused_log(self._checkpoint)
        write_plan_file(self.query, self._context.flow, self._checkpoint, self._next.types)
        self._tell(starts=True)
        self._start()

    def look(self) -> None:
        """See whether it is to go on in another way, and let it.

        Raises:
            FlowcoreError: It cannot be started again.
        """
        running = self._running
        if running is None:
            return
        if running.ended:
            if self._goes_on(running) and self.error is None:
                self._go_on(running)
        elif self.query.mode.value == "slice":
            return
        elif not running.ending and time.monotonic() >= self._looked_s + _LOOK_S:
            self._looked_s = time.monotonic()
            self._tell()
            if self._takes_over(running) or self._falls_behind(running):
                running.end_after_batch()
            elif running.prepared.catching_up and self._next is running.prepared:
                self._next = self._prepare(running.prepared.joined, behind=False)  # so the pause is shorter

    def stop(self) -> None:
        """Stop it at once; what was not committed is read again by the next start."""
        if self._running is not None:
            self._running.stop()

    @property
    def _checkpoint(self) -> Path:
        return checkpoint_folder(self.query, self._context.flow, self._context.settings)

    def _goes_on(self, running: RunningQuery) -> bool:
        return running.ending or running.prepared.catching_up or self._ends_backlog

    def _tell(self, *, starts: bool = False) -> None:
        """Tell key groups whether what they get is history.

        In a slice all is. Where a buffer waits for its end, a last run of nothing but that tells it.
        """
        if self._backlog_status is None:
            return
        progress = self._meter.query(self.query.name)
        backlog = progress.backlog
        if self.query.mode.value == "slice":
            waits = self.query.buffer is not None
            backlog = starts and progress.lag != 0
            self._ends_backlog = backlog and waits
            if not backlog and not waits:
                return
        if backlog is not None:
            self._backlog_status.write(backlog=backlog)

    def _takes_over(self, running: RunningQuery) -> bool:
        """Whether there is another version to join, and it can be joined."""
        before = running.prepared.joined.versions
        fresh = self._results.fresher(self.query, before)
        if not fresh:
            return False
        try:
            joined = self._results.newest(self.query)
            self._next = self._prepare(joined, behind=running.prepared.catching_up)
        except FlowcoreError as error:
            self._results.refuse(self.query, fresh)
            why = f"{_named(fresh)} cannot be taken over, it goes on with {_named(before)}: {error}"
            _log.warning("query %r: %s", self.query.name, why)
            self._meter.note(self.query.name, why)
            return False
        self._reason = f"{_named(fresh)} was committed"
        return True

    def _falls_behind(self, running: RunningQuery) -> bool:
        if running.prepared.catching_up or not self._behind():
            return False
        self._next = self._prepare(running.prepared.joined, behind=True)
        self._reason = f"a partition has over {thresholds(self._context.settings).enter:,} unread records"
        return True

    def _go_on(self, before: RunningQuery) -> None:
        began = time.monotonic()
        self._tell()
        behind = self._behind()
        if before.prepared.catching_up:
            self._per_second = (self._rows_in - self._started[0]) / (began - self._started[1])
        if self._next.catching_up != behind:
            self._next = self._prepare(self._next.joined, behind=behind)
        if before.prepared.catching_up and not behind and not before.ending:
            leave = thresholds(self._context.settings).leave
            self._reason = f"caught up: no partition has over {leave:,} unread records"
        before.stop()
        self._start(began)

    def _start(self, ended: float | None = None) -> None:
        prepared = self._next
        self._results.pin(self.query, prepared.joined.versions)
        self._started = self._rows_in, time.monotonic()
        self._running = RunningQuery(prepared, self._context)
        self._meter.started(
            prepared.query,
            self._running.running,
            bounded=prepared.joined.versions,
            watermarks=self._running.watermarks,
            reason=self._reason,
            pause_ms=None if ended is None else round((time.monotonic() - ended) * 1000),
        )
        self._reason = ""

    def _behind(self) -> bool:
        if self.query.catch_up.value == "no":
            return False
        progress = self._meter.query(self.query.name)
        self._rows_in = progress.rows_in
        return bool(progress.backlog)

    def _prepare(self, joined: Joined, *, behind: bool) -> Prepared:
        settings = self._context.settings
        records = batch_records(backlog_interval(settings), self._per_second, settings.max_batch_records)
        return prepare(self.query, self._context, joined, self.side_channels, records if behind else None)


def _named(versions: Mapping[str, str]) -> str:
    return ", ".join(f"version {version} of stage {stage!r}" for stage, version in versions.items())
