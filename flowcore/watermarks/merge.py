"""Merging: how far has event time come, given what each partition says?

As far as in the partition that is furthest behind, of those that are not idle, and never back: a
partition that resumes behind holds event time where it is until it catches up, and while all are idle
it stands still.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from flowcore.elements import MIN_TIMESTAMP_MS

__all__ = ["MergedWatermark", "PartitionId", "PartitionWatermark", "merge"]

PartitionId = int | str
"""Whatever tells one input partition from another."""


@dataclass(frozen=True, slots=True)
class PartitionWatermark:
    """What one partition says: its watermark, and whether it is idle."""

    watermark_ms: int = MIN_TIMESTAMP_MS
    idle: bool = False


@dataclass(frozen=True, slots=True)
class MergedWatermark:
    """What all partitions say.

    Attributes:
        partitions: The highest watermark of each, and whether it is idle now.
        watermark_ms: The combined watermark; the smallest timestamp if there is none yet.
    """

    partitions: Mapping[PartitionId, PartitionWatermark] = field(default_factory=dict)
    watermark_ms: int = MIN_TIMESTAMP_MS

    @property
    def idle(self) -> bool:
        """There are partitions, and all are idle."""
        return bool(self.partitions) and all(standing.idle for standing in self.partitions.values())


def merge(merged: MergedWatermark, news: Mapping[PartitionId, PartitionWatermark]) -> MergedWatermark:
    """Take what some partitions say now; a watermark below that partition's highest is an old one.

    Args:
        merged: What all said before. A partition not in it is new and waited for from now on.
        news: What some say now, in any order of arrival.
    """
    partitions = dict(merged.partitions)
    for partition, now in news.items():
        before = partitions.get(partition, now)
        partitions[partition] = PartitionWatermark(max(before.watermark_ms, now.watermark_ms), now.idle)
    active = [standing.watermark_ms for standing in partitions.values() if not standing.idle]
    combined_ms = min(active, default=merged.watermark_ms)
    return MergedWatermark(partitions, max(merged.watermark_ms, combined_ms))
