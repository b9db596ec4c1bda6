"""What goes into windows and what comes out of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from flowcore.windows.window import TimeWindow, saturated

__all__ = ["Emissions", "KeyedRecord", "WindowResult"]


class KeyedRecord(NamedTuple):
    """A record on its way into windows.

    Attributes:
        key: Hashable plain data; None where windows are not keyed.
        value: What it says.
        timestamp_ms: When it happened, None if it does not say.
    """

    key: Any
    value: Any
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class WindowResult:
    """One output of one window.

    Attributes:
        key: The window's key.
        value: What the function made.
        window: The window.
        firing: The how-many-th emission of the window this belongs to, from 1; a merged window goes on
            from the highest of those that it was made of.
        is_late: A record that came after the window was complete made it emit.
    """

    key: Any
    value: Any
    window: TimeWindow
    firing: int
    is_late: bool

    @property
    def timestamp_ms(self) -> int:
        """The window's last millisecond."""
        return self.window.last_ms

    @property
    def window_start_ms(self) -> int:
        """The window's first millisecond."""
        return self.window.start_ms

    @property
    def window_end_ms(self) -> int:
        """One after its last millisecond, or the end of time."""
        return saturated(self.window.end_ms)


@dataclass(slots=True)
class Emissions:
    """What one step made come out, in order.

    Attributes:
        results: Outputs of windows.
        late: Records for the side output.
        dropped_records: How many were dropped as late.
    """

    results: list[WindowResult] = field(default_factory=list)
    late: list[KeyedRecord] = field(default_factory=list)
    dropped_records: int = 0

    @classmethod
    def joined(cls, parts: Iterable[Emissions]) -> Emissions:
        """Those of several steps, or of several key groups, as one."""
        whole = cls()
        for part in parts:
            whole.results += part.results
            whole.late += part.late
            whole.dropped_records += part.dropped_records
        return whole
