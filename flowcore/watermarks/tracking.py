"""Watermarks of a source with several partitions, from its records.

They are emitted by polls and by punctuated markers, and only if they have changed: first the status, then the
watermark.

An idle timer changes only when it is polled. The first poll after a record notices the record, the next one
starts the time-out, and a poll more than the time-out later finds the partition idle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from flowcore.elements import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS, Watermark, WatermarkStatus
from flowcore.watermarks.generators import GeneratorState, advance, watermark_ms
from flowcore.watermarks.merge import MergedWatermark, PartitionId, PartitionWatermark, merge
from flowcore.watermarks.strategies import Punctuated, WatermarkStrategy

__all__ = [
    "Emitted",
    "IdlePeriod",
    "IdleTimer",
    "Tracking",
    "add_record",
    "advance_idle",
    "emit_difference",
    "end_of_input",
    "poll",
    "poll_timer",
    "restart_timer",
    "start_tracking",
]

Emitted = tuple[WatermarkStatus | Watermark, ...]
"""The elements that are emitted, in order."""


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


@dataclass(frozen=True, slots=True)
class Tracking:
    """The state of a source.

    Attributes:
        merged: The watermarks that were emitted.
        idle_period: The current period in which the watermark advances with processing time.
    """

    seen: Mapping[PartitionId, GeneratorState]
    timers: Mapping[PartitionId, IdleTimer]
    merged: MergedWatermark
    idle_period: IdlePeriod | None = None

    @property
    def idle(self) -> bool:
        """All partitions are idle, and the watermark does not advance."""
        return self.merged.idle and self.idle_period is None


def start_tracking(partitions: Iterable[PartitionId]) -> Tracking:
    """A source before its first record."""
    known = tuple(partitions)
    return Tracking(
        seen=dict.fromkeys(known, GeneratorState()),
        timers=dict.fromkeys(known, IdleTimer()),
        merged=MergedWatermark(dict.fromkeys(known, PartitionWatermark())),
    )


def add_record(
    strategy: WatermarkStrategy,
    tracking: Tracking,
    partition: PartitionId,
    timestamp_ms: int | None,
    *,
    marker: bool = False,
    expression_ms: int | None = None,
) -> tuple[Tracking, Emitted]:
    """Take one record of a partition; only a punctuated marker emits something."""
    seen = advance(
        strategy.generator, tracking.seen[partition], timestamp_ms, marker=marker, expression_ms=expression_ms
    )
    after = replace(
        tracking,
        seen={**tracking.seen, partition: seen},
        timers={**tracking.timers, partition: restart_timer()},
    )
    if not (marker and isinstance(strategy.generator, Punctuated)):
        return after, ()
    return _merge(strategy, after, {partition: _partition_watermark(strategy, seen, idle=False)})


def poll(strategy: WatermarkStrategy, tracking: Tracking, now_ms: int) -> tuple[Tracking, Emitted]:
    """Advance processing time for all partitions."""
    if tracking.merged.watermark_ms == MAX_TIMESTAMP_MS:  # the input has ended
        return tracking, ()
    timers, updates = {}, {}
    for partition, timer in tracking.timers.items():
        timers[partition], idle = poll_timer(timer, now_ms, strategy.idle_after_ms)
        updates[partition] = _partition_watermark(strategy, tracking.seen[partition], idle=idle)
    return _merge(strategy, replace(tracking, timers=timers), updates, now_ms)


def end_of_input(tracking: Tracking) -> tuple[Tracking, Emitted]:
    """End every partition."""
    ended = {
        partition: PartitionWatermark(MAX_TIMESTAMP_MS, idle=each.idle)
        for partition, each in tracking.merged.partitions.items()
    }
    after = replace(tracking, merged=MergedWatermark(ended, MAX_TIMESTAMP_MS))
    return after, emit_difference(tracking.merged, after.merged)


def _partition_watermark(
    strategy: WatermarkStrategy, seen: GeneratorState, *, idle: bool
) -> PartitionWatermark:
    found_ms = watermark_ms(strategy.generator, seen)
    return PartitionWatermark(MIN_TIMESTAMP_MS if found_ms is None else found_ms, idle)


def _merge(
    strategy: WatermarkStrategy,
    tracking: Tracking,
    updates: Mapping[PartitionId, PartitionWatermark],
    now_ms: int | None = None,
) -> tuple[Tracking, Emitted]:
    merged, period = merge(tracking.merged, updates), tracking.idle_period
    if not merged.idle or strategy.all_idle == "hold":
        period = None
    elif now_ms is not None:
        period = period or IdlePeriod(now_ms, merged.watermark_ms)
        merged = replace(merged, watermark_ms=max(merged.watermark_ms, advance_idle(period, now_ms)))
    after = replace(tracking, merged=merged, idle_period=period)
    return after, _emit_difference(tracking.idle, after.idle, tracking.merged, merged)


def emit_difference(before: MergedWatermark, after: MergedWatermark) -> Emitted:
    """The elements that are emitted for a change."""
    return _emit_difference(before.idle, after.idle, before, after)


def _emit_difference(
    was_idle: bool, is_idle: bool, before: MergedWatermark, after: MergedWatermark
) -> Emitted:
    emitted: list[WatermarkStatus | Watermark] = []
    if is_idle != was_idle:
        emitted.append(WatermarkStatus(idle=is_idle))
    if after.watermark_ms > before.watermark_ms:
        emitted.append(Watermark(after.watermark_ms))
    return tuple(emitted)
