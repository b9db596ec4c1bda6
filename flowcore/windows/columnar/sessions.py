"""Sessions in columns: merging of those that overlap or touch, and the sessions of a key group.

Sessions merge by column, or in order of arrival. `SessionStore` has them in places that are reused. The
sessions of a key form a linked list: the key leads to the first, and each to the next. So the cost of an
operation on some keys is proportional to the number of their sessions. Only `due` reads all sessions, one
number of each.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from flowcore.elements import MAX_TIMESTAMP_MS
from flowcore.keyed.columns import runs
from flowcore.keyed.key_index import Ints
from flowcore.keyed.timers import rank_key
from flowcore.windows.columnar.accumulators import Accumulator, AccumulatorColumns

__all__ = ["Bools", "InOrderMerge", "SessionStore", "Sessions", "find_runs", "last_of", "merge_in_order"]

Bools = npt.NDArray[np.bool_]
_OWNER, _START, _LAST, _FIRINGS, _ACCUMULATORS = range(5)


@dataclass(frozen=True, slots=True)
class Sessions:
    """Sessions in columns."""

    owner: Ints
    start: Ints
    last: Ints
    firings: Ints
    accumulated: AccumulatorColumns

    def __len__(self) -> int:
        return len(self.owner)

    def take(self, which: Ints | Bools) -> Sessions:
        values = {each: column[which] for each, column in self.accumulated.items()}
        return Sessions(self.owner[which], self.start[which], self.last[which], self.firings[which], values)

    def append(self, more: Sessions) -> Sessions:
        if not len(self):
            return more
        columns = zip(self._columns(), more._columns(), strict=True)
        owner, start, last, firings, *values = map(np.concatenate, columns)
        return Sessions(owner, start, last, firings, dict(zip(self.accumulated, values, strict=True)))

    def merge(self) -> Sessions:
        """Merge the sessions of a key that overlap or touch; return them in order of keys and time."""
        if not len(self):
            return self
        ordered = self.take(np.lexsort((self.start, self.owner)))
        reach = pd.Series(ordered.last).groupby(ordered.owner, sort=False).cummax().to_numpy()[:-1]
        later = ordered.start[1:]
        apart = (ordered.owner[1:] != ordered.owner[:-1]) | ((later > reach) & (later - 1 > reach))
        begins = np.flatnonzero(np.concatenate([[True], apart]))
        values = {each: each.combine.reduceat(column, begins) for each, column in ordered.accumulated.items()}
        last, firings = (np.maximum.reduceat(column, begins) for column in (ordered.last, ordered.firings))
        return Sessions(ordered.owner[begins], ordered.start[begins], last, firings, values)

    def to_rows(self) -> Iterator[list[Any]]:
        """Yield owner, start, last, firings and accumulators of each, as Python numbers."""
        return map(list, zip(*(column.tolist() for column in self._columns()), strict=True))

    def _columns(self) -> Sequence[npt.NDArray[Any]]:
        return self.owner, self.start, self.last, self.firings, *self.accumulated.values()

    @classmethod
    def from_rows(cls, rows: Iterable[Sequence[Any]], accumulators: Sequence[Accumulator]) -> Sessions:
        """Build sessions from the rows of `to_rows`; sums wrap around."""
        columns = list(zip(*rows, strict=True)) or [()] * (_ACCUMULATORS + len(accumulators))
        owner, start, last, firings = (np.array(column, np.int64) for column in columns[:_ACCUMULATORS])
        parts = zip(accumulators, columns[_ACCUMULATORS:], strict=True)
        return cls(owner, start, last, firings, {each: each.to_array(column) for each, column in parts})


@dataclass(frozen=True, slots=True)
class InOrderMerge:
    """The outcome of `merge_in_order`.

    Attributes:
        fired: The sessions that emitted, in order, with their values at that time.
        late: The positions of runs that were added to no session.
    """

    sessions: Sessions
    fired: Sessions
    late: list[int]


def merge_in_order(
    present: Sessions, runs: Sessions, old: Bools, *, watermark_ms: int, ended_ms: int
) -> InOrderMerge:
    """Merge runs of records into sessions, one after the other in order of arrival.

    An *old* record alone makes a session that is already complete. It counts only if it joins a session that
    has not ended, which depends on the records before it; so its key cannot be merged by column.

    Args:
        old: Which runs are a single old record.
        ended_ms: Sessions up to this time have ended.
    """
    accumulators = tuple(present.accumulated)
    combines = [each.combine_numbers for each in accumulators]
    by_owner: dict[int, list[list[Any]]] = {}
    for session in present.take(np.lexsort((present.start, present.owner))).to_rows():
        by_owner.setdefault(session[_OWNER], []).append(session)
    fired: list[list[Any]] = []
    late: list[int] = []
    for place, (new, is_old) in enumerate(zip(runs.to_rows(), old.tolist(), strict=True)):
        own = by_owner.setdefault(new[_OWNER], [])  # by time, and none touches another one
        first = bisect_left(own, new[_START] - 1, key=itemgetter(_LAST))
        touched = slice(first, bisect_right(own, new[_LAST] + 1, lo=first, key=itemgetter(_START)))
        near = own[touched]
        last_ms = max([new[_LAST], *(session[_LAST] for session in near)])
        if is_old and last_ms <= ended_ms:
            late.append(place)
            continue
        for session in near:
            new[_START] = min(new[_START], session[_START])
            new[_FIRINGS] = max(new[_FIRINGS], session[_FIRINGS])
            for position, combine in enumerate(combines, _ACCUMULATORS):
                new[position] = combine(session[position], new[position])
        new[_LAST] = last_ms
        own[touched] = [new]
        if is_old and last_ms <= watermark_ms:
            new[_FIRINGS] += 1
            fired.append(list(new))
    rows = [session for owner in sorted(by_owner) for session in by_owner[owner]]
    return InOrderMerge(Sessions.from_rows(rows, accumulators), Sessions.from_rows(fired, accumulators), late)


def find_runs(codes: Ints, times_ms: Ints, old: Bools, gap_ms: int) -> tuple[Ints, Ints]:
    """Return an order in which the records of one session follow each other, and where each run begins.

    Args:
        old: Records that stay alone, and separate earlier from later records of their key.
    """
    if old.any():
        arrival = np.argsort(codes, kind="stable")
        earlier = np.empty(len(codes), np.int64)
        earlier[arrival] = np.cumsum(old[arrival]) - old[arrival]
        order = np.lexsort((times_ms, old, earlier, codes))
        parted = (np.diff(earlier[order]) != 0) | old[order][1:]
    else:
        order = np.lexsort((times_ms, codes))
        parted = np.zeros(max(len(codes) - 1, 0), np.bool_)
    codes, times_ms = codes[order], times_ms[order]
    pause = times_ms[1:].view(np.uint64) - times_ms[:-1].view(np.uint64)
    begins = (codes[1:] != codes[:-1]) | parted | (pause > np.uint64(gap_ms))
    return order, np.flatnonzero(np.concatenate([[True], begins]))


def last_of(times_ms: Ints, gap_ms: int) -> Ints:
    """Return the last millisecond of sessions whose newest records have these times."""
    end = MAX_TIMESTAMP_MS - (gap_ms - 1)
    return np.where(times_ms >= end, MAX_TIMESTAMP_MS, times_ms + (gap_ms - 1))


_NONE = -1
_MIN_CAPACITY = 64


class SessionStore:
    """Sessions by key."""

    def __init__(self, accumulators: Sequence[Accumulator]) -> None:
        self._first: dict[Any, int] = {}
        self._next, self._start, self._last, self._firings = (np.empty(0, np.int64) for _ in range(4))
        self._used = np.empty(0, np.bool_)
        self._keys = np.empty(0, np.object_)
        self._columns: AccumulatorColumns = {each: np.empty(0, each.dtype) for each in accumulators}
        self._free = np.empty(0, np.int64)

    def keys(self) -> list[Any]:
        return list(self._first)

    def __contains__(self, key: Any) -> bool:
        return key in self._first

    def get(self, keys: Sequence[Any]) -> Sessions:
        """Return the sessions of some keys, key by key; their owners are the keys' positions."""
        return self._read(*self._follow(self._places(self._first.get, keys)))

    def pop(self, keys: Sequence[Any]) -> Sessions:
        """Remove and return the sessions of some keys."""
        places, owner = self._follow(self._places(self._first.pop, keys))
        sessions = self._read(places, owner)
        self._used[places] = False
        self._keys[places] = None
        self._free = np.concatenate([self._free, places])
        return sessions

    def put(self, keys: Sequence[Any], sessions: Sessions) -> None:
        """Add sessions, key by key, of keys that have none."""
        if not len(sessions):
            return
        places, owner = self._reserve(len(sessions)), sessions.owner
        begins = np.flatnonzero(np.concatenate([[True], owner[1:] != owner[:-1]]))
        self._next[places] = np.append(places[1:], _NONE)
        self._next[places[begins[1:] - 1]] = _NONE
        self._start[places], self._last[places] = sessions.start, sessions.last
        self._firings[places], self._used[places] = sessions.firings, True
        for each, column in self._columns.items():
            column[places] = sessions.accumulated[each]
        self._keys[places] = np.fromiter((keys[number] for number in owner.tolist()), np.object_, len(owner))
        firsts = (keys[number] for number in owner[begins].tolist())
        self._first.update(zip(firsts, places[begins].tolist(), strict=True))

    def due(self, after_ms: int, through_ms: int, ended_ms: int) -> list[Any]:
        """Return the keys of sessions that end in (after_ms, through_ms], or not after ``ended_ms``.

        They are in the order of these ends, at one end in an order that a restart does not change.
        """
        last = self._last
        due = self._used & (((last > after_ms) & (last <= through_ms)) | (last <= ended_ms))
        places = np.flatnonzero(due)
        places = places[np.argsort(last[places], kind="stable")]
        keys = self._keys[places].tolist()
        for begin, end in runs(last[places]):
            if end - begin > 1:
                keys[begin:end] = sorted(keys[begin:end], key=rank_key)
        return list(dict.fromkeys(keys))

    def _places(self, find: Any, keys: Sequence[Any]) -> Ints:
        return np.fromiter(map(find, keys, repeat(_NONE)), np.int64, len(keys))

    def _follow(self, first: Ints) -> tuple[Ints, Ints]:
        """Return the places in the lists that begin at these places, and for each the number of its list."""
        (owner,) = np.nonzero(first >= 0)
        current = first[owner]
        places, owners = [current], [owner]
        while len(current):
            current = self._next[current]
            more = current >= 0
            current, owner = current[more], owner[more]
            places.append(current)
            owners.append(owner)
        order = np.argsort(np.concatenate(owners), kind="stable")
        return np.concatenate(places)[order], np.concatenate(owners)[order]

    def _read(self, places: Ints, owner: Ints) -> Sessions:
        values = {each: column[places] for each, column in self._columns.items()}
        return Sessions(owner, self._start[places], self._last[places], self._firings[places], values)

    def _reserve(self, count: int) -> Ints:
        lacking = count - len(self._free)
        if lacking > 0:
            self._grow(max(lacking, len(self._used), _MIN_CAPACITY))
        places, self._free = self._free[:count], self._free[count:]
        return places

    def _grow(self, by: int) -> None:
        before = len(self._used)
        self._free = np.concatenate([self._free, np.arange(before, before + by)])
        for name in ("_next", "_start", "_last", "_firings", "_used", "_keys"):
            setattr(self, name, _extend(getattr(self, name), by))
        self._columns = {each: _extend(column, by) for each, column in self._columns.items()}


def _extend(column: Any, by: int) -> Any:
    return np.concatenate([column, np.zeros(by, column.dtype)])
