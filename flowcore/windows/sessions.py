"""Session windows: which stretch of activity does a record belong to?

Each record opens a window from its own time to one gap later; what touches is merged by
`flowcore.windows.merging`, so an assigner sees one record at a time here too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from flowcore.errors import InvalidWindowError
from flowcore.windows.assigners import require_positive
from flowcore.windows.window import TimeWindow

__all__ = ["DynamicSessionWindows", "GapFunction", "SessionWindows"]

GapFunction = Callable[[Any, Any], int]
"""From a record's key and value to its gap in milliseconds, zero or more."""


@dataclass(frozen=True, slots=True)
class SessionWindows:
    """Stretches of activity that end once a key has had no record for ``gap_ms``.

    Args:
        gap_ms: Two records exactly this far apart still share a session; > 0.

    Raises:
        InvalidWindowError: ``gap_ms`` is not positive.

    >>> SessionWindows(gap_ms=30).assign(5)
    (TimeWindow(start_ms=5, end_ms=35),)
    """

    merging: ClassVar[bool] = True
    bounded: ClassVar[bool] = True

    gap_ms: int

    def __post_init__(self) -> None:
        require_positive("gap_ms", self.gap_ms)

    def assign(
        self,
        timestamp_ms: int,
        /,
        key: Any = None,  # noqa: ARG002 - an assigner's signature
        value: Any = None,  # noqa: ARG002
    ) -> tuple[TimeWindow, ...]:
        """The record's own window, before it is merged."""
        return (TimeWindow.within_time(timestamp_ms, timestamp_ms + self.gap_ms),)


@dataclass(frozen=True, slots=True)
class DynamicSessionWindows:
    """Sessions whose gap depends on the record; a shorter gap never shortens a session.

    Args:
        gap: The gap of a record, from its key and its value. Zero joins a session that is there without
            making it longer.

    >>> windows = DynamicSessionWindows(lambda key, value: 0 if value == "logout" else 30)
    >>> windows.assign(5, "a", "click"), windows.assign(5, "a", "logout")
    ((TimeWindow(start_ms=5, end_ms=35),), (TimeWindow(start_ms=5, end_ms=5),))
    """

    merging: ClassVar[bool] = True
    bounded: ClassVar[bool] = True

    gap: GapFunction

    def assign(self, timestamp_ms: int, /, key: Any = None, value: Any = None) -> tuple[TimeWindow, ...]:
        """The record's own window, before it is merged.

        Raises:
            InvalidWindowError: The gap is negative.
        """
        gap_ms = self.gap(key, value)
        if gap_ms < 0:
            msg = (
                f"the gap of key {key!r}, value {value!r} is {gap_ms} ms: a session would end before it "
                "starts; return zero or more"
            )
            raise InvalidWindowError(msg)
        return (TimeWindow.within_time(timestamp_ms, timestamp_ms + gap_ms),)
