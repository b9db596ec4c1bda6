"""The half-open stretch of time that records are grouped by.

Windows stay inside signed 64-bit time: one that would reach over an end of it ends there. Times are
integer milliseconds since the epoch, UTC.
"""

from __future__ import annotations

from dataclasses import dataclass

from flowcore.elements import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from flowcore.errors import InvalidWindowError

__all__ = ["ALL_TIME", "TimeWindow", "saturated"]


@dataclass(frozen=True, slots=True, order=True)
class TimeWindow:
    """Times from ``start_ms`` (inside) up to ``end_ms`` (outside); either may be negative.

    A window that starts where it ends holds no time, and still holds the records that were put into it:
    a session of gap zero is one.

    Args:
        start_ms: The first millisecond.
        end_ms: One after the last; ``MAX_TIMESTAMP_MS + 1`` for a window that never ends.

    Raises:
        InvalidWindowError: It ends before it starts.
    """

    start_ms: int
    end_ms: int

    def __post_init__(self) -> None:
        if self.end_ms < self.start_ms:
            msg = (
                f"window end_ms={self.end_ms} is before start_ms={self.start_ms}: no record could be in it; "
                "pass end_ms >= start_ms"
            )
            raise InvalidWindowError(msg)

    @classmethod
    def within_time(cls, start_ms: int, end_ms: int) -> TimeWindow:
        """The part of a window that is inside 64-bit time.

        >>> TimeWindow.within_time(MAX_TIMESTAMP_MS - 5, MAX_TIMESTAMP_MS + 100).last_ms == MAX_TIMESTAMP_MS
        True
        """
        return cls(
            min(max(start_ms, MIN_TIMESTAMP_MS), MAX_TIMESTAMP_MS),
            min(max(end_ms, MIN_TIMESTAMP_MS), MAX_TIMESTAMP_MS + 1),
        )

    @property
    def last_ms(self) -> int:
        """Greatest time inside; the window is complete once the watermark reaches it."""
        return max(self.end_ms - 1, MIN_TIMESTAMP_MS)

    def touches(self, other: TimeWindow) -> bool:
        """They overlap, or one begins where the other ends."""
        return self.start_ms <= other.end_ms and other.start_ms <= self.end_ms

    def cover(self, other: TimeWindow) -> TimeWindow:
        """The smallest window that holds both."""
        return TimeWindow(min(self.start_ms, other.start_ms), max(self.end_ms, other.end_ms))

    def __contains__(self, timestamp_ms: int) -> bool:
        return self.start_ms <= timestamp_ms < self.end_ms


ALL_TIME = TimeWindow(MIN_TIMESTAMP_MS, MAX_TIMESTAMP_MS + 1)
"""The window of everything."""


def saturated(time_ms: int) -> int:
    """A time, or the end of 64-bit time that it is beyond."""
    return min(max(time_ms, MIN_TIMESTAMP_MS), MAX_TIMESTAMP_MS)
