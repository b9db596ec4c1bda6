"""Window assigners: which windows does a record belong to?

An assigner is a pure function of one record and its time. It holds no state, reads no clock and knows
nothing of triggers or Spark. Whether the time is the record's timestamp or the clock's is not its
question. Sessions, whose windows merge, are in `flowcore.windows.sessions`.

All times are integer milliseconds since the epoch, UTC.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from flowcore.errors import InvalidWindowError
from flowcore.windows.window import ALL_TIME, TimeWindow

__all__ = [
    "EndOfStreamWindows",
    "GlobalWindows",
    "SlidingWindows",
    "TumblingWindows",
    "WindowAssigner",
    "require_positive",
]


class WindowAssigner(Protocol):
    """Anything that can say which windows a record belongs to.

    Attributes:
        merging: Windows of a key that touch become one.
        bounded: Windows end. If not, records need no timestamp and are never late.
    """

    @property
    def merging(self) -> bool: ...

    @property
    def bounded(self) -> bool: ...

    def assign(self, timestamp_ms: int, /, key: Any = None, value: Any = None) -> Sequence[TimeWindow]:
        """Return every window of the record, earliest start first.

        Args:
            timestamp_ms: The record's time; any number where windows are not bounded.
            key: The record's key.
            value: The record's value.
        """
        ...


@dataclass(frozen=True, slots=True)
class TumblingWindows:
    """Back-to-back windows of one size: each record falls in exactly one.

    Args:
        size_ms: Length of each window, > 0.
        offset_ms: Shifts every boundary; ``15 * 60_000`` starts hourly windows at a quarter past. Any
            value is taken modulo ``size_ms``.

    Raises:
        InvalidWindowError: ``size_ms`` is not positive.

    >>> TumblingWindows(size_ms=10).assign(-1)
    (TimeWindow(start_ms=-10, end_ms=0),)
    """

    merging: ClassVar[bool] = False
    bounded: ClassVar[bool] = True

    size_ms: int
    offset_ms: int = 0

    def __post_init__(self) -> None:
        require_positive("size_ms", self.size_ms)

    def assign(
        self,
        timestamp_ms: int,
        /,
        key: Any = None,  # noqa: ARG002 - an assigner's signature
        value: Any = None,  # noqa: ARG002
    ) -> tuple[TimeWindow, ...]:
        """The one window that contains the timestamp."""
        start_ms = _last_start(timestamp_ms, self.size_ms, self.offset_ms)
        return (TimeWindow.within_time(start_ms, start_ms + self.size_ms),)


@dataclass(frozen=True, slots=True)
class SlidingWindows:
    """Overlapping windows: a new one of ``size_ms`` opens every ``slide_ms``.

    Args:
        size_ms: Length of each window, > 0.
        slide_ms: Distance between two window starts, 0 < slide_ms <= size_ms.
        offset_ms: Shifts every boundary, taken modulo ``slide_ms``.

    Raises:
        InvalidWindowError: A length is not positive, or the slide is longer than the size and would
            leave gaps that lose records.

    >>> [w.start_ms for w in SlidingWindows(size_ms=10, slide_ms=5).assign(12)]
    [5, 10]
    """

    merging: ClassVar[bool] = False
    bounded: ClassVar[bool] = True

    size_ms: int
    slide_ms: int
    offset_ms: int = 0

    def __post_init__(self) -> None:
        require_positive("size_ms", self.size_ms)
        require_positive("slide_ms", self.slide_ms)
        if self.slide_ms > self.size_ms:
            msg = (
                f"slide_ms={self.slide_ms} is longer than size_ms={self.size_ms}: records between two "
                "windows would be lost; pass slide_ms <= size_ms"
            )
            raise InvalidWindowError(msg)

    def assign(
        self,
        timestamp_ms: int,
        /,
        key: Any = None,  # noqa: ARG002 - an assigner's signature
        value: Any = None,  # noqa: ARG002
    ) -> tuple[TimeWindow, ...]:
        """All windows that contain the timestamp, earliest first."""
        last_ms = _last_start(timestamp_ms, self.slide_ms, self.offset_ms)
        earlier = (last_ms + self.size_ms - timestamp_ms - 1) // self.slide_ms
        starts = range(last_ms - earlier * self.slide_ms, last_ms + 1, self.slide_ms)
        return tuple(TimeWindow.within_time(start_ms, start_ms + self.size_ms) for start_ms in starts)


@dataclass(frozen=True, slots=True)
class GlobalWindows:
    """One window a key, which never ends; it emits only if it has a trigger that says when."""

    merging: ClassVar[bool] = False
    bounded: ClassVar[bool] = False

    def assign(
        self,
        timestamp_ms: int,  # noqa: ARG002 - an assigner's signature
        /,
        key: Any = None,  # noqa: ARG002
        value: Any = None,  # noqa: ARG002
    ) -> tuple[TimeWindow, ...]:
        """The one window there is."""
        return (ALL_TIME,)


@dataclass(frozen=True, slots=True)
class EndOfStreamWindows(GlobalWindows):
    """One window a key, which emits when the input has ended."""


def require_positive(name: str, value: int) -> None:
    """Refuse a length of time that is none.

    Raises:
        InvalidWindowError: It is not positive.
    """
    if value <= 0:
        msg = (
            f"{name}={value} is not a positive number of milliseconds: time would not be divided; "
            f"pass {name} > 0"
        )
        raise InvalidWindowError(msg)


def _last_start(timestamp_ms: int, period_ms: int, offset_ms: int) -> int:
    # Python's % takes the sign of the divisor, so times before 1970 need no special case.
    return timestamp_ms - (timestamp_ms - offset_ms) % period_ms
