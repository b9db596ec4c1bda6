"""When a query is tried again in an outage, without end."""

from __future__ import annotations

import time
from collections.abc import Callable

from flowcore.errors import OutageError
from flowcore.metrics.health import show_seconds

__all__ = ["Patience"]

_FIRST_S = 1.0
_LONGEST_S = 30.0


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

    def progress(self, batches: int) -> None:
        """Take the number of committed batches: if it has grown, the outage is over."""
        if self._began_s is not None and batches > self._batches:
            self._report(f"it continues after an outage of {show_seconds(self._clock() - self._began_s)}")
            self._began_s = None
