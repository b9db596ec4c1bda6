"""The backlog status of a running query, and its reports to key groups, tagged sinks and functions."""

from __future__ import annotations

from pathlib import Path

from flowcore.metrics.progress import QueryProgress
from flowcore.planner.model import LiveQuery
from flowcore.spark.checkpoint.backlog_status import BacklogStatusWriter
from flowcore.spark.checkpoint.plan_file import repeated_status
from flowcore.spark.run.running_query import RunningQuery
from flowcore.spark.topics.side_channels import SideChannels

__all__ = ["OwnBacklog"]


class OwnBacklog:
    """The backlog status of one query over its starts.

    A change reaches key groups with the next batch, by a source. It reaches functions of chains and tagged
    sinks with the next start, so a query that has them is started again.

    Attributes:
        lags: Whether the records of the next start are backlog, for functions of chains.
        ends: Whether a slice has a buffer that waits for the end of backlog, which a last empty run reports.
    """

    def __init__(self, query: LiveQuery, side_channels: SideChannels, checkpoint: Path) -> None:
        self._query = query
        self._asks = side_channels.reads_attributes
        self._writes = side_channels.writes_watermarks and not self._is_slice
        self._key_groups = BacklogStatusWriter(checkpoint) if side_channels.has_key_groups else None
        # A batch that runs again has the status that it had.
        self._repeated = repeated_status(checkpoint)
        self.lags = bool(self._repeated)
        self.ends = False

    @property
    def _is_slice(self) -> bool:
        return self._query.mode.value == "slice"

    def begin(self, progress: QueryProgress) -> None:
        """Choose the status of the first start."""
        if self._repeated is None:
            self.lags = self._is_slice or bool(progress.backlog)

    def report(self, progress: QueryProgress, running: RunningQuery | None, *, starts: bool = False) -> None:
        """Report to key groups, and to tagged sinks, whether the records of the query are backlog.

        All records of a slice are backlog. This is not reported to sinks.
        """
        backlog = progress.backlog
        if self._is_slice:
            waits = bool(self._query.buffers)
            backlog = starts and progress.lag != 0
            self.ends = backlog and waits
            if not backlog and not waits:
                return
        elif self._writes and running is not None and running.ended:
            running.report_backlog(backlog=self.lags)
        if backlog is not None and self._key_groups is not None:
            self._key_groups.write(backlog=backlog)

    def for_sinks(self, *, lags: bool) -> bool | None:
        """The status that a start writes to tagged sinks, None for none; ``lags`` is that of functions."""
        return lags if self._writes else None

    def changes(self, progress: QueryProgress, *, lagged: bool) -> bool:
        """Take the status, and return whether functions or sinks ask for it and have another one.

        Args:
            lagged: The status of the running start. If the query fails before its next start, it is started
                again with this one.
        """
        if not (self._asks or self._writes):
            return False
        self.lags = self._is_slice or bool(progress.backlog)
        return self.lags != lagged
