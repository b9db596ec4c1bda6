"""State of keyed processes between two steps, and its rollback.

Plain mutable data; `flowcore.process.codec` writes and reads it. Every kind of state is a *cell* of entries:
one entry for a value, many for lists and maps. With a time to live, entries are in order of expiry.
"""

import copy
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from flowcore.elements import MIN_TIMESTAMP_MS
from flowcore.keyed.timers import TimerQueue

__all__ = ["Cell", "Entry", "ProcessState", "Undo"]


class Entry(NamedTuple):
    """A value, and when it was written, or read where reading counts; 0 without a time to live."""

    value: Any
    used_ms: int


Cell = dict[Any, Entry]
"""The entries of one state of one key; never empty. The only entry of a value is named None."""


@dataclass(slots=True)
class ProcessState:
    """The state of all keys.

    Attributes:
        watermark_ms: The current watermark, at first the smallest timestamp.
        backlog: The records that arrive are backlog.
        cells: The cells of each key that has any, by the state's name.
        expiries: When entries of ``(key, name of the state)`` expire; computed from the cells.
        touched: Keys whose cells or timers may have changed since the last write.
    """

    watermark_ms: int = MIN_TIMESTAMP_MS
    processing_time_ms: int = 0
    backlog: bool = False
    cells: dict[Any, dict[str, Cell]] = field(default_factory=dict)
    event_timers: TimerQueue[Any] = field(default_factory=TimerQueue)
    processing_timers: TimerQueue[Any] = field(default_factory=TimerQueue)
    expiries: TimerQueue[tuple[Any, str]] = field(default_factory=TimerQueue)
    touched: set[Any] = field(default_factory=set)


class Undo:
    """Rolls back what a call of a function has changed.

    Before an isolated call (`flowcore.process.isolation`) accesses something, a copy of it is saved.
    """

    def __init__(self, state: ProcessState) -> None:
        self._state = state
        self._timers: dict[Any, tuple[tuple[int, ...], ...]] = {}
        self._cells: dict[tuple[Any, str], Cell] = {}
        self._expiries: dict[tuple[Any, str], tuple[int, ...]] = {}
        self._copied: set[tuple[Any, str, Any]] = set()

    def save_timers(self, key: Any) -> None:
        """Save the timers of a key that becomes the current one."""
        if key not in self._timers:
            self._timers[key] = tuple(tuple(each.times_of(key)) for each in self._queues)

    def save_cell(self, key: Any, name: str) -> None:
        """Save a state of a key."""
        if (key, name) not in self._cells:
            self._cells[key, name] = dict(self._state.cells.get(key, {}).get(name, {}))
            self._expiries[key, name] = tuple(self._state.expiries.times_of((key, name)))

    def save_value(self, key: Any, name: str, entry: Any) -> None:
        """Save a value that is handed out, since the function may change it in place."""
        self.save_cell(key, name)
        kept = self._cells[key, name].get(entry)
        if kept is not None and (key, name, entry) not in self._copied:
            self._copied.add((key, name, entry))
            self._cells[key, name][entry] = Entry(copy.deepcopy(kept.value), kept.used_ms)

    def roll_back(self) -> None:
        """Restore everything that was saved."""
        for (key, name), cell in self._cells.items():
            cells = self._state.cells.setdefault(key, {})
            cells.pop(name, None)
            if cell:
                cells[name] = cell
            if not cells:
                del self._state.cells[key]
            _set_times(self._state.expiries, (key, name), self._expiries[key, name])
        for key, before in self._timers.items():
            for timers, times in zip(self._queues, before, strict=True):
                _set_times(timers, key, times)

    @property
    def _queues(self) -> tuple[TimerQueue[Any], TimerQueue[Any]]:
        return self._state.event_timers, self._state.processing_timers


def _set_times(timers: TimerQueue[Any], owner: Any, times: tuple[int, ...]) -> None:
    for time_ms in set(timers.times_of(owner)).difference(times):
        timers.discard(owner, time_ms)
    for time_ms in times:
        timers.add(owner, time_ms)
