"""A clock that stands still until a test moves it."""

from __future__ import annotations

from datetime import timedelta

from flowcore.durations import MILLISECOND

__all__ = ["ManualClock"]


class ManualClock:
    """Milliseconds that pass when they are told to.

    Args:
        now_ms: Where it starts.

    >>> clock = ManualClock()
    >>> clock.advance(timedelta(seconds=2))
    2000
    """

    def __init__(self, now_ms: int = 0) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        """The time."""
        return self.now_ms

    def move_to(self, now_ms: int) -> int:
        """Set it, and say what it shows."""
        self.now_ms = now_ms
        return now_ms

    def advance(self, length: timedelta) -> int:
        """Let time pass, and say what it shows then."""
        return self.move_to(self.now_ms + length // MILLISECOND)
