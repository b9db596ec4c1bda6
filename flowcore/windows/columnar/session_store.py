"""All sessions of a key group, by key and by time.

Sessions are in columns, in places that are reused. The sessions of a key form a linked list: the key leads to
the first, and each to the next. So an operation on some keys costs as much as these keys have sessions. Only
`due` looks at all sessions, at one number of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any

import numpy as np

from flowcore.keyed.key_index import Ints
from flowcore.windows.columnar.accumulators import Accumulator, AccumulatorColumns
from flowcore.windows.columnar.sessions import Sessions

__all__ = ["SessionStore"]

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
        """Return the keys that have sessions."""
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
        """Return the keys of sessions that end in (after_ms, through_ms], or not after ``ended_ms``."""
        last = self._last
        due = self._used & (((last > after_ms) & (last <= through_ms)) | (last <= ended_ms))
        places = np.flatnonzero(due)
        places = places[np.argsort(last[places], kind="stable")]
        return list(dict.fromkeys(self._keys[places].tolist()))

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
