"""Timers: which windows are due, when time has come this far?

Asking for the same timer twice is asking once, and memory goes with the timers that are pending: what
was cancelled is swept out once it is more than half. Timers come out by time; where windows have several
at once, ends come last, and otherwise the order is that of asking.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any, NamedTuple

from flowcore.windows.window import TimeWindow

__all__ = ["Timer", "TimerQueue"]

_SWEPT_FROM = 64


class Timer(NamedTuple):
    """One window is due.

    Attributes:
        time_ms: When.
        ends_window: It is forgotten then; if not, its trigger is asked.
        key: Its key.
        window: The window.
    """

    time_ms: int
    ends_window: bool
    key: Any
    window: TimeWindow


class TimerQueue:
    """The pending timers of one clock."""

    __slots__ = ("_asked", "_heap", "_pending")

    def __init__(self) -> None:
        self._heap: list[tuple[int, bool, int, Timer]] = []
        self._pending: dict[Timer, int] = {}
        self._asked = 0

    def add(self, timer: Timer) -> None:
        """Ask for one."""
        if timer not in self._pending:
            self._asked += 1
            self._pending[timer] = self._asked
            heapq.heappush(self._heap, (timer.time_ms, timer.ends_window, self._asked, timer))

    def discard(self, timer: Timer) -> None:
        """Cancel one; nothing happens if there is none."""
        if self._pending.pop(timer, None) is not None and len(self._heap) > _SWEPT_FROM + 2 * len(
            self._pending
        ):
            self._heap = [entry for entry in self._heap if self._pending.get(entry[3]) == entry[2]]
            heapq.heapify(self._heap)

    def next_due(self, now_ms: int) -> Timer | None:
        """Take out the next one that is due at this time, None if there is none."""
        while self._heap and self._heap[0][0] <= now_ms:
            _, _, asked, timer = heapq.heappop(self._heap)
            if self._pending.get(timer) == asked:
                del self._pending[timer]
                return timer
        return None

    @property
    def next_ms(self) -> int | None:
        """When the next one is due, None if none is pending."""
        while self._heap and self._pending.get(self._heap[0][3]) != self._heap[0][2]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def __len__(self) -> int:
        return len(self._pending)

    def __iter__(self) -> Iterator[Timer]:
        """Those that are pending, in order of asking."""
        return iter(self._pending)
