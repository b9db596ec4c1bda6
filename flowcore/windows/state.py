"""Input records, outputs and state of windows.

State is plain mutable data that only the operator changes. `flowcore.windows.codec` writes and reads it,
except the timer queues, which follow from the rest.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Literal, NamedTuple

from flowcore.elements import MIN_TIMESTAMP_MS
from flowcore.keyed.timers import TimerQueue, rank_key
from flowcore.windows.contents import Content
from flowcore.windows.window import TimeWindow, saturated

__all__ = [
    "Emissions", "KeyState", "KeyedRecord", "Lifetime", "Pane", "WindowResult", "WindowState", "WindowTimer",
    "WindowTimers",
]  # fmt: skip


class KeyedRecord(NamedTuple):
    """An input record.

    Attributes:
        key: Hashable plain data; None where windows are not keyed.
        timestamp_ms: The event time, None if it has none.
    """

    key: Any
    value: Any
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class WindowResult:
    """One output of one window.

    Attributes:
        firing: 1-based number of this firing of the window; a merged window continues from the highest number
            of its parts.
        is_late: A record that arrived after the window was complete made it emit.
        life: The times of its records, where they may expire or the newest counts.
    """

    key: Any
    value: Any
    window: TimeWindow
    firing: int
    is_late: bool
    life: Lifetime | None = None

    @property
    def timestamp_ms(self) -> int | None:
        """The last millisecond of the window, or the event time of its newest record, None without any."""
        return self.window.last_ms if self.life is None else self.life.newest_ms

    @property
    def window_start_ms(self) -> int:
        return self.window.start_ms

    @property
    def window_end_ms(self) -> int:
        """The millisecond after the window's last, at most the end of time."""
        return saturated(self.window.end_ms)


@dataclass(slots=True)
class Emissions:
    """The outputs of one step, in order; ``late`` are the records of the late side output."""

    results: list[WindowResult] = field(default_factory=list)
    late: list[KeyedRecord] = field(default_factory=list)
    dropped_records: int = 0

    def extend(self, more: Emissions) -> None:
        self.results += more.results
        self.late += more.late
        self.dropped_records += more.dropped_records


class WindowTimer(NamedTuple):
    """What a timer is for: it removes a window if it ``ends_window``, otherwise it calls the trigger."""

    key: Any
    window: TimeWindow
    ends_window: bool

    def rank(self) -> tuple[bytes, TimeWindow, bool]:
        """Its place among the timers of a time: by key and window, and a window that expires first ends."""
        return rank_key(self.key), self.window, not self.ends_window


class WindowTimers(TimerQueue[WindowTimer]):
    """The timers of windows in one time domain."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(WindowTimer.rank)


class Lifetime(NamedTuple):
    """The times of the records of a window that may expire.

    Attributes:
        began_ms: The processing time of the first record.
        used_ms: The processing time of the last record.
        newest_ms: The latest event time of a record; None if none has one.
    """

    began_ms: int
    used_ms: int
    newest_ms: int | None

    def renew(self, processing_time_ms: int, timestamp_ms: int | None) -> Lifetime:
        """The times with another record."""
        known = [time_ms for time_ms in (self.newest_ms, timestamp_ms) if time_ms is not None]
        return Lifetime(self.began_ms, processing_time_ms, max(known, default=None))


@dataclass(slots=True)
class Pane:
    """State of one window.

    Attributes:
        content: Its records, or the accumulator; empty if there is nothing to emit.
        trigger: State of its trigger, whose timers are at these times.
        own: The process function's state of this window.
        life: The times of its records, if they have a time to live or the newest counts.
    """

    content: Content = field(default_factory=list)
    trigger: Any = None
    event_timers: set[int] = field(default_factory=set)
    processing_timers: set[int] = field(default_factory=set)
    firings: int = 0
    own: dict[str, Any] = field(default_factory=dict)
    life: Lifetime | None = None


@dataclass(slots=True)
class KeyState:
    """State of one key.

    Attributes:
        windows: The state window of each live window; the window itself where windows do not merge.
        panes: State of its windows, by state window.
        own: The process function's state of this key.
        sessions: The live windows by time, where they merge and none touches another one; None before a
            record looks for those that it touches. Windows that ended by a restart are not in it.
    """

    windows: dict[TimeWindow, TimeWindow] = field(default_factory=dict)
    panes: dict[TimeWindow, Pane] = field(default_factory=dict)
    own: dict[str, Any] = field(default_factory=dict)
    sessions: list[TimeWindow] | None = field(default=None, compare=False, repr=False)

    @property
    def empty(self) -> bool:
        return not self.windows and not self.own

    def touched(self, window: TimeWindow, ended_ms: int) -> dict[TimeWindow, TimeWindow]:
        """The state windows of the sessions that a window touches, without those that have ended."""
        if self.sessions is None:
            self.sessions = sorted(each for each in self.windows if each.last_ms > ended_ms)
        touched = self.sessions[_touched(self.sessions, window)]
        return {each: self.windows[each] for each in touched}

    def replace_touched(self, window: TimeWindow) -> None:
        """Put a session in the place of those that it touches, after they were merged."""
        if self.sessions is not None:
            self.sessions[_touched(self.sessions, window)] = [window]

    def delete(self, window: TimeWindow) -> None:
        """Delete a window and its state."""
        del self.panes[self.windows.pop(window)]
        if self.sessions is not None:
            touched = _touched(self.sessions, window)
            if self.sessions[touched] == [window]:  # it may have ended before
                del self.sessions[touched]


@dataclass(slots=True)
class WindowState:
    """State of all keys.

    Attributes:
        watermark_ms: The current watermark; the smallest timestamp before the first one.
        backlog: The input is backlog.
        ended_ms: Windows up to this time had ended when the state was restored, by the allowed lateness of
            then; below all times at first.
    """

    watermark_ms: int = MIN_TIMESTAMP_MS
    processing_time_ms: int = 0
    dropped_records: int = 0
    backlog: bool = False
    keys: dict[Any, KeyState] = field(default_factory=dict)
    event_timers: TimerQueue[WindowTimer] = field(default_factory=WindowTimers)
    processing_timers: TimerQueue[WindowTimer] = field(default_factory=WindowTimers)
    ended_ms: int = 2 * MIN_TIMESTAMP_MS

    def timers(self, time: Literal["event", "processing"]) -> TimerQueue[WindowTimer]:
        return self.event_timers if time == "event" else self.processing_timers


_START, _END = attrgetter("start_ms"), attrgetter("end_ms")


def _touched(sessions: list[TimeWindow], window: TimeWindow) -> slice:
    """The places of the sessions that a window touches."""
    first = bisect_left(sessions, window.start_ms, key=_END)
    return slice(first, bisect_right(sessions, window.end_ms, lo=first, key=_START))
