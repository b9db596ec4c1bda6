"""Alignment: which partitions are too far ahead to be read on?

What a partition has read ahead of the slowest one waits in state until event time has come there. Holding
it back keeps that small.
"""

from __future__ import annotations

from flowcore.elements import MIN_TIMESTAMP_MS
from flowcore.watermarks.merge import MergedWatermark, PartitionId

__all__ = ["held_back"]


def held_back(merged: MergedWatermark, max_drift_ms: int | None) -> frozenset[PartitionId]:
    """The partitions that are further than this ahead of the slowest active one.

    A partition that has said nothing yet cannot be compared: it holds nobody back.

    Args:
        merged: What each partition says.
        max_drift_ms: None holds nobody back.
    """
    says = {
        name: standing.watermark_ms
        for name, standing in merged.partitions.items()
        if not standing.idle and standing.watermark_ms > MIN_TIMESTAMP_MS
    }
    if max_drift_ms is None or not says:
        return frozenset()
    furthest_ms = min(says.values()) + max_drift_ms
    return frozenset(name for name, watermark_ms in says.items() if watermark_ms > furthest_ms)
