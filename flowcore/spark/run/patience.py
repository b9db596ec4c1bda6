"""When a query that failed is tried again: in an outage without end, after a mishap three times."""

from __future__ import annotations

import time
from collections.abc import Callable

from flowcore.errors import OutageError
from flowcore.metrics.health import show_seconds

__all__ = ["Patience"]

_FIRST_S = 1.0
_LONGEST_S = 30.0
_SLOW_STARTS = 3
"""The most starts without a committed batch that fail by a mishap, as since a process was slow."""


class Patience:
    """The attempts of one query to continue: after a second, then after twice as long, at most half a minute.

    Args:
        report: Gets a text when an outage begins, and when it has ended.
        clock: Seconds that never go back.
    """

    def __init__(self, report: Callable[[str], object], clock: Callable[[], float] = time.monotonic) -> None:
        self._report = report
        self._clock = clock
        self._began_s: float | None = None
        self._batches = 0
        self._wait_s = 0.0
        self._due_s = 0.0
        self._slow_starts: dict[object, int] = {}

    @property
    def is_due(self) -> bool:
        """Whether the next attempt may be made; True without an outage."""
        return self._began_s is None or self._clock() >= self._due_s

    def wait(self, outage: OutageError, batches: int) -> None:
        """Wait after an attempt that failed; ``batches`` is the number of committed batches."""
        now_s = self._clock()
        self._wait_s = _FIRST_S if self._began_s is None else min(self._wait_s * 2, _LONGEST_S)
        self._due_s = now_s + self._wait_s
        if self._began_s is None:
            self._began_s, self._batches = now_s, batches
            self._report(f"it waits, and continues by itself: {outage}")

    def allows(self, slow: object, batch: int) -> bool:
        """Whether the query may be started again after a start that was slow; True for one that was added.

        Args:
            batch: The number of the batch that the next start runs first.
        """
        others = [each for each, before in self._slow_starts.items() if before == batch]
        return slow in self._slow_starts or len(others) < _SLOW_STARTS

    def add(self, slow: object, batch: int) -> None:
        """Add a start that was slow. It counts once, also if an outage delays the next start."""
        since = {each: before for each, before in self._slow_starts.items() if before == batch}
        self._slow_starts = {**since, slow: batch}  # another thread may be reading the dict before

    def progress(self, batches: int) -> None:
        """Take the number of committed batches: if it has grown, the outage is over."""
        if self._began_s is not None and batches > self._batches:
            self._report(f"it continues after an outage of {show_seconds(self._clock() - self._began_s)}")
            self._began_s = None
