"""State of keyed processes between two steps.

Plain mutable data; `flowcore.process.codec` writes and reads it. Every kind of state is a *cell* of entries:
one entry for a value, many for lists and maps. With a time to live, entries are in order of expiry.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from flowcore.elements import MIN_TIMESTAMP_MS
from flowcore.keyed.timers import TimerQueue

__all__ = ["Cell", "Entry", "ProcessState"]


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
        clock_ms: The current processing time.
        backlog: The records that arrive are backlog.
        cells: The cells of each key that has any, by the state's name.
        event_timers: Event-time timers of keys.
        processing_timers: Processing-time timers of keys.
        expiries: When entries of ``(key, name of the state)`` expire; computed from the cells.
        touched: Keys whose cells or timers may have changed since the last write.
    """

    watermark_ms: int = MIN_TIMESTAMP_MS
    clock_ms: int = 0
    backlog: bool = False
    cells: dict[Any, dict[str, Cell]] = field(default_factory=dict)
    event_timers: TimerQueue[Any] = field(default_factory=TimerQueue)
    processing_timers: TimerQueue[Any] = field(default_factory=TimerQueue)
    expiries: TimerQueue[tuple[Any, str]] = field(default_factory=TimerQueue)
    touched: set[Any] = field(default_factory=set)
