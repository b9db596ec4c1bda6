"""Tracking: a source with several partitions, from its records to what it tells downstream.

Something is told at a look and at a punctuated marker, and then only what has changed: the status
first, then a watermark above the last one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from flowcore.elements import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS, Watermark, WatermarkStatus
from flowcore.watermarks import idleness
from flowcore.watermarks.generators import Seen, advance, watermark_ms
from flowcore.watermarks.idleness import IdleTimer, Silence
from flowcore.watermarks.merge import MergedWatermark, PartitionId, PartitionWatermark, merge
from flowcore.watermarks.strategies import Punctuated, WatermarkStrategy

__all__ = ["Told", "Tracking", "difference", "end_of_input", "poll", "record", "start"]

Told = tuple[WatermarkStatus | Watermark, ...]
"""What goes downstream, in order."""


@dataclass(frozen=True, slots=True)
class Tracking:
    """What is known of a source.

    Attributes:
        seen: What the records of each partition have shown.
        timers: The timer of each partition.
        merged: What was told downstream.
        silence: Since when all partitions have been idle, where event time goes on then.
    """

    seen: Mapping[PartitionId, Seen]
    timers: Mapping[PartitionId, IdleTimer]
    merged: MergedWatermark
    silence: Silence | None = None

    @property
    def idle(self) -> bool:
        """All partitions are, and event time stands still."""
        return self.merged.idle and self.silence is None


def start(partitions: Iterable[PartitionId]) -> Tracking:
    """A source before its first record."""
    known = tuple(partitions)
    return Tracking(
        seen=dict.fromkeys(known, Seen()),
        timers=dict.fromkeys(known, IdleTimer()),
        merged=MergedWatermark(dict.fromkeys(known, PartitionWatermark())),
    )


def record(
    strategy: WatermarkStrategy,
    tracking: Tracking,
    partition: PartitionId,
    timestamp_ms: int | None,
    *,
    marker: bool = False,
    said_ms: int | None = None,
) -> tuple[Tracking, Told]:
    """Take one record of one of the partitions; only a punctuated marker has anything told."""
    before = tracking.seen[partition]
    seen = advance(strategy.generator, before, timestamp_ms, marker=marker, said_ms=said_ms)
    after = replace(
        tracking,
        seen={**tracking.seen, partition: seen},
        timers={**tracking.timers, partition: idleness.record_seen()},
    )
    if not (marker and isinstance(strategy.generator, Punctuated)):
        return after, ()
    return _tell(strategy, after, {partition: _standing(strategy, seen, idle=False)})


def poll(strategy: WatermarkStrategy, tracking: Tracking, now_ms: int) -> tuple[Tracking, Told]:
    """Look at every partition, and at the clock."""
    if tracking.merged.watermark_ms == MAX_TIMESTAMP_MS:  # the input has ended
        return tracking, ()
    timers, news = {}, {}
    for partition, timer in tracking.timers.items():
        timers[partition], idle = idleness.poll_timer(timer, now_ms, strategy.idle_after_ms)
        news[partition] = _standing(strategy, tracking.seen[partition], idle=idle)
    return _tell(strategy, replace(tracking, timers=timers), news, now_ms)


def end_of_input(tracking: Tracking) -> tuple[Tracking, Told]:
    """Every partition has ended: nothing is waited for any more."""
    ended = {
        partition: PartitionWatermark(MAX_TIMESTAMP_MS, idle=standing.idle)
        for partition, standing in tracking.merged.partitions.items()
    }
    after = replace(tracking, merged=MergedWatermark(ended, MAX_TIMESTAMP_MS))
    return after, difference(tracking.merged, after.merged)


def _standing(strategy: WatermarkStrategy, seen: Seen, *, idle: bool) -> PartitionWatermark:
    found_ms = watermark_ms(strategy.generator, seen)
    return PartitionWatermark(MIN_TIMESTAMP_MS if found_ms is None else found_ms, idle)


def _tell(
    strategy: WatermarkStrategy,
    tracking: Tracking,
    news: Mapping[PartitionId, PartitionWatermark],
    now_ms: int | None = None,
) -> tuple[Tracking, Told]:
    merged, silence = merge(tracking.merged, news), tracking.silence
    if not merged.idle or strategy.all_idle == "hold":
        silence = None
    elif now_ms is not None:
        silence = silence or Silence(now_ms, merged.watermark_ms)
        merged = replace(merged, watermark_ms=max(merged.watermark_ms, idleness.advanced_ms(silence, now_ms)))
    after = replace(tracking, merged=merged, silence=silence)
    return after, _difference(tracking.idle, after.idle, tracking.merged, merged)


def difference(before: MergedWatermark, after: MergedWatermark) -> Told:
    """What is told downstream when one follows the other."""
    return _difference(before.idle, after.idle, before, after)


def _difference(was_idle: bool, is_idle: bool, before: MergedWatermark, after: MergedWatermark) -> Told:
    told: list[WatermarkStatus | Watermark] = []
    if is_idle != was_idle:
        told.append(WatermarkStatus(idle=is_idle))
    if after.watermark_ms > before.watermark_ms:
        told.append(Watermark(after.watermark_ms))
    return tuple(told)
