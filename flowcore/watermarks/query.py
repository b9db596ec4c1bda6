"""Queries: how far has event time come in a live query, whatever its sources bring?

A source with a strategy makes watermarks from its records. One without passes on those that arrive:
each of its partitions may have several *channels*, one for each query that writes to it, and is waited
for until it has at least one. What a query tells downstream is the minimum over all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from flowcore.elements import (
    MAX_TIMESTAMP_MS,
    MIN_TIMESTAMP_MS,
    EndOfInput,
    StreamElement,
    Watermark,
    WatermarkStatus,
)
from flowcore.watermarks import tracking
from flowcore.watermarks.generators import Seen
from flowcore.watermarks.merge import MergedWatermark, PartitionId, PartitionWatermark, merge
from flowcore.watermarks.strategies import Punctuated, WatermarkStrategy
from flowcore.watermarks.tracking import Told, difference

__all__ = ["ArrivingWatermarks", "GeneratedWatermarks", "QueryWatermarks"]


_TOLD = "told"


class GeneratedWatermarks:
    """The watermarks of a source with a strategy.

    Args:
        strategy: What its records say.
        partitions: All it has.
    """

    def __init__(self, strategy: WatermarkStrategy, partitions: Iterable[int]) -> None:
        self._strategy = strategy
        self._tracking = tracking.start(partitions)

    def take(self, newest_ms: Mapping[int, int | None]) -> None:
        """Take a batch: for each partition that had records, the newest time that counts."""
        marker = isinstance(self._strategy.generator, Punctuated)
        for partition, time_ms in newest_ms.items():
            self._tracking, _ = tracking.record(
                self._strategy, self._tracking, partition, time_ms,
                marker=marker and time_ms is not None, said_ms=time_ms,
            )  # fmt: skip

    def poll(self, now_ms: int) -> PartitionWatermark:
        """Look at the clock."""
        self._tracking, _ = tracking.poll(self._strategy, self._tracking, now_ms)
        return PartitionWatermark(self._tracking.merged.watermark_ms, self._tracking.idle)

    def standings(self) -> dict[int, PartitionWatermark]:
        """What was last told of each partition."""
        return {int(number): standing for number, standing in self._tracking.merged.partitions.items()}

    def snapshot(self) -> dict[str, Any]:
        """What must survive a restart, as JSON."""
        newest = {str(partition): seen.newest_ms for partition, seen in self._tracking.seen.items()}
        # What the clock has added in a silence follows from no record.
        return {**newest, _TOLD: self._tracking.merged.watermark_ms}

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Go on from a `snapshot`; partitions that are gone since are forgotten."""
        seen = {partition: Seen(kept.get(str(partition))) for partition in self._tracking.seen}
        told_ms = kept.get(_TOLD, MIN_TIMESTAMP_MS)
        merged = replace(self._tracking.merged, watermark_ms=told_ms)
        self._tracking = replace(self._tracking, seen=seen, merged=merged)


class ArrivingWatermarks:
    """The watermarks that a source reads among its records.

    Args:
        partitions: All it has.
    """

    def __init__(self, partitions: Iterable[int]) -> None:
        self._merged = MergedWatermark({str(partition): PartitionWatermark() for partition in partitions})

    def take(self, partition: int, channel: str, element: StreamElement[Any]) -> None:
        """Take one control element; record attributes say nothing of time."""
        name = f"{partition}/{channel}"
        before = self._merged.partitions.get(name, PartitionWatermark())
        match element:
            case Watermark(timestamp_ms):
                now = PartitionWatermark(timestamp_ms, before.idle)
            case WatermarkStatus(idle):
                now = PartitionWatermark(before.watermark_ms, idle)
            case EndOfInput():
                now = PartitionWatermark(MAX_TIMESTAMP_MS, idle=False)
            case _:
                return
        # A partition is no longer waited for under its own name when its first channel is known.
        known = {key: value for key, value in self._merged.partitions.items() if key != str(partition)}
        self._merged = merge(replace(self._merged, partitions=known), {name: now})

    def poll(self, now_ms: int) -> PartitionWatermark:  # noqa: ARG002 - the sender has looked at its clock
        """What has arrived."""
        return PartitionWatermark(self._merged.watermark_ms, self._merged.idle)

    def standings(self) -> dict[int, PartitionWatermark]:
        """What was last told of each partition, by all its channels together."""
        channels: dict[int, dict[PartitionId, PartitionWatermark]] = {}
        for name, standing in self._merged.partitions.items():
            channels.setdefault(int(str(name).partition("/")[0]), {})[name] = standing
        merged = {number: merge(MergedWatermark(), known) for number, known in channels.items()}
        return {number: PartitionWatermark(each.watermark_ms, each.idle) for number, each in merged.items()}

    def snapshot(self) -> dict[str, Any]:
        """What must survive a restart, as JSON."""
        return {
            str(name): [standing.watermark_ms, standing.idle]
            for name, standing in self._merged.partitions.items()
        }

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Go on from a `snapshot`."""
        partitions: dict[PartitionId, PartitionWatermark] = {
            name: PartitionWatermark(watermark_ms, idle) for name, (watermark_ms, idle) in kept.items()
        }
        waiting = {
            name: standing
            for name, standing in self._merged.partitions.items()
            if not any(str(known).startswith(f"{name}/") for known in partitions)
        }
        self._merged = merge(MergedWatermark(waiting), partitions)


class QueryWatermarks:
    """What a query tells downstream.

    Args:
        sources: Its sources' watermarks by name.
    """

    def __init__(self, sources: Mapping[str, GeneratedWatermarks | ArrivingWatermarks]) -> None:
        self.sources = sources
        self._merged = MergedWatermark({name: PartitionWatermark() for name in sources})

    @property
    def watermark_ms(self) -> int:
        """What was last told downstream; the smallest timestamp before that."""
        return self._merged.watermark_ms

    def poll(self, now_ms: int) -> Told:
        """What has changed for downstream by now."""
        before = self._merged
        self._merged = merge(before, {name: source.poll(now_ms) for name, source in self.sources.items()})
        return difference(before, self._merged)

    def snapshot(self) -> dict[str, Any]:
        """What must survive a restart, as JSON."""
        return {name: source.snapshot() for name, source in self.sources.items()}

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Go on from a `snapshot`; what was told before is told again."""
        for name, source in self.sources.items():
            source.restore(kept.get(name, {}))
