"""State: what windows have to remember between two steps.

Plain mutable data; `flowcore.windows.codec` writes and reads it, and only the operator changes it. The
timer queues are made from the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from flowcore.elements import MIN_TIMESTAMP_MS
from flowcore.keyed.timers import TimerQueue
from flowcore.windows.contents import Content
from flowcore.windows.window import TimeWindow

__all__ = ["KeyState", "Pane", "WindowState", "WindowTimer"]


class WindowTimer(NamedTuple):
    """What a timer is for.

    Attributes:
        key: The key.
        window: The window.
        ends_window: The window is removed; otherwise its trigger is called.
    """

    key: Any
    window: TimeWindow
    ends_window: bool


@dataclass(slots=True)
class Pane:
    """What is kept of one window.

    Attributes:
        content: Its records, or what they were folded into; empty when nothing would be emitted.
        trigger: What its trigger keeps.
        event_timers: Event times at which its trigger wants to be asked.
        processing_timers: Times of the clock at which its trigger wants to be asked.
        firings: How many times it has emitted.
        own: The process function's state of this window.
    """

    content: Content = field(default_factory=list)
    trigger: Any = None
    event_timers: set[int] = field(default_factory=set)
    processing_timers: set[int] = field(default_factory=set)
    firings: int = 0
    own: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class KeyState:
    """What is kept of one key.

    Attributes:
        arrivals: How many records it had.
        windows: The state window of each live window; the window itself where windows do not merge.
        panes: What is kept, by state window.
        own: The process function's state of this key.
    """

    arrivals: int = 0
    windows: dict[TimeWindow, TimeWindow] = field(default_factory=dict)
    panes: dict[TimeWindow, Pane] = field(default_factory=dict)
    own: dict[str, Any] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        """Nothing has to be remembered."""
        return not self.windows and not self.own


@dataclass(slots=True)
class WindowState:
    """What is kept of all keys.

    Attributes:
        watermark_ms: How far event time has come; the smallest timestamp if that is not known yet.
        clock_ms: Where the clock was last.
        dropped_records: How many records were dropped as late, ever.
        backlog: The records that come are history.
        keys: The state of each key that has any.
        event_timers: All that is due by the watermark.
        processing_timers: All that is due by the clock.
    """

    watermark_ms: int = MIN_TIMESTAMP_MS
    clock_ms: int = 0
    dropped_records: int = 0
    backlog: bool = False
    keys: dict[Any, KeyState] = field(default_factory=dict)
    event_timers: TimerQueue[WindowTimer] = field(default_factory=TimerQueue)
    processing_timers: TimerQueue[WindowTimer] = field(default_factory=TimerQueue)
