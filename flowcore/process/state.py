"""State: what keyed processes have to remember between two steps.

Plain mutable data; `flowcore.process.codec` writes and reads it. All kinds of state are kept in the same
way: a *cell* of entries, one for a value, many for lists and maps. With a time to live, entries stand in
the order in which they expire.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from flowcore.elements import MIN_TIMESTAMP_MS
from flowcore.keyed.timers import TimerQueue

__all__ = ["Cell", "Entry", "ProcessState"]


class Entry(NamedTuple):
    """One value, and when it was written, or read where that counts too; 0 without a time to live."""

    value: Any
    used_ms: int


Cell = dict[Any, Entry]
"""The entries of one state of one key; never empty. A value's only entry has the name None."""


@dataclass(slots=True)
class ProcessState:
    """What is kept of all keys.

    Attributes:
        watermark_ms: How far event time has come; the smallest timestamp if that is not known yet.
        clock_ms: Where the clock was last.
        backlog: The records that come are history.
        cells: The cells of each key that has any, by the state's name.
        event_timers: Timers by the watermark.
        processing_timers: Timers by the clock.
        expiries: When to look for expired entries, of ``(key, name of the state)``; follows from the rest.
        touched: Keys whose cells or timers may have changed; whoever writes them down empties it.
    """

    watermark_ms: int = MIN_TIMESTAMP_MS
    clock_ms: int = 0
    backlog: bool = False
    cells: dict[Any, dict[str, Cell]] = field(default_factory=dict)
    event_timers: TimerQueue[Any] = field(default_factory=TimerQueue)
    processing_timers: TimerQueue[Any] = field(default_factory=TimerQueue)
    expiries: TimerQueue[tuple[Any, str]] = field(default_factory=TimerQueue)
    touched: set[Any] = field(default_factory=set)
