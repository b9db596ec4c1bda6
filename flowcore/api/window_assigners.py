"""Windows as a user declares them.

Lengths are seconds or a `timedelta`; the assigners of `flowcore.windows` that they make use milliseconds.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from flowcore.durations import MILLISECOND, parse_duration, show_given, show_ms
from flowcore.elements import MAX_TIMESTAMP_MS
from flowcore.errors import InvalidWindowError
from flowcore.windows import (
    DynamicSessionWindows,
    EndOfStreamWindows,
    GlobalWindows,
    SessionWindows,
    SlidingWindows,
    TumblingWindows,
    WindowAssigner,
)

__all__ = [
    "GAP_COLUMN",
    "EndOfStream",
    "GapColumn",
    "Global",
    "Length",
    "Session",
    "Sliding",
    "Tumbling",
    "WindowDeclaration",
    "build_assigner",
    "lateness_ms",
    "whole_ms",
]

Length = float | timedelta
"""A length of time: seconds, or a `timedelta`; whole milliseconds."""

GAP_COLUMN = "_flowcore_gap_ms"
"""The column with the gap of a session that is an expression."""
_MOST_SLIDES = 10_000
"""The most windows of a record: each of them is state and an output, so that more were hardly meant."""


@dataclass(frozen=True, slots=True)
class Tumbling:
    """Back-to-back windows of one length.

    Args:
        seconds: The length, > 0.
        offset: Shifts every boundary: ``Tumbling(timedelta(days=1), offset=timedelta(hours=-1))`` begins days
            at 23:00 UTC.

    Raises:
        InvalidWindowError: A length is not positive, or not a whole number of milliseconds.
    """

    seconds: Length
    offset: Length = 0

    def __post_init__(self) -> None:
        self.assigner()

    def assigner(self) -> WindowAssigner:
        return TumblingWindows(_positive_ms("seconds", self.seconds), whole_ms("offset", self.offset))


@dataclass(frozen=True, slots=True)
class Sliding:
    """Overlapping windows of one length: a new one every slide.

    Args:
        seconds: The length, > 0.
        slide: The distance between two starts, > 0, at most the length.

    Raises:
        InvalidWindowError: As for `Tumbling`, the slide is longer than the windows, or a record would be in
            more than 10,000 windows.
    """

    seconds: Length
    slide: Length
    offset: Length = 0

    def __post_init__(self) -> None:
        self.assigner()

    def assigner(self) -> WindowAssigner:
        size_ms, slide_ms = _positive_ms("seconds", self.seconds), _positive_ms("slide", self.slide)
        if slide_ms > size_ms:
            msg = (
                f"Sliding: slide={show_ms(slide_ms)} is longer than the windows of {show_ms(size_ms)}: "
                "records between two windows would be lost; pass a shorter slide, or longer windows"
            )
            raise InvalidWindowError(msg)
        if size_ms > slide_ms * _MOST_SLIDES:
            msg = (
                f"Sliding: windows of {show_ms(size_ms)} every {show_ms(slide_ms)}: each record would be in "
                f"{size_ms // slide_ms:,} windows, and {_MOST_SLIDES:,} is the most; pass a longer slide"
            )
            raise InvalidWindowError(msg)
        return SlidingWindows(size_ms, slide_ms, whole_ms("offset", self.offset))


@dataclass(frozen=True, slots=True)
class GapColumn:
    """A gap that each record has in a column, in milliseconds."""

    column: str

    def __call__(self, key: Any, value: Mapping[str, Any]) -> int:
        gap_ms = value[self.column]
        if gap_ms is None:
            msg = (
                f"the gap of key {key!r} is null: its session would have no end; give the expression a value "
                "for every record, for instance coalesce(gap_ms, 30000)"
            )
            raise InvalidWindowError(msg)
        return int(gap_ms)


@dataclass(frozen=True, slots=True)
class Session:
    """Periods of activity that end when a key has had no record for a gap; touching ones merge.

    Args:
        gap: The same for all (a length, > 0), or each record's own in milliseconds, zero or more: a Spark
            SQL expression over the input's columns, or a Python function ``(key, record) -> milliseconds``.

    Raises:
        InvalidWindowError: The gap is none of these.
    """

    gap: Length | str | Callable[[Any, Mapping[str, Any]], int]

    def __post_init__(self) -> None:
        if isinstance(self.gap, str) and not self.gap.strip():
            msg = "Session(gap='') has no gap; pass seconds, a timedelta, or Spark SQL text such as 'gap_ms'"
            raise InvalidWindowError(msg)
        if isinstance(self.gap, str) and _is_duration(self.gap):
            msg = (
                f"Session: gap={show_given(self.gap)} is not Spark SQL text: Spark would take the unit for "
                "the name of so many milliseconds; pass the timedelta, or text such as 'gap_ms'"
            )
            raise InvalidWindowError(msg)
        self.assigner()

    def assigner(self) -> WindowAssigner:
        if isinstance(self.gap, str):
            return DynamicSessionWindows(GapColumn(GAP_COLUMN))
        if callable(self.gap):
            return DynamicSessionWindows(self.gap)
        return SessionWindows(_positive_ms("gap", self.gap))


@dataclass(frozen=True, slots=True)
class Global:
    """One window per key, which never ends: it emits when its trigger fires."""

    def assigner(self) -> WindowAssigner:
        return GlobalWindows()


@dataclass(frozen=True, slots=True)
class EndOfStream:
    """One window per key, which emits when the input has ended; the input must be bounded."""

    def assigner(self) -> WindowAssigner:
        return EndOfStreamWindows()


WindowDeclaration = Tumbling | Sliding | Session | Global | EndOfStream | WindowAssigner
"""The windows of `Stream.window`; a `WindowAssigner` is your own, in milliseconds."""


def build_assigner(windows: WindowDeclaration, operator: str) -> WindowAssigner:
    """Build the assigner of declared windows.

    Raises:
        InvalidWindowError: The declaration is not one of windows.
    """
    if isinstance(windows, (Tumbling, Sliding, Session, Global, EndOfStream)):
        return windows.assigner()
    if not isinstance(windows, type) and callable(getattr(windows, "assign", None)):
        return windows
    msg = (
        f"operator {operator!r}: {windows!r} does not assign windows to a record: there would be "
        "none; pass Tumbling(10), Sliding(10, slide=1), Session(gap=30), Global() or EndOfStream()"
    )
    raise InvalidWindowError(msg)


def lateness_ms(length: Length) -> int:
    """Convert an allowed lateness, which may be endless, to milliseconds.

    >>> lateness_ms(2.5), lateness_ms(math.inf) == MAX_TIMESTAMP_MS
    (2500, True)
    """
    return MAX_TIMESTAMP_MS if length == math.inf else whole_ms("allowed_lateness", length)


def whole_ms(name: str, length: Length) -> int:
    """Convert a length to milliseconds.

    Raises:
        InvalidWindowError: The value is not a length, or not a whole number of milliseconds.

    >>> whole_ms("seconds", 0.5), whole_ms("gap", timedelta(minutes=1))
    (500, 60000)
    """
    known = isinstance(length, (int, float, timedelta)) and not isinstance(length, bool)
    try:
        found = length if isinstance(length, timedelta) else timedelta(seconds=length) if known else None
    except (OverflowError, ValueError):
        found = None
    if found is None or found % MILLISECOND:
        # A number of seconds is a length here, so it needs no timedelta in the message.
        given = repr(length) if known and not isinstance(length, timedelta) else show_given(length)
        msg = (
            f"{name}={given} is not a whole number of milliseconds: event time has no smaller "
            "unit; pass seconds, or for instance timedelta(minutes=5)"
        )
        raise InvalidWindowError(msg)
    return found // MILLISECOND


def _is_duration(text: str) -> bool:
    """Whether a text is a number with a unit of time."""
    try:
        return bool(parse_duration(text))
    except ValueError:
        return False


def _positive_ms(name: str, length: Length) -> int:
    """Convert a length that divides time to milliseconds; errors name it as it was declared."""
    length_ms = whole_ms(name, length)
    if length_ms <= 0:
        msg = f"{name}={length!r} is not above 0: time would not be divided; pass for instance {name}=10"
        raise InvalidWindowError(msg)
    return length_ms
