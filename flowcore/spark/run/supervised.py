"""Supervise one live query: choose its mode and its inputs, and restart it to change them.

A query is ended after its running batch and restarted on the same checkpoint: in micro-batches that end while
it is in backlog, in its own mode otherwise, with new versions of the results that it joins, and with the
partitions that were added to its sources, for which its watermarks wait. The successor is compiled while the
query still runs, so a version that cannot be joined does not interrupt it. If batches are a flush interval
apart, and no more input is available, a restart begins a batch early.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from pyspark.sql.streaming.query import StreamingQuery

from flowcore.backlog import batch_records
from flowcore.durations import MILLISECOND
from flowcore.errors import FlowcoreError, ResultError
from flowcore.flush.quiet_input import QUIET_MS, QuietInput
from flowcore.planner.model import LiveQuery
from flowcore.planner.rules.backlog import read_backlog_interval, read_thresholds
from flowcore.spark.checkpoint.backlog_status import BacklogStatusWriter
from flowcore.spark.checkpoint.offset_log import clear_unused_log
from flowcore.spark.checkpoint.plan_file import (
    checkpoint_folder,
    read_plan_file,
    repeated_versions,
    write_plan_file,
)
from flowcore.spark.context import Context
from flowcore.spark.errors import ignore_lost_jvm
from flowcore.spark.results.joined import Joined, JoinedResults
from flowcore.spark.run.fence import Fence
from flowcore.spark.run.observation import RunMeter
from flowcore.spark.run.running_query import PreparedQuery, RunningQuery, prepare_query
from flowcore.spark.topics.side_channels import SideChannels

__all__ = ["SupervisedQuery"]

_log = logging.getLogger(__name__)
_POLL_S = 2.0


class SupervisedQuery:
    """One live query of a run, from its first start to the end of the run.

    Raises:
        FlowcoreError: It cannot be compiled, or cannot continue from its checkpoint.
    """

    def __init__(
        self,
        query: LiveQuery,
        context: Context,
        meter: RunMeter,
        results: JoinedResults,
        side_channels: SideChannels,
        *,
        fence: Fence,
    ) -> None:
        self._fence = fence
        self.query = query
        self.side_channels = side_channels
        self._context = context
        self._meter = meter
        self._results = results
        self._per_second: float | None = None
        self._rows_in = 0
        self._started = (0, 0.0)
        self._reason = ""
        self._polled_s = 0.0
        self._running: RunningQuery | None = None
        self._backlog_status = BacklogStatusWriter(self._checkpoint) if side_channels.has_key_groups else None
        self._ends_backlog = False
        interval_ms = query.batch_interval_ms or 0
        shortest_ms = max(context.settings.trigger_interval // MILLISECOND, QUIET_MS)
        is_held = query.mode.value == "micro-batch" and interval_ms > shortest_ms
        self._quiet = QuietInput(interval_ms) if is_held else None
        meter.add(query, self._checkpoint, lambda: self.active)
        self._repeats = False
        self._next = self._prepare_first()

    @property
    def running(self) -> StreamingQuery | None:
        """Spark's query of the last start."""
        return self._running.running if self._running else None

    @property
    def mode(self) -> str:
        """The mode of the last start."""
        return (self._running.prepared if self._running else self._next).query.mode.value

    @property
    def active(self) -> bool:
        """It runs, or is about to be restarted; `poll` detects a lost JVM, not this property."""
        running = self._running
        active = running is not None
        if running is not None:
            with ignore_lost_jvm():
                active = not running.ended or (self._restarts(running) and self.error is None)
        return active

    @property
    def error(self) -> Exception | None:
        """The error with which it ended, if it failed."""
        running = self._running
        return running.running.exception() if running is not None and running.ended else None

    @property
    def versions(self) -> set[tuple[str, str]]:
        """Stage and version of the results that it joins, or is about to join."""
        prepared = [self._next, *([self._running.prepared] if self._running else [])]
        return {pair for one in prepared for pair in one.joined.versions.items()}

    def start(self) -> None:
        """Start it for the first time.

        Raises:
            RunError: Spark cannot start it.
        """
        clear_unused_log(self._checkpoint)
        self._write_backlog_status(starts=True)
        self._start()

    def poll(self) -> None:
        """Restart it if it has ended to be restarted; end it if its mode or a result must change.

        Raises:
            FlowcoreError: It cannot be restarted.
        """
        running = self._running
        if running is None:
            return
        if running.ended:
            if self._restarts(running) and self.error is None:
                self._restart(running)
        elif self.query.mode.value == "slice":
            return
        elif not running.ending and time.monotonic() >= self._polled_s + _POLL_S:
            self._polled_s = time.monotonic()
            self._write_backlog_status()
            if (
                self._must_join_another(running)
                or self._must_catch_up(running)
                or self._must_follow_added_partitions(running)
            ):
                running.end_after_batch()
            elif running.prepared.catching_up and self._next is running.prepared:
                self._next = self._prepare(running.prepared.joined, catch_up=False)  # makes the pause shorter
            elif self._is_quiet(running):
                self._restart(running)

    def stop(self) -> None:
        """Stop it at once; the next start reads again what was not committed."""
        if self._running is not None:
            self._running.stop()

    @property
    def _checkpoint(self) -> Path:
        return checkpoint_folder(self.query, self._context.flow, self._context.settings)

    def _restarts(self, running: RunningQuery) -> bool:
        return running.ending or running.prepared.catching_up or self._ends_backlog

    def _write_backlog_status(self, *, starts: bool = False) -> None:
        """Report to key groups whether their records are backlog.

        All records of a slice are backlog. If a buffer waits for the end of backlog, a last empty run reports
        it.
        """
        if self._backlog_status is None:
            return
        progress = self._meter.query(self.query.name)
        backlog = progress.backlog
        if self.query.mode.value == "slice":
            waits = bool(self.query.buffers)
            backlog = starts and progress.lag != 0
            self._ends_backlog = backlog and waits
            if not backlog and not waits:
                return
        if backlog is not None:
            self._backlog_status.write(backlog=backlog)

    def _prepare_first(self) -> PreparedQuery:
        """Compile the first start. A batch that is repeated joins the versions of results that it began with.

        A newer version is joined after that batch; by a slice with the next slice; in real-time mode, whose
        batches are not known, after micro-batches of all records that are there. If the newest version cannot
        be joined, the query continues with the one that it joined last.
        """
        recorded = repeated_versions(self._checkpoint)
        backlog = self._in_backlog()
        if recorded and self._results.newer_versions(self.query, recorded):
            try:
                joined = self._results.pin_newest(self.query, recorded)
            except ResultError:
                _log.warning(
                    "query %r: the versions of its last batch are gone", self.query.name, exc_info=True
                )
            else:
                self._repeats = True
                return self._prepare(joined, catch_up=backlog or self.query.mode.value == "realtime")
        try:
            return self._prepare(self._results.pin_newest(self.query), catch_up=backlog)
        except FlowcoreError as error:
            identity = read_plan_file(self._checkpoint)
            last = identity.bounded if identity else {}
            fresh = self._results.newer_versions(self.query, last)
            if not last or not fresh:
                raise
            joined = self._results.pin_newest(self.query, last)
            self._reject(fresh, last, error)
            return self._prepare(joined, catch_up=backlog)

    def _reject(self, fresh: Mapping[str, str], kept: Mapping[str, str], error: FlowcoreError) -> None:
        """Refuse fresh versions of results; the query continues with those that it has."""
        self._results.reject(self.query, fresh)
        why = f"{_describe(fresh)} cannot be joined, the query continues with {_describe(kept)}: {error}"
        _log.warning("query %r: %s", self.query.name, why)
        self._meter.note(self.query.name, why)

    def _must_join_another(self, running: RunningQuery) -> bool:
        """Whether another version of a result was committed, and can be joined."""
        before = running.prepared.joined.versions
        fresh = self._results.newer_versions(self.query, before)
        if not fresh:
            return False
        try:
            joined = self._results.pin_newest(self.query)
            self._next = self._prepare(joined, catch_up=running.prepared.catching_up)
        except FlowcoreError as error:
            self._reject(fresh, before, error)
            return False
        self._reason = f"{_describe(fresh)} was committed"
        return True

    def _must_catch_up(self, running: RunningQuery) -> bool:
        if running.prepared.catching_up or not self._in_backlog():
            return False
        self._next = self._prepare(running.prepared.joined, catch_up=True)
        self._reason = (
            f"a partition has over {read_thresholds(self._context.settings).enter:,} unread records"
        )
        return True

    def _is_quiet(self, running: RunningQuery) -> bool:
        """Whether records wait for the next batch although no more are available."""
        if self._quiet is None or running.prepared.catching_up:
            return False
        progress = self._meter.query(self.query.name)
        unread = progress.lag or 0
        now_ms = time.monotonic_ns() // 1_000_000
        waits = self._quiet.poll(progress.rows_in + unread, unread=unread, now_ms=now_ms)
        return waits and not running.running.status["isTriggerActive"]

    def _must_follow_added_partitions(self, running: RunningQuery) -> bool:
        """Whether a source has more partitions than its watermarks follow."""
        topics = dict(self.side_channels.topics)
        for each in self._meter.query(self.query.name).partitions:
            if each.topic in topics and each.partition >= topics[each.topic].partitions:
                topics[each.topic] = replace(topics[each.topic], partitions=each.partition + 1)
        added = {name for name, topic in topics.items() if topic != self.side_channels.topics[name]}
        if not added:
            return False
        why = ", ".join(
            f"topic {name!r} has {topics[name].partitions} partitions now" for name in sorted(added)
        )
        self._meter.note(self.query.name, why)
        self.side_channels = replace(self.side_channels, topics=topics)
        self._next = self._prepare(running.prepared.joined, catch_up=running.prepared.catching_up)
        self._reason = why
        return True

    def _restart(self, before: RunningQuery) -> None:
        ended = time.monotonic()
        self._write_backlog_status()
        backlog = self._in_backlog()
        if self._repeats:
            self._repeats = False
            self._must_join_another(before)
        if before.prepared.catching_up:
            self._per_second = (self._rows_in - self._started[0]) / (ended - self._started[1])
        if self._next.catching_up != backlog:
            self._next = self._prepare(self._next.joined, catch_up=backlog)
        if before.prepared.catching_up and not backlog and not before.ending:
            leave = read_thresholds(self._context.settings).leave
            self._reason = f"caught up: no partition has over {leave:,} unread records"
        before.stop()
        self._start(ended)

    def _start(self, ended: float | None = None) -> None:
        prepared = self._next
        self._results.pin(self.query, prepared.joined.versions)
        write_plan_file(
            prepared.query, self._context.flow, self._checkpoint, prepared.types,
            topics=self.side_channels.topics, bounded=prepared.joined.versions,
        )  # fmt: skip
        self._started = self._rows_in, time.monotonic()
        self._running = RunningQuery(prepared, self._context)
        self._fence.watch(self.query.name, self._running.running)
        self._meter.started(
            prepared.query,
            self._running.running,
            bounded=prepared.joined.versions,
            watermarks=self._running.watermarks,
            reason=self._reason,
            pause_ms=None if ended is None else round((time.monotonic() - ended) * 1000),
        )
        self._reason = ""

    def _in_backlog(self) -> bool:
        if self.query.catch_up.value == "no":
            return False
        progress = self._meter.query(self.query.name)
        self._rows_in = progress.rows_in
        return bool(progress.backlog)

    def _prepare(self, joined: Joined, *, catch_up: bool) -> PreparedQuery:
        settings = self._context.settings
        records = batch_records(read_backlog_interval(settings), self._per_second, settings.max_batch_records)
        return prepare_query(
            self.query, self._context, joined, self.side_channels, records if catch_up else None
        )


def _describe(versions: Mapping[str, str]) -> str:
    return ", ".join(f"version {version} of stage {stage!r}" for stage, version in versions.items())
