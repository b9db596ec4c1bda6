"""Is what a marker says a latency at all?

Mark and receipt are read from two clocks, and the mark may come from anybody. Times are microseconds
since the epoch, except for the mark, which is in whole milliseconds.
"""

from __future__ import annotations

from enum import Enum

__all__ = ["LONGEST_US", "PLAUSIBLE_US", "SKEW_TOLERANCE_US", "Unusable", "latency_us"]

SKEW_TOLERANCE_US = 5_000
"""How long before its mark a marker may come: clocks of machines in one network differ by about this."""

LONGEST_US = 3_600_000_000
"""One hour; what took longer is counted as this."""

PLAUSIBLE_US = 24 * 3_600_000_000
"""One day: no flow and no clock is off by more, so such a mark was not made by a marker source."""


class Unusable(Enum):
    """Why a marker is no latency."""

    SKEWED = "received before it was marked"
    IMPLAUSIBLE = "marked more than a day before or after it was received"


def latency_us(marked_ms: int, received_us: int) -> int | Unusable:
    """How long a marker was on its way, not cut at `LONGEST_US`, or why that cannot be told.

    >>> latency_us(marked_ms=1_000, received_us=1_002_500)
    2500
    >>> latency_us(marked_ms=1_000, received_us=998_000)
    0
    >>> latency_us(marked_ms=1_000, received_us=994_000)
    <Unusable.SKEWED: 'received before it was marked'>
    """
    taken_us = received_us - marked_ms * 1_000
    if abs(taken_us) > PLAUSIBLE_US:
        return Unusable.IMPLAUSIBLE
    if taken_us < -SKEW_TOLERANCE_US:
        return Unusable.SKEWED
    return max(taken_us, 0)
