"""Window assigners: the windows that a record belongs to.

An assigner is a pure function of one record and its time, which is the record's timestamp or processing time.
Assigners of sessions give each record its own window; `flowcore.windows.window` merges them.

All times are integer milliseconds since the epoch, UTC.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, ClassVar, Protocol

from flowcore.errors import InvalidWindowError
from flowcore.windows.window import ALL_TIME, TimeWindow

__all__ = [
    "DynamicSessionWindows",
    "EndOfStreamWindows",
    "GlobalWindows",
    "SessionWindows",
    "SlidingWindows",
    "TumblingWindows",
    "WindowAssigner",
    "require_positive",
]


class WindowAssigner(Protocol):
    """Assigns windows to records.

    Attributes:
        merging: Windows of a key that overlap or touch are merged.
        bounded: Windows end. If not, records need no timestamp and are never late.
    """

    @property
    def merging(self) -> bool: ...

    @property
    def bounded(self) -> bool: ...

    def assign(self, timestamp_ms: int, /, key: Any = None, value: Any = None) -> Sequence[TimeWindow]:
        """Return every window of the record, earliest start first; without bounds any time will do."""


@dataclass(frozen=True, slots=True)
class TumblingWindows:
    """Consecutive windows of one size: each record is in exactly one.

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

    def assign(self, timestamp_ms: int, /, key: Any = None, value: Any = None) -> tuple[TimeWindow, ...]:
        start_ms = _last_start(timestamp_ms, self.size_ms, self.offset_ms)
        return (TimeWindow.within_time(start_ms, start_ms + self.size_ms),)


@dataclass(frozen=True, slots=True)
class SlidingWindows:
    """Overlapping windows: a window of ``size_ms`` starts every ``slide_ms``.

    Args:
        size_ms: Length of each window, > 0.
        slide_ms: Distance between two window starts, 0 < slide_ms <= size_ms.
        offset_ms: Shifts every boundary, taken modulo ``slide_ms``.

    Raises:
        InvalidWindowError: A length is not positive, or the slide is longer than the size, so that records
            between two windows would be lost.

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

    def assign(self, timestamp_ms: int, /, key: Any = None, value: Any = None) -> tuple[TimeWindow, ...]:
        last_ms = _last_start(timestamp_ms, self.slide_ms, self.offset_ms)
        earlier = (last_ms + self.size_ms - timestamp_ms - 1) // self.slide_ms
        starts = range(last_ms - earlier * self.slide_ms, last_ms + 1, self.slide_ms)
        return tuple(TimeWindow.within_time(start_ms, start_ms + self.size_ms) for start_ms in starts)


@dataclass(frozen=True, slots=True)
class SessionWindows:
    """Periods of activity that end once a key has had no record for ``gap_ms``.

    Args:
        gap_ms: The gap, > 0; two records exactly this far apart are in one session.

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

    def assign(self, timestamp_ms: int, /, key: Any = None, value: Any = None) -> tuple[TimeWindow, ...]:
        return (TimeWindow.within_time(timestamp_ms, timestamp_ms + self.gap_ms),)


@dataclass(frozen=True, slots=True)
class DynamicSessionWindows:
    """Sessions whose gap depends on the record; a shorter gap never shortens a session.

    Args:
        gap: Returns the gap of a record in milliseconds, from its key and its value. A record with gap zero
            joins an existing session without extending it.

    >>> windows = DynamicSessionWindows(lambda key, value: 0 if value == "logout" else 30)
    >>> windows.assign(5, "a", "click"), windows.assign(5, "a", "logout")
    ((TimeWindow(start_ms=5, end_ms=35),), (TimeWindow(start_ms=5, end_ms=5),))
    """

    merging: ClassVar[bool] = True
    bounded: ClassVar[bool] = True

    gap: Callable[[Any, Any], int]

    def assign(self, timestamp_ms: int, /, key: Any = None, value: Any = None) -> tuple[TimeWindow, ...]:
        """Return the record's own window.

        Raises:
            InvalidWindowError: The gap is negative, or not a whole number.
        """
        given = self.gap(key, value)
        try:
            gap_ms = index(given)
        except TypeError:
            msg = (
                f"the gap of key {key!r}, value {value!r} is {given!r}, which is not a whole number of "
                "milliseconds: the session would end at another time; return an int"
            )
            raise InvalidWindowError(msg) from None
        if gap_ms < 0:
            msg = (
                f"the gap of key {key!r}, value {value!r} is {gap_ms} ms: a session would end before it "
                "starts; return zero or more"
            )
            raise InvalidWindowError(msg)
        return (TimeWindow.within_time(timestamp_ms, timestamp_ms + gap_ms),)


@dataclass(frozen=True, slots=True)
class GlobalWindows:
    """One window per key that never ends; it emits only if its trigger fires."""

    merging: ClassVar[bool] = False
    bounded: ClassVar[bool] = False

    def assign(self, timestamp_ms: int, /, key: Any = None, value: Any = None) -> tuple[TimeWindow, ...]:
        return (ALL_TIME,)


@dataclass(frozen=True, slots=True)
class EndOfStreamWindows(GlobalWindows):
    """One window per key that emits at the end of the input."""


def require_positive(name: str, value: int) -> None:
    """Check a length of time.

    Raises:
        InvalidWindowError: The length is not positive.
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
