"""Idle partitions, and the watermark while all partitions are idle.

A timer changes only when it is polled. The first poll after a record notices the record, the next one starts
the time-out, and a poll more than the time-out later finds the partition idle.
"""

from __future__ import annotations

from dataclasses import dataclass

from flowcore.elements import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS

__all__ = ["IdlePeriod", "IdleTimer", "advance_idle", "poll_timer", "restart_timer"]


@dataclass(frozen=True, slots=True)
class IdleTimer:
    """The timer of one partition.

    Attributes:
        active: A record has arrived since the last poll.
        quiet_since_ms: The first poll without a new record, None if there was none.
    """

    active: bool = False
    quiet_since_ms: int | None = None


def restart_timer() -> IdleTimer:
    """The timer after a record."""
    return IdleTimer(active=True)


def poll_timer(timer: IdleTimer, now_ms: int, idle_after_ms: int | None) -> tuple[IdleTimer, bool]:
    """The timer after a poll, and whether the partition is idle.

    Args:
        timer: The timer before.
        now_ms: Processing time.
        idle_after_ms: The time-out, > 0; None for a partition that is never idle.
    """
    if idle_after_ms is None or timer.active:
        return IdleTimer(), False
    if timer.quiet_since_ms is None:
        return IdleTimer(quiet_since_ms=now_ms), False
    return timer, now_ms - timer.quiet_since_ms > idle_after_ms


@dataclass(frozen=True, slots=True)
class IdlePeriod:
    """A period in which all partitions are idle and the watermark advances with processing time.

    Attributes:
        since_ms: Processing time at its begin.
        watermark_ms: The watermark at its begin.
    """

    since_ms: int
    watermark_ms: int


def advance_idle(period: IdlePeriod, now_ms: int) -> int:
    """The watermark now; the smallest timestamp does not advance."""
    if period.watermark_ms == MIN_TIMESTAMP_MS:
        return MIN_TIMESTAMP_MS
    # The maximum watermark means the end of input.
    return min(period.watermark_ms + max(now_ms - period.since_ms, 0), MAX_TIMESTAMP_MS - 1)
