"""The combined watermark of several partitions.

It is the minimum over the active partitions, and never goes back. A partition that becomes active below it
holds it until it has caught up. While all partitions are idle, it does not advance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flowcore.elements import (
    MAX_TIMESTAMP_MS,
    MIN_TIMESTAMP_MS,
    EndOfInput,
    StreamElement,
    Watermark,
    WatermarkStatus,
)

__all__ = ["MergedWatermark", "PartitionId", "PartitionWatermark", "merge", "merge_arrived"]

PartitionId = int | str


@dataclass(frozen=True, slots=True)
class PartitionWatermark:
    """The watermark of one partition, and whether the partition is idle."""

    watermark_ms: int = MIN_TIMESTAMP_MS
    idle: bool = False


@dataclass(frozen=True, slots=True)
class MergedWatermark:
    """The watermarks of all partitions, and the combined one.

    Attributes:
        partitions: The highest watermark of each, and whether it is idle now.
        watermark_ms: The combined watermark; the smallest timestamp before the first one.
    """

    partitions: Mapping[PartitionId, PartitionWatermark] = field(default_factory=dict)
    watermark_ms: int = MIN_TIMESTAMP_MS

    @property
    def idle(self) -> bool:
        """There are partitions, and all are idle."""
        return bool(self.partitions) and all(each.idle for each in self.partitions.values())


def merge(merged: MergedWatermark, updates: Mapping[PartitionId, PartitionWatermark]) -> MergedWatermark:
    """Update some partitions; a watermark below the highest of its partition is outdated.

    Args:
        merged: All partitions before. A partition that is not among them is added.
        updates: The current values of some partitions.
    """
    partitions = dict(merged.partitions)
    for partition, now in updates.items():
        before = partitions.get(partition, now)
        partitions[partition] = PartitionWatermark(max(before.watermark_ms, now.watermark_ms), now.idle)
    active = [each.watermark_ms for each in partitions.values() if not each.idle]
    combined_ms = min(active, default=merged.watermark_ms)
    return MergedWatermark(partitions, max(merged.watermark_ms, combined_ms))


def merge_arrived(
    merged: MergedWatermark, partition: str, channel: str, element: StreamElement[Any]
) -> MergedWatermark | None:
    """Update the channel of a partition by an element that arrived; None if it has no event time."""
    name = f"{partition}/{channel}"
    before = merged.partitions.get(name, PartitionWatermark())
    match element:
        case Watermark(timestamp_ms):
            now = PartitionWatermark(timestamp_ms, before.idle)
        case WatermarkStatus(idle):
            now = PartitionWatermark(before.watermark_ms, idle)
        case EndOfInput():
            now = PartitionWatermark(MAX_TIMESTAMP_MS, idle=False)
        case _:
            return None
    # The entry of the partition itself holds the watermark only until its first channel is known.
    known = {key: value for key, value in merged.partitions.items() if key != partition}
    return merge(MergedWatermark(known, merged.watermark_ms), {name: now})
