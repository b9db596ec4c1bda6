"""The half-open interval of time that groups records, and the merging of such windows of sessions.

A window is cut off at the ends of signed 64-bit time. Times are integer milliseconds since the epoch, UTC.

A session grows, so its window changes. Its content is stored under its *state window*, the window with which
it began, so that growing does not rewrite the content. State maps live windows to state windows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flowcore.elements import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from flowcore.errors import InvalidWindowError

__all__ = ["ALL_TIME", "Merge", "TimeWindow", "apply_merge", "plan_merge", "saturated"]


@dataclass(frozen=True, slots=True, order=True)
class TimeWindow:
    """Times from ``start_ms`` (inside) up to ``end_ms`` (outside); either may be negative.

    A session with gap zero starts where it ends: it contains no time, but can contain records.

    Args:
        end_ms: The millisecond after the last; ``MAX_TIMESTAMP_MS + 1`` for a window that never ends.

    Raises:
        InvalidWindowError: The window ends before it starts.
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


ALL_TIME = TimeWindow(MIN_TIMESTAMP_MS, MAX_TIMESTAMP_MS + 1)
"""The window of all times."""


def saturated(time_ms: int) -> int:
    """Limit a time to 64 bits."""
    return min(max(time_ms, MIN_TIMESTAMP_MS), MAX_TIMESTAMP_MS)


@dataclass(frozen=True, slots=True)
class Merge:
    """The effect of adding a window.

    Attributes:
        window: The window that contains it afterwards.
        state: The state window of that.
        merged: Live windows that this one replaces; none if it stands alone or changes nothing.
        merged_states: State windows whose content moves to ``state``.
    """

    window: TimeWindow
    state: TimeWindow
    merged: tuple[TimeWindow, ...] = ()
    merged_states: tuple[TimeWindow, ...] = ()


def plan_merge(live: Mapping[TimeWindow, TimeWindow], new: TimeWindow, *, lazy_below: int = 2) -> Merge:
    """Return the effect of a new window without applying it.

    Args:
        live: The state window of each live window.
        lazy_below: Groups of fewer windows are not merged.

    >>> plan_merge({TimeWindow(0, 5): TimeWindow(0, 4)}, TimeWindow(5, 9)).state
    TimeWindow(start_ms=0, end_ms=4)
    """
    window, members = new, set[TimeWindow]()
    while touched := {other for other in live if other not in members and other.touches(window)}:
        for other in touched:
            window = window.cover(other)
        members |= touched
    if len(members | {new}) < lazy_below:
        return Merge(new, live.get(new, new))
    if members == {window}:
        return Merge(window, live[window])
    if not members:
        return Merge(new, new)
    merged = tuple(sorted(members))
    states = tuple(live[member] for member in merged)
    return Merge(window, states[0], merged, states[1:])


def apply_merge(live: dict[TimeWindow, TimeWindow], merge: Merge) -> None:
    for window in merge.merged:
        del live[window]
    live[merge.window] = merge.state
