"""Supervise one live query: choose its mode and its inputs, and restart it to change them.

A query is ended after its running batch and restarted on the same checkpoint: in micro-batches that end while
it is in backlog, in its own mode otherwise, with new versions of the results that it joins, and with the
partitions that were added to its sources, for which its watermarks wait; a batch that was planned before is
repeated without them first. The successor is compiled while the query still runs, so a version that cannot be
joined does not interrupt it. A restart begins a batch early if batches are a flush interval apart and no more
input is available, or if the machine's clock was set back. A query is started again after a mishap
(`flowcore.spark.run.mishaps`), if a batch has a value of a schema that was registered since, and after an
outage.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from pyspark.sql.streaming.query import StreamingQuery

from flowcore.backlog import batch_records
from flowcore.durations import MILLISECOND
from flowcore.errors import FlowcoreError, OutageError, ResultError
from flowcore.failpoints import failpoint
from flowcore.flush.quiet_input import QUIET_MS, QuietInput
from flowcore.metrics.progress import QueryProgress
from flowcore.planner.model import LiveQuery
from flowcore.planner.rules.execution import read_backlog_interval, read_thresholds
from flowcore.planner.rules.joins import decide_joins
from flowcore.spark.checkpoint import plan_file
from flowcore.spark.checkpoint.offset_log import clear_unused_log, has_unfinished_batch
from flowcore.spark.context import Context
from flowcore.spark.errors import find_new_schema, ignore_lost_jvm, translate_run_errors
from flowcore.spark.results.joined import Joined, JoinedResults, describe_versions
from flowcore.spark.run.counted_bad_records import CountedBadRecords
from flowcore.spark.run.fence import Fence
from flowcore.spark.run.mishaps import Mishaps
from flowcore.spark.run.observation import RunMeter
from flowcore.spark.run.own_backlog import OwnBacklog
from flowcore.spark.run.patience import Patience
from flowcore.spark.run.running_query import PreparedQuery, RunningQuery, prepare_query
from flowcore.spark.run.start_record import StartRecord
from flowcore.spark.topics.histories import end_histories
from flowcore.spark.topics.side_channels import SideChannels

__all__ = ["SupervisedQuery"]

_log = logging.getLogger(__name__)
_POLL_S = 2.0


class SupervisedQuery:
    """One live query of a run, from its first start to the end of the run.

    Args:
        require_back: Raises an `OutageError` until an outage has ended.
        counted: The bad records that another query has counted, if this query writes nothing else.

    Raises:
        FlowcoreError: The query cannot be compiled, or cannot continue from its checkpoint.
    """

    def __init__(
        self, query: LiveQuery, context: Context, meter: RunMeter, results: JoinedResults,
        side_channels: SideChannels, *,
        fence: Fence, require_back: Callable[[], object], counted: CountedBadRecords | None = None,
    ) -> None:  # fmt: skip
        self._fence, self._require_back, self._counted = fence, require_back, counted
        self._patience = Patience(lambda text: meter.note(query.name, text))
        self._mishaps = Mishaps(query, context, self._patience, has_markers=side_channels.has_markers)
        self._failed: RunningQuery | None = None
        self.query = query
        self.side_channels = side_channels
        self._context = context
        self._meter = meter
        self._results = results
        self._per_second: float | None = None
        self._repeats = False
        self._rows_in, self._started, self._reason, self._polled_s = 0, (0, 0.0), "", 0.0
        self._running: RunningQuery | None = None
        self._own_backlog = OwnBacklog(query, side_channels, self._checkpoint)
        self._record = StartRecord(query, context)
        interval_ms = query.batch_interval_ms or 0
        shortest_ms = max(context.settings.trigger_interval // MILLISECOND, QUIET_MS)
        is_held = query.mode.value == "micro-batch" and interval_ms > shortest_ms
        self._quiet = QuietInput(interval_ms) if is_held else None
        meter.add(query, self._checkpoint, lambda: self.active)
        progress = self._read_progress()
        self._own_backlog.begin(progress)
        self._next = self._prepare_first(progress)

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
        """Whether it runs, or is about to be restarted; `poll` detects a lost JVM, not this property."""
        running = self._running
        if running is None:
            return False
        with ignore_lost_jvm():
            if running.ended and not self._continues(running):
                return self._restarts(running) and self.error is None
        return True

    @property
    def error(self) -> Exception | None:
        """The error with which it ended, if it failed and is not started again."""
        running = self._running
        if running is None or not running.ended or self._continues(running):
            return None
        return running.error

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
        self._own_backlog.report(self._read_progress(), self._running, starts=True)
        self._start()

    def poll(self) -> None:
        """Restart it if it has ended to be restarted; end it if its mode or a result must change.

        In an outage it is tried again, without end; a slice fails, since another one follows.

        Raises:
            FlowcoreError: The query cannot be restarted.
        """
        if not self._patience.is_due:
            return
        try:
            what = f"query {self.query.name!r} of flow {self._context.flow!r}"
            with translate_run_errors(what, self._context.log):
                self._poll()
        except OutageError as outage:
            if self.query.mode.value == "slice":
                raise
            self._patience.wait(outage, self._meter.query(self.query.name).batches)

    def _poll(self) -> None:
        running = self._running
        if running is None:
            return
        if running.ended:
            self._poll_ended(running)
        elif self.query.mode.value == "slice":
            return
        elif running.poll_clock():
            self._meter.note(self.query.name, "the machine's clock was set back: the query starts again")
            self._restart(running)
        elif not running.ending and time.monotonic() >= self._polled_s + _POLL_S:
            self._polled_s = time.monotonic()
            progress = self._read_progress()
            self._patience.progress(progress.batches)
            self._own_backlog.report(progress, running)
            if (
                self._must_join_another(running)
                or self._must_catch_up(running, progress)
                or self._must_follow_added_partitions(running, progress)
                or self._must_change_attributes(running, progress)
            ):
                running.end_after_batch()
            elif running.prepared.catching_up and self._next is running.prepared:
                self._next = self._prepare(running.prepared.joined, catch_up=False)  # makes the pause shorter
            elif self._is_quiet(running, progress):
                self._restart(running)

    def _poll_ended(self, running: RunningQuery) -> None:
        """Start a query again that has ended, unless it is complete or has failed for good."""
        if self._mishaps.allows(running):
            self._meter.note(self.query.name, f"{self._mishaps.settle(running)}: the query starts again")
            self._start_again(running)
        elif (new := find_new_schema(running.error)) is not None:
            found = self._context.schemas.refresh(*new, self._context.settings)
            self._meter.note(self.query.name, f"{found}: the query starts again")
            before = running.prepared
            self._start_again(running, self._prepare(before.joined, catch_up=before.catching_up))
        elif (outage := running.outage) is not None:
            if self._failed is not running:
                self._failed = running
                raise outage
            self._require_back()
            self._start_again(running)
        elif self._restarts(running) and self.error is None:
            self._restart(running)

    def stop(self) -> None:
        """Stop it at once; the next start reads again what was not committed."""
        if self._running is not None:
            self._running.stop()

    @property
    def _checkpoint(self) -> Path:
        return plan_file.checkpoint_folder(self.query, self._context.flow, self._context.settings)

    def _continues(self, running: RunningQuery) -> bool:
        """Whether it failed, and is started again."""
        outage = self.query.mode.value != "slice" and running.outage is not None
        return outage or self._mishaps.allows(running) or find_new_schema(running.error) is not None

    def _restarts(self, running: RunningQuery) -> bool:
        prepared = running.prepared
        ends = prepared.catching_up or prepared.reads_histories or prepared.repeats
        return running.ending or ends or self._own_backlog.ends

    def _read_progress(self) -> QueryProgress:
        """The progress now, for which the broker is asked."""
        progress = self._meter.query(self.query.name)
        self._rows_in = progress.rows_in
        return progress

    def _prepare_first(self, progress: QueryProgress) -> PreparedQuery:
        """Compile the first start. A batch that is repeated joins the versions of results that it began with.

        A newer version is joined after that batch; by a slice with the next slice; in real-time mode, whose
        batches are not known, after micro-batches of all records that are there. If the newest version cannot
        be joined, the query continues with the one that it joined last.
        """
        recorded = plan_file.repeated_versions(self._checkpoint)
        backlog = self._in_backlog(progress)
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
            identity = plan_file.read_plan_file(self._checkpoint)
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
        found, used = describe_versions(fresh), describe_versions(kept)
        why = f"{found} cannot be joined, the query continues with {used}: {error}"
        _log.warning("query %r: %s", self.query.name, why)
        self._meter.note(self.query.name, why)

    def _must_join_another(self, running: RunningQuery) -> bool:
        """Whether another version of a result was committed, and can be joined."""
        before = running.prepared.joined.versions
        fresh = self._results.newer_versions(self.query, before)
        if not fresh or (self._record.reads_again and running.prepared.catching_up):
            return False
        try:
            joined = self._results.pin_newest(self.query)
            self._next = self._prepare(joined, catch_up=running.prepared.catching_up)
        except OutageError:  # the version may be fine
            raise
        except FlowcoreError as error:
            self._reject(fresh, before, error)
            return False
        mode = self._next.query.mode
        why = mode.reasons if mode.value != running.prepared.query.mode.value else ()
        self._reason = "; ".join([f"{describe_versions(fresh)} was committed", *why])
        return True

    def _must_catch_up(self, running: RunningQuery, progress: QueryProgress) -> bool:
        if running.prepared.catching_up or not self._in_backlog(progress):
            return False
        self._next = self._prepare(running.prepared.joined, catch_up=True)
        enter = read_thresholds(self._context.settings).enter
        self._reason = f"a partition has over {enter:,} unread records"
        return True

    def _is_quiet(self, running: RunningQuery, progress: QueryProgress) -> bool:
        """Whether records wait for the next batch although no more are available."""
        if self._quiet is None or running.prepared.catching_up:
            return False
        unread = progress.lag or 0
        now_ms = time.monotonic_ns() // 1_000_000
        waits = self._quiet.poll(progress.rows_in + unread, unread=unread, now_ms=now_ms)
        return waits and running.waits

    def _must_follow_added_partitions(self, running: RunningQuery, progress: QueryProgress) -> bool:
        """Whether a source has more partitions than its watermarks follow."""
        self.side_channels = self.side_channels.follow(progress.partitions)
        before, now = running.prepared.side_channels.topics, self.side_channels.topics
        added = sorted(name for name in now if now[name] != before[name])
        if not added:
            return False
        self._next = self._prepare(running.prepared.joined, catch_up=running.prepared.catching_up)
        self._reason = ", ".join(f"topic {one!r} has {now[one].partitions} partitions now" for one in added)
        self._meter.note(self.query.name, self._reason)
        return True

    def _must_change_attributes(self, running: RunningQuery, progress: QueryProgress) -> bool:
        """Whether functions or sinks ask for attributes, and the records after this batch have others."""
        if not self._own_backlog.changes(progress, lagged=running.prepared.side_channels.lags):
            return False
        self._next = self._prepare(running.prepared.joined, catch_up=running.prepared.catching_up)
        self._reason = f"its input is {'backlog' if self._own_backlog.lags else 'live'} now"
        return True

    def _restart(self, before: RunningQuery) -> None:
        if before.ended and has_unfinished_batch(self._checkpoint):  # asked to end before it began to run it
            self._start_again(before)
            return
        ended = time.monotonic()
        progress = self._read_progress()
        self._own_backlog.report(progress, before, starts=before.prepared.reads_histories)
        backlog = self._in_backlog(progress)
        prepared = before.prepared
        has_read_all = not (before.ending or prepared.repeats)
        self._record.reads_again &= prepared.catching_up and not has_read_all
        if self._repeats and not self._record.reads_again:
            self._repeats = False
            self._must_join_another(before)
        if prepared.catching_up:
            self._per_second = (self._rows_in - self._started[0]) / (ended - self._started[1])
        if prepared.reads_histories and has_read_all:
            end_histories(self._checkpoint)
            self._reason = "it has read the histories of its topics"
        if self._next.catching_up != backlog or self._next.reads_histories or prepared.repeats:
            self._next = self._prepare(self._next.joined, catch_up=backlog)
        if prepared.catching_up and not backlog and has_read_all:
            leave = read_thresholds(self._context.settings).leave
            self._reason = f"caught up: no partition has over {leave:,} unread records"
        before.ending = True  # in an outage it cannot be started at once, and this is called again
        before.stop()
        self._start(ended)

    def _start_again(self, failed: RunningQuery, prepared: PreparedQuery | None = None) -> None:
        """Start a query that failed as it was: its batch is repeated with the results that it joined."""
        failed.stop()
        self._next = prepared or failed.prepared
        self._start()

    def _start(self, ended: float | None = None) -> None:
        prepared = self._next
        self._fence.check()  # the checkpoint may be of another process
        identity = self._record.write(prepared)
        self._results.pin(self.query, prepared.joined.versions)  # not before: pins need a plan file
        failpoint("offsets-unlogged")
        self._started = self._rows_in, time.monotonic()
        lags = self._own_backlog.for_sinks(lags=prepared.side_channels.lags)
        self._fence.check()
        self._running = RunningQuery(
            prepared, self._context, identity, self._fence.check, lags=lags, counted=self._counted
        )
        self._fence.watch(self.query.name, self._running.running)
        self._meter.started(
            prepared.query, self._running.running, bounded=prepared.joined.versions,
            watermarks=self._running.watermarks, written=self._running.written, reason=self._reason,
            pause_ms=None if ended is None else round((time.monotonic() - ended) * 1000),
        )  # fmt: skip
        self._reason = ""

    def _in_backlog(self, progress: QueryProgress) -> bool:
        return self.query.catch_up.value != "no" and bool(progress.backlog)

    def _prepare(self, joined: Joined, *, catch_up: bool) -> PreparedQuery:
        """Compile the next start; a batch that it repeats has the partitions that it found at first."""
        settings = self._context.settings
        ended = self._running is None or self._running.ended
        repeated = plan_file.repeated_topics(self._checkpoint) if ended else {}
        before = self.side_channels.before_growth(repeated)
        catch_up = catch_up or (before is not None and self.query.mode.value == "realtime")
        records = batch_records(read_backlog_interval(settings), self._per_second, settings.max_batch_records)
        side_channels = replace(before or self.side_channels, lags=self._own_backlog.lags)
        query, most = decide_joins(self.query, joined.bytes, settings), records if catch_up else None
        return prepare_query(query, self._context, joined, side_channels, most, repeats=before is not None)
