"""Pending timers of one time domain, as a heap.

Registering the same timer twice has no effect. A poll costs time for the timers that are due, however many
are pending. Cancelled timers are swept out once they are more than half of the heap.
"""

import heapq
from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Any, Generic, TypeVar

from flowcore.keyed.plain import encode_json, to_plain

__all__ = ["TimerQueue", "rank_key"]

T = TypeVar("T", bound=Hashable)
_Entry = tuple[int, bool, int, T]
"""The time of a timer, whether it fires last, the number of its registration, and its owner."""
_SWEEP_FROM = 64


def rank_key(key: Any) -> bytes:
    """The place of a key among others, which a restart does not change: its encoded form."""
    return encode_json(to_plain(key))


class TimerQueue(Generic[T]):
    """Pending timers of owners, for instance keys or windows.

    Timers fire by time, those of the same time by the rank of their owners, not by registration: a state that
    was restored fires them as the one that was written. Timers registered with ``last`` fire after the others
    of their time, and timers that are registered while those of their time fire after these.

    Args:
        rank: The place of an owner among others; no two owners have the same.
    """

    __slots__ = ("_heap", "_owners", "_pending", "_rank", "_registered", "_tied")

    def __init__(self, rank: Callable[[T], Any] = rank_key) -> None:
        self._rank = rank
        self._heap: list[_Entry[T]] = []
        self._tied: list[_Entry[T]] = []
        """Timers of one time that fire now, the next one last; they are not in the heap."""
        self._owners: dict[T, dict[int, int]] = {}
        """For each owner its times, and for each time the number of its registration."""
        self._registered = 0
        self._pending = 0

    def add(self, owner: T, time_ms: int, *, last: bool = False) -> None:
        """Register a timer."""
        times = self._owners.setdefault(owner, {})
        if time_ms not in times:
            self._registered += 1
            self._pending += 1
            times[time_ms] = self._registered
            heapq.heappush(self._heap, (time_ms, last, self._registered, owner))

    def discard(self, owner: T, time_ms: int) -> None:
        """Cancel a timer, if it is pending."""
        times = self._owners.get(owner, {})
        if time_ms not in times:
            return
        self._remove(owner, times, time_ms)
        if len(self._heap) > _SWEEP_FROM + 2 * self._pending:
            self._heap = [entry for entry in self._heap if self.times_of(entry[3]).get(entry[0]) == entry[2]]
            heapq.heapify(self._heap)

    def discard_all(self, owner: T) -> None:
        """Cancel all timers of an owner."""
        for time_ms in tuple(self.times_of(owner)):
            self.discard(owner, time_ms)

    def next_due(self, now_ms: int) -> tuple[T, int] | None:
        """Remove the next timer that is due at this time and return its owner and time; None if none is."""
        while (first := self._pop(now_ms)) is not None:
            time_ms, _, registered, owner = first
            times = self._owners.get(owner, {})
            if times.get(time_ms) == registered:
                self._remove(owner, times, time_ms)
                return owner, time_ms
        return None

    @property
    def next_ms(self) -> int | None:
        """The earliest time that is pending; None if none is."""
        while self._tied:
            heapq.heappush(self._heap, self._tied.pop())
        while self._heap and self.times_of(self._heap[0][3]).get(self._heap[0][0]) != self._heap[0][2]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def times_of(self, owner: T) -> Mapping[int, int]:
        """The pending times of an owner, in order of registration."""
        return self._owners.get(owner, {})

    @property
    def owners(self) -> Mapping[T, Collection[int]]:
        """Every owner with pending timers, and their times."""
        return self._owners

    def __len__(self) -> int:
        return self._pending

    def _pop(self, now_ms: int) -> _Entry[T] | None:
        """Remove the first timer that is due, which may have been cancelled."""
        heap, tied = self._heap, self._tied
        if tied and not (heap and heap[0][:2] < tied[-1][:2]):
            return tied.pop() if tied[-1][0] <= now_ms else None
        if not heap or heap[0][0] > now_ms:
            return None
        first = heapq.heappop(heap)
        if tied or not heap or heap[0][:2] != first[:2]:
            return first
        tied.append(first)
        while heap and heap[0][:2] == first[:2]:
            tied.append(heapq.heappop(heap))
        tied.sort(key=lambda each: self._rank(each[3]), reverse=True)
        return tied.pop()

    def _remove(self, owner: T, times: dict[int, int], time_ms: int) -> None:
        del times[time_ms]
        if not times:
            del self._owners[owner]
        self._pending -= 1
