"""The half-open interval of time that groups records.

A window is cut off at the ends of signed 64-bit time. Times are integer milliseconds since the epoch, UTC.
"""

from __future__ import annotations

from dataclasses import dataclass

from flowcore.elements import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from flowcore.errors import InvalidWindowError

__all__ = ["ALL_TIME", "TimeWindow", "saturated"]


@dataclass(frozen=True, slots=True, order=True)
class TimeWindow:
    """Times from ``start_ms`` (inside) up to ``end_ms`` (outside); either may be negative.

    A session with gap zero starts where it ends: it contains no time, but can contain records.

    Args:
        end_ms: The millisecond after the last; ``MAX_TIMESTAMP_MS + 1`` for a window that never ends.

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
        """Return the part of a window that is inside 64-bit time.

        >>> TimeWindow.within_time(MAX_TIMESTAMP_MS - 5, MAX_TIMESTAMP_MS + 100).last_ms == MAX_TIMESTAMP_MS
        True
        """
        return cls(
            min(max(start_ms, MIN_TIMESTAMP_MS), MAX_TIMESTAMP_MS),
            min(max(end_ms, MIN_TIMESTAMP_MS), MAX_TIMESTAMP_MS + 1),
        )

    @property
    def last_ms(self) -> int:
        """The last millisecond; the window is complete once the watermark reaches it."""
        return max(self.end_ms - 1, MIN_TIMESTAMP_MS)

    def touches(self, other: TimeWindow) -> bool:
        """Whether they overlap or one starts where the other ends."""
        return self.start_ms <= other.end_ms and other.start_ms <= self.end_ms

    def cover(self, other: TimeWindow) -> TimeWindow:
        """Return the smallest window that contains both."""
        return TimeWindow(min(self.start_ms, other.start_ms), max(self.end_ms, other.end_ms))

    def __contains__(self, timestamp_ms: int) -> bool:
        return self.start_ms <= timestamp_ms < self.end_ms


ALL_TIME = TimeWindow(MIN_TIMESTAMP_MS, MAX_TIMESTAMP_MS + 1)
"""The window of all times."""


def saturated(time_ms: int) -> int:
    """Limit a time to 64 bits."""
    return min(max(time_ms, MIN_TIMESTAMP_MS), MAX_TIMESTAMP_MS)
