"""Undo: what has a call of a function changed of states and timers, and how is that taken back?

Noted only where a call may be taken back (`flowcore.process.isolation`): a copy of what it looks at, before
it looks at it. A timer that was cancelled and is put back comes behind others of its time.
"""

from __future__ import annotations

import copy
from typing import Any

from flowcore.keyed.timers import TimerQueue
from flowcore.process.state import Cell, Entry, ProcessState

__all__ = ["Undo"]


class Undo:
    """What a call may have changed.

    Args:
        state: Of all keys.
    """

    def __init__(self, state: ProcessState) -> None:
        self._state = state
        self._timers: dict[Any, tuple[tuple[int, ...], ...]] = {}
        self._cells: dict[tuple[Any, str], Cell] = {}
        self._expiries: dict[tuple[Any, str], tuple[int, ...]] = {}
        self._copied: set[tuple[Any, str, Any]] = set()

    def key(self, key: Any) -> None:
        """A key is about to be at hand."""
        if key not in self._timers:
            self._timers[key] = tuple(tuple(each.times_of(key)) for each in self._clocks)

    def cell(self, key: Any, name: str) -> None:
        """A state of a key is about to be looked into."""
        if (key, name) not in self._cells:
            self._cells[key, name] = dict(self._state.cells.get(key, {}).get(name, {}))
            self._expiries[key, name] = tuple(self._state.expiries.times_of((key, name)))

    def value(self, key: Any, name: str, entry: Any) -> None:
        """A value is about to be handed out, and may be changed in place."""
        self.cell(key, name)
        kept = self._cells[key, name].get(entry)
        if kept is not None and (key, name, entry) not in self._copied:
            self._copied.add((key, name, entry))
            self._cells[key, name][entry] = Entry(copy.deepcopy(kept.value), kept.used_ms)

    def roll_back(self) -> None:
        """Let everything be as it was."""
        for (key, name), cell in self._cells.items():
            cells = self._state.cells.setdefault(key, {})
            cells.pop(name, None)
            if cell:
                cells[name] = cell
            if not cells:
                del self._state.cells[key]
            _let_be(self._state.expiries, (key, name), self._expiries[key, name])
        for key, before in self._timers.items():
            for timers, times in zip(self._clocks, before, strict=True):
                _let_be(timers, key, times)

    @property
    def _clocks(self) -> tuple[TimerQueue[Any], TimerQueue[Any]]:
        return self._state.event_timers, self._state.processing_timers


def _let_be(timers: TimerQueue[Any], key: Any, times: tuple[int, ...]) -> None:
    for time_ms in set(timers.times_of(key)).difference(times):
        timers.discard(key, time_ms)
    for time_ms in times:
        timers.add(key, time_ms)
