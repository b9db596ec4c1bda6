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
from flowcore.watermarks.idleness import IdleTimer
from flowcore.watermarks.merge import Merged, PartitionId, Standing, merge
from flowcore.watermarks.strategies import Punctuated, WatermarkStrategy

__all__ = ["Told", "Tracking", "difference", "end_of_input", "look", "record", "start"]

Told = tuple[WatermarkStatus | Watermark, ...]
"""What goes downstream, in order."""


@dataclass(frozen=True, slots=True)
class Tracking:
    """What is known of a source.

    Attributes:
        seen: What the records of each partition have shown.
        timers: The timer of each partition.
        merged: What was told downstream.
    """

    seen: Mapping[PartitionId, Seen]
    timers: Mapping[PartitionId, IdleTimer]
    merged: Merged


def start(partitions: Iterable[PartitionId]) -> Tracking:
    """A source before its first record."""
    known = tuple(partitions)
    return Tracking(
        seen=dict.fromkeys(known, Seen()),
        timers=dict.fromkeys(known, IdleTimer()),
        merged=Merged(dict.fromkeys(known, Standing())),
    )


def record(
    strategy: WatermarkStrategy,
    tracking: Tracking,
    partition: PartitionId,
    timestamp_ms: int | None,
    *,
    marker: bool = False,
) -> tuple[Tracking, Told]:
    """Take one record of one of the partitions; only a punctuated marker has anything told."""
    seen = advance(strategy.generator, tracking.seen[partition], timestamp_ms, marker=marker)
    after = Tracking(
        seen={**tracking.seen, partition: seen},
        timers={**tracking.timers, partition: idleness.record_seen()},
        merged=tracking.merged,
    )
    if not (marker and isinstance(strategy.generator, Punctuated)):
        return after, ()
    return _tell(after, {partition: _standing(strategy, seen, idle=False)})


def look(strategy: WatermarkStrategy, tracking: Tracking, now_ms: int) -> tuple[Tracking, Told]:
    """Look at every partition, and at the clock."""
    if tracking.merged.watermark_ms == MAX_TIMESTAMP_MS:  # the input has ended
        return tracking, ()
    timers, news = {}, {}
    for partition, timer in tracking.timers.items():
        timers[partition], idle = idleness.look(timer, now_ms, strategy.idle_after_ms)
        news[partition] = _standing(strategy, tracking.seen[partition], idle=idle)
    return _tell(replace(tracking, timers=timers), news)


def end_of_input(tracking: Tracking) -> tuple[Tracking, Told]:
    """Every partition has ended: nothing is waited for any more."""
    ended = {
        partition: Standing(MAX_TIMESTAMP_MS, idle=standing.idle)
        for partition, standing in tracking.merged.partitions.items()
    }
    after = replace(tracking, merged=Merged(ended, MAX_TIMESTAMP_MS))
    return after, difference(tracking.merged, after.merged)


def _standing(strategy: WatermarkStrategy, seen: Seen, *, idle: bool) -> Standing:
    found_ms = watermark_ms(strategy.generator, seen)
    return Standing(MIN_TIMESTAMP_MS if found_ms is None else found_ms, idle)


def _tell(tracking: Tracking, news: Mapping[PartitionId, Standing]) -> tuple[Tracking, Told]:
    merged = merge(tracking.merged, news)
    return replace(tracking, merged=merged), difference(tracking.merged, merged)


def difference(before: Merged, after: Merged) -> Told:
    """What is told downstream when one follows the other."""
    told: list[WatermarkStatus | Watermark] = []
    if after.idle != before.idle:
        told.append(WatermarkStatus(idle=after.idle))
    if after.watermark_ms > before.watermark_ms:
        told.append(Watermark(after.watermark_ms))
    return tuple(told)
