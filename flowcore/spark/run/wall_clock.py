"""Detect that the machine's clock was set back.

Spark begins the next batch of a query with an interval at a time of that clock. If the clock is set back by
an hour, the query does nothing for an hour.
"""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["WallClock"]

_LEAST_S = 1.0
"""A query may wait this much too long."""


class WallClock:
    """The machine's clock, compared with one that is never set.

    Args:
        wall: Seconds of the machine's clock.
        steady: Seconds of the clock that is never set.

    >>> times = iter((1000, 0, 5000, 1, 4000, 2))  # set ahead after a second, and back after another one
    >>> clock = WallClock(lambda: next(times), lambda: next(times))
    >>> clock.poll(), clock.poll()
    (False, True)
    """

    def __init__(
        self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic
    ) -> None:
        self._wall = wall
        self._steady = steady
        self._most_s = self._lead_s()

    def poll(self) -> bool:
        """Whether the machine's clock was set back since the start, and not set ahead again."""
        lead_s = self._lead_s()
        self._most_s = max(self._most_s, lead_s)
        return self._most_s - lead_s > _LEAST_S

    def _lead_s(self) -> float:
        return self._wall() - self._steady()
