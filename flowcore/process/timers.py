"""Timers of keys: who is due, when time has come this far?

Asking for the same time twice is asking once. Memory goes with the timers that are pending: what was
cancelled is swept out once it is more than half. A look costs what is due, however many are pending.
Timers come out by time, and those of one time in the order of asking.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Hashable, Mapping
from typing import Any

__all__ = ["KeyTimers"]

_SWEPT_FROM = 64


class KeyTimers:
    """The pending timers of one clock."""

    __slots__ = ("_asked", "_heap", "_pending", "_times")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Hashable]] = []
        self._times: dict[Any, set[int]] = {}
        self._asked = 0
        self._pending = 0

    def add(self, key: Any, time_ms: int) -> None:
        """Ask for one."""
        times = self._times.setdefault(key, set())
        if time_ms not in times:
            times.add(time_ms)
            self._asked += 1
            self._pending += 1
            heapq.heappush(self._heap, (time_ms, self._asked, key))

    def discard(self, key: Any, time_ms: int) -> None:
        """Cancel one; nothing happens if there is none."""
        if self._remove(key, time_ms) and len(self._heap) > _SWEPT_FROM + 2 * self._pending:
            self._heap = [entry for entry in self._heap if entry[0] in self._times.get(entry[2], ())]
            heapq.heapify(self._heap)

    def next_due(self, now_ms: int) -> tuple[Any, int] | None:
        """Take out the next one that is due at this time, ``(key, time)``, None if there is none."""
        while self._heap and self._heap[0][0] <= now_ms:
            time_ms, _, key = heapq.heappop(self._heap)
            if self._remove(key, time_ms):
                return key, time_ms
        return None

    def of(self, key: Any) -> Collection[int]:
        """The times that are pending for a key."""
        return self._times.get(key, ())

    @property
    def next_ms(self) -> int | None:
        """The earliest time that is pending, None if none is."""
        while self._heap and self._heap[0][0] not in self._times.get(self._heap[0][2], ()):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    @property
    def keys(self) -> Mapping[Any, Collection[int]]:
        """Every key with timers, and their times."""
        return self._times

    def __len__(self) -> int:
        return self._pending

    def _remove(self, key: Any, time_ms: int) -> bool:
        times = self._times.get(key)
        if times is None or time_ms not in times:
            return False
        times.remove(time_ms)
        if not times:
            del self._times[key]
        self._pending -= 1
        return True
