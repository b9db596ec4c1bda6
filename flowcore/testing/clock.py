"""A manual clock for tests."""

from __future__ import annotations

from datetime import timedelta

from flowcore.durations import MILLISECOND

__all__ = ["ManualClock"]


class ManualClock:
    """A clock that only moves when a test moves it.

    >>> clock = ManualClock()
    >>> clock.advance(timedelta(seconds=2))
    2000
    """

    def __init__(self, now_ms: int = 0) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        """Return the time."""
        return self.now_ms

    def move_to(self, now_ms: int) -> int:
        """Set the time and return it."""
        self.now_ms = now_ms
        return now_ms

    def advance(self, length: timedelta) -> int:
        """Advance the time and return it."""
        return self.move_to(self.now_ms + length // MILLISECOND)
