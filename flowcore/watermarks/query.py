"""Watermarks of a live query, over all its sources.

A source with a strategy generates watermarks from its records. A source without one passes on the watermarks
that arrive: each of its partitions may have several *channels*, one for each query that writes to it, and
holds the watermark until it has at least one. A query emits the minimum over its sources.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from flowcore.elements import MIN_TIMESTAMP_MS, StreamElement
from flowcore.watermarks import tracking
from flowcore.watermarks.generators import GeneratorState
from flowcore.watermarks.merge import MergedWatermark, PartitionId, PartitionWatermark, merge, merge_arrived
from flowcore.watermarks.strategies import Punctuated, WatermarkStrategy
from flowcore.watermarks.tracking import Emitted, emit_difference

__all__ = ["ArrivingWatermarks", "GeneratedWatermarks", "QueryWatermarks"]

_EMITTED = "told"
"""The JSON key of the emitted watermark, beside those of partitions."""


class GeneratedWatermarks:
    """The watermarks of a source with a strategy."""

    def __init__(self, strategy: WatermarkStrategy, partitions: Iterable[int]) -> None:
        self._strategy = strategy
        self._tracking = tracking.start_tracking(partitions)

    def take(self, newest_ms: Mapping[int, int | None]) -> None:
        """Take a batch: the newest time that counts of each partition with records."""
        marker = isinstance(self._strategy.generator, Punctuated)
        for partition, time_ms in newest_ms.items():
            self._tracking, _ = tracking.add_record(
                self._strategy, self._tracking, partition, time_ms,
                marker=marker and time_ms is not None, expression_ms=time_ms,
            )  # fmt: skip

    def poll(self, now_ms: int) -> PartitionWatermark:
        """Advance processing time."""
        self._tracking, _ = tracking.poll(self._strategy, self._tracking, now_ms)
        return PartitionWatermark(self._tracking.merged.watermark_ms, self._tracking.idle)

    def partitions(self) -> dict[int, PartitionWatermark]:
        """The watermark of each partition."""
        return {int(number): each for number, each in self._tracking.merged.partitions.items()}

    def snapshot(self) -> dict[str, Any]:
        """The state as JSON-able data."""
        newest = {str(partition): seen.newest_ms for partition, seen in self._tracking.seen.items()}
        # The watermark may have advanced with processing time, which no partition's time shows.
        return {**newest, _EMITTED: self._tracking.merged.watermark_ms}

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Apply a `snapshot`; removed partitions are ignored."""
        seen = {partition: GeneratorState(kept.get(str(partition))) for partition in self._tracking.seen}
        merged = replace(self._tracking.merged, watermark_ms=kept.get(_EMITTED, MIN_TIMESTAMP_MS))
        self._tracking = replace(self._tracking, seen=seen, merged=merged)


class ArrivingWatermarks:
    """The watermarks that a source reads among its records."""

    def __init__(self, partitions: Iterable[int]) -> None:
        self._merged = MergedWatermark({str(partition): PartitionWatermark() for partition in partitions})

    def take(self, partition: int, channel: str, element: StreamElement[Any]) -> None:
        """Take one control element; record attributes have no event time."""
        self._merged = merge_arrived(self._merged, str(partition), channel, element) or self._merged

    def poll(self, now_ms: int) -> PartitionWatermark:  # noqa: ARG002 - the sender has polled
        """The watermark that has arrived."""
        return PartitionWatermark(self._merged.watermark_ms, self._merged.idle)

    def partitions(self) -> dict[int, PartitionWatermark]:
        """The watermark of each partition, over all its channels."""
        channels: dict[int, dict[PartitionId, PartitionWatermark]] = {}
        for name, each in self._merged.partitions.items():
            channels.setdefault(int(str(name).partition("/")[0]), {})[name] = each
        merged = {number: merge(MergedWatermark(), known) for number, known in channels.items()}
        return {number: PartitionWatermark(each.watermark_ms, each.idle) for number, each in merged.items()}

    def snapshot(self) -> dict[str, Any]:
        """The state as JSON-able data."""
        return {str(name): [each.watermark_ms, each.idle] for name, each in self._merged.partitions.items()}

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Apply a `snapshot`."""
        partitions: dict[PartitionId, PartitionWatermark] = {
            name: PartitionWatermark(watermark_ms, idle) for name, (watermark_ms, idle) in kept.items()
        }
        unknown = {
            name: each
            for name, each in self._merged.partitions.items()
            if not any(str(known).startswith(f"{name}/") for known in partitions)
        }
        self._merged = merge(MergedWatermark(unknown), partitions)


class QueryWatermarks:
    """The watermarks that a query emits."""

    def __init__(self, sources: Mapping[str, GeneratedWatermarks | ArrivingWatermarks]) -> None:
        self.sources = sources
        self._merged = MergedWatermark({name: PartitionWatermark() for name in sources})

    @property
    def watermark_ms(self) -> int:
        """The last watermark that was emitted; the smallest timestamp before that."""
        return self._merged.watermark_ms

    def poll(self, now_ms: int) -> Emitted:
        """Advance processing time; returns what is emitted."""
        before = self._merged
        self._merged = merge(before, {name: source.poll(now_ms) for name, source in self.sources.items()})
        return emit_difference(before, self._merged)

    def snapshot(self) -> dict[str, Any]:
        """The state as JSON-able data."""
        return {name: source.snapshot() for name, source in self.sources.items()}

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Apply a `snapshot`; the last watermark is emitted again."""
        for name, source in self.sources.items():
            source.restore(kept.get(name, {}))
