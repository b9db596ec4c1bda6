"""Idleness: does a partition still say anything, and what does event time do when none does?

A timer looks at a clock that is passed in; nothing happens between two looks. The first look after
a record notices it, the next one starts the countdown, and a look strictly more than the time-out
after that finds the partition idle.
"""

from __future__ import annotations

from dataclasses import dataclass

from flowcore.elements import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS

__all__ = ["IdleTimer", "Silence", "advanced_ms", "poll_timer", "record_seen"]


@dataclass(frozen=True, slots=True)
class IdleTimer:
    """The state of one partition's timer.

    Attributes:
        active: A record has come since the last look.
        quiet_since_ms: The first look that found no new record, None if there was none.
    """

    active: bool = False
    quiet_since_ms: int | None = None


def record_seen() -> IdleTimer:
    """The timer after a record."""
    return IdleTimer(active=True)


def poll_timer(timer: IdleTimer, now_ms: int, idle_after_ms: int | None) -> tuple[IdleTimer, bool]:
    """Look at the clock: the timer after it, and whether the partition is idle.

    Args:
        timer: As it was.
        now_ms: The clock.
        idle_after_ms: The time-out, > 0; None for a partition that is never idle.
    """
    if idle_after_ms is None or timer.active:
        return IdleTimer(), False
    if timer.quiet_since_ms is None:
        return IdleTimer(quiet_since_ms=now_ms), False
    return timer, now_ms - timer.quiet_since_ms > idle_after_ms


@dataclass(frozen=True, slots=True)
class Silence:
    """All partitions are idle, and event time goes on as the clock does.

    Attributes:
        since_ms: The clock when they were found so.
        watermark_ms: Where event time was then.
    """

    since_ms: int
    watermark_ms: int


def advanced_ms(silence: Silence, now_ms: int) -> int:
    """Where event time is by now; one that had never begun stands still."""
    if silence.watermark_ms == MIN_TIMESTAMP_MS:
        return MIN_TIMESTAMP_MS
    # One below the end of time, which says that the input has ended.
    return min(silence.watermark_ms + max(now_ms - silence.since_ms, 0), MAX_TIMESTAMP_MS - 1)
