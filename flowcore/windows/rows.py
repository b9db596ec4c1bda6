"""Input records and outputs of windows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from flowcore.windows.window import TimeWindow, saturated

__all__ = ["Emissions", "KeyedRecord", "WindowResult"]


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
        """The millisecond after the window's last, at most the end of time."""
        return saturated(self.window.end_ms)


@dataclass(slots=True)
class Emissions:
    """The outputs of one step, in order.

    Attributes:
        late: Records of the late side output.
    """

    results: list[WindowResult] = field(default_factory=list)
    late: list[KeyedRecord] = field(default_factory=list)
    dropped_records: int = 0

    def extend(self, more: Emissions) -> None:
        """Append the outputs of another step."""
        self.results += more.results
        self.late += more.late
        self.dropped_records += more.dropped_records
