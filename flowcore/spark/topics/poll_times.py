"""When a query's watermarks are polled, and up to which time its silent partitions are known to be silent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from flowcore.durations import MILLISECOND

__all__ = ["ReadTime", "has_read_all", "is_due", "poll_interval_s"]

_SHORTEST_S, _LONGEST_S = 0.02, 1.0
_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00Z")


def poll_interval_s(interval: timedelta) -> float:
    """Seconds between two polls of a query's reports, of which Spark keeps the last hundred.

    >>> [poll_interval_s(timedelta(milliseconds=ms)) for ms in (0, 200, 60_000)]
    [0.02, 0.2, 1.0]
    """
    return min(max(interval.total_seconds(), _SHORTEST_S), _LONGEST_S)


def is_due(now_ms: int, polled_ms: int, interval_ms: int) -> bool:
    """Whether watermarks are polled now; a clock that was set back does not delay that.

    >>> [is_due(now_ms, 1_000, 200) for now_ms in (1_100, 1_200, 500)]
    [False, True, True]
    """
    return not polled_ms <= now_ms < polled_ms + interval_ms


def has_read_all(running: StreamingQuery) -> bool:
    """Whether a query waits and its last trigger has found nothing to read."""
    status = running.status
    return not status["isTriggerActive"] and not status["isDataAvailable"]


class ReadTime:
    """The time up to which a query has read what had arrived: at the start of its last trigger.

    Time-outs of silent partitions count up to it. What arrives while a batch runs, or before the next
    trigger, is unread, so a partition may have records although none of them was seen.

    Attributes:
        pause_ms: The time between two triggers.
    """

    def __init__(self, now_ms: int) -> None:
        self.pause_ms = 0
        self._read_ms = now_ms
        self._report = ""

    def advance(self, now_ms: int, reports: Sequence[Mapping[str, Any]], *, waits: bool) -> int:
        """Return the time up to which everything is read.

        Args:
            reports: Spark's reports of triggers, oldest first.
            waits: The last trigger has found nothing to read, and the next one has not begun.
        """
        known_ms = [now_ms - self.pause_ms] if waits else []
        if reports and reports[-1]["timestamp"] != self._report:
            self._report = reports[-1]["timestamp"]
            known_ms.append((datetime.fromisoformat(self._report) - _EPOCH) // MILLISECOND)
        if known_ms:
            time_ms = min(max(known_ms), now_ms)  # a clock may go back
            if time_ms > self._read_ms or now_ms < self._read_ms:
                self._read_ms = time_ms
        return self._read_ms
