"""Held sessions: all sessions of a key group, found by key and by time.

They are in columns, in places that are used again. Those of a key are a chain: its key leads to the first,
and each to the next. So what is done to some keys costs what these keys have, whatever else is held; only the
advance of event time looks at all, at one number of each.
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
_SMALLEST = 64


class SessionStore:
    """Sessions by key.

    Args:
        fields: What is kept of each.
    """

    def __init__(self, fields: Sequence[Accumulator]) -> None:
        self._first: dict[Any, int] = {}
        self._next, self._start, self._last, self._firings = (np.empty(0, np.int64) for _ in range(4))
        self._used = np.empty(0, np.bool_)
        self._keys = np.empty(0, np.object_)
        self._columns: AccumulatorColumns = {field: np.empty(0, field.dtype) for field in fields}
        self._free = np.empty(0, np.int64)

    def keys(self) -> list[Any]:
        """The keys that have sessions."""
        return list(self._first)

    def __contains__(self, key: Any) -> bool:
        return key in self._first

    def of(self, keys: Sequence[Any]) -> Sessions:
        """The sessions of some keys, key by key; their owners are the keys' positions."""
        return self._read(*self._chains(self._places(self._first.get, keys)))

    def take(self, keys: Sequence[Any]) -> Sessions:
        """The same, and they are no longer held."""
        places, owner = self._chains(self._places(self._first.pop, keys))
        found = self._read(places, owner)
        self._used[places] = False
        self._keys[places] = None
        self._free = np.concatenate([self._free, places])
        return found

    def put(self, keys: Sequence[Any], sessions: Sessions) -> None:
        """Hold sessions of keys that have none, key by key."""
        if not len(sessions):
            return
        places, owner = self._reserved(len(sessions)), sessions.owner
        begins = np.flatnonzero(np.concatenate([[True], owner[1:] != owner[:-1]]))
        self._next[places] = np.append(places[1:], _NONE)
        self._next[places[begins[1:] - 1]] = _NONE
        self._start[places], self._last[places] = sessions.start, sessions.last
        self._firings[places], self._used[places] = sessions.firings, True
        for field, column in self._columns.items():
            column[places] = sessions.kept[field]
        self._keys[places] = np.fromiter((keys[number] for number in owner.tolist()), np.object_, len(owner))
        firsts = (keys[number] for number in owner[begins].tolist())
        self._first.update(zip(firsts, places[begins].tolist(), strict=True))

    def due(self, after_ms: int, through_ms: int, ended_ms: int) -> list[Any]:
        """The keys with sessions whose last millisecond is in a span, or not after another time.

        Args:
            after_ms: Before the span.
            through_ms: Its last millisecond.
            ended_ms: The other time.
        """
        last = self._last
        due = self._used & (((last > after_ms) & (last <= through_ms)) | (last <= ended_ms))
        places = np.flatnonzero(due)
        places = places[np.argsort(last[places], kind="stable")]
        return list(dict.fromkeys(self._keys[places].tolist()))

    def _places(self, find: Any, keys: Sequence[Any]) -> Ints:
        return np.fromiter(map(find, keys, repeat(_NONE)), np.int64, len(keys))

    def _chains(self, first: Ints) -> tuple[Ints, Ints]:
        """The places of all that these lead to, and of each which of them leads to it."""
        (owner,) = np.nonzero(first >= 0)
        at = first[owner]
        places, owners = [at], [owner]
        while len(at):
            at = self._next[at]
            on = at >= 0
            at, owner = at[on], owner[on]
            places.append(at)
            owners.append(owner)
        order = np.argsort(np.concatenate(owners), kind="stable")
        return np.concatenate(places)[order], np.concatenate(owners)[order]

    def _read(self, places: Ints, owner: Ints) -> Sessions:
        kept = {field: column[places] for field, column in self._columns.items()}
        return Sessions(owner, self._start[places], self._last[places], self._firings[places], kept)

    def _reserved(self, count: int) -> Ints:
        lacking = count - len(self._free)
        if lacking > 0:
            self._grow(max(lacking, len(self._used), _SMALLEST))
        places, self._free = self._free[:count], self._free[count:]
        return places

    def _grow(self, by: int) -> None:
        before = len(self._used)
        self._free = np.concatenate([self._free, np.arange(before, before + by)])
        for name in ("_next", "_start", "_last", "_firings", "_used", "_keys"):
            setattr(self, name, _longer(getattr(self, name), by))
        self._columns = {field: _longer(column, by) for field, column in self._columns.items()}


def _longer(column: Any, by: int) -> Any:
    return np.concatenate([column, np.zeros(by, column.dtype)])
