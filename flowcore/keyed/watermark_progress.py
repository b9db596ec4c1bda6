"""Watermarks of a key group, from all inputs of its operator.

Every task that reads an input partition sends every key group what it saw of event time, so that all groups
of a query compute the same watermark. For a source with a strategy, it sends the newest timestamps of
partitions, and the watermark follows from them and from processing time. For a source of tagged elements, it
sends the watermarks that arrived, for each *channel*.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from flowcore.elements import StreamElement, Watermark, WatermarkStatus
from flowcore.watermarks import tracking
from flowcore.watermarks.generators import GeneratorState
from flowcore.watermarks.merge import MergedWatermark, PartitionId, PartitionWatermark, merge, merge_arrived
from flowcore.watermarks.strategies import Punctuated, WatermarkStrategy
from flowcore.watermarks.tracking import Emitted, IdlePeriod, IdleTimer, Tracking, emit_difference

__all__ = ["WatermarkProgress", "WatermarkSource"]


@dataclass(frozen=True, slots=True)
class WatermarkSource:
    """An input with event time.

    Attributes:
        strategy: Generates watermarks from records; None for a source of tagged elements.
        partitions: The partitions that are known when the query starts.
        relays: The only input, with one partition and one sender: its elements are passed on as they arrive.
    """

    strategy: WatermarkStrategy | None
    partitions: tuple[str, ...]
    relays: bool = False


class WatermarkProgress:
    """The watermarks of one key group."""

    def __init__(self, sources: Mapping[str, WatermarkSource]) -> None:
        self._sources = sources
        self._tracking = {
            name: tracking.start_tracking(source.partitions)
            for name, source in sources.items()
            if source.strategy
        }
        self._arrived = {
            name: MergedWatermark(dict.fromkeys(source.partitions, PartitionWatermark()))
            for name, source in sources.items()
            if not source.strategy
        }
        self._merged = MergedWatermark({name: PartitionWatermark() for name in sources})

    @property
    def watermark_ms(self) -> int:
        """The current watermark."""
        return self._merged.watermark_ms

    def seen(self, source: str, partition: str, newest_ms: int | None) -> None:
        """Take the newest timestamp that counts of the records of a partition; None if there is none."""
        strategy = self._sources[source].strategy
        if strategy is None:
            return
        before = self._tracking[source]
        if partition not in before.seen:
            partitions = {**before.merged.partitions, partition: PartitionWatermark()}
            before = replace(
                before,
                seen={**before.seen, partition: GeneratorState()},
                timers={**before.timers, partition: IdleTimer()},
                merged=replace(before.merged, partitions=partitions),
            )
        marker = isinstance(strategy.generator, Punctuated) and newest_ms is not None
        self._tracking[source], _ = tracking.add_record(
            strategy, before, partition, newest_ms, marker=marker, expression_ms=newest_ms
        )

    def arrive(self, source: str, partition: str, channel: str, element: StreamElement[Any]) -> Emitted:
        """Take a control element of a partition; returns what changes at once."""
        if self._sources[source].relays and isinstance(element, Watermark | WatermarkStatus):
            return (element,)
        merged = merge_arrived(self._arrived[source], partition, channel, element)
        if merged is None:
            return ()
        self._arrived[source] = merged
        return self._merge({source: PartitionWatermark(merged.watermark_ms, merged.idle)})

    def poll(self, now_ms: int) -> Emitted:
        """Advance processing time; returns what has changed."""
        sources: dict[PartitionId, PartitionWatermark] = {}
        for name, before in self._tracking.items():
            strategy = self._sources[name].strategy
            if strategy is not None:
                self._tracking[name], _ = tracking.poll(strategy, before, now_ms)
            now = self._tracking[name]
            sources[name] = PartitionWatermark(now.merged.watermark_ms, now.idle)
        return self._merge(sources)

    def wake_ms(self, now_ms: int) -> int | None:
        """When processing time alone may change the watermark or the status."""
        times = []
        for name, known in self._tracking.items():
            strategy = self._sources[name].strategy
            if strategy is None or strategy.idle_after_ms is None:
                continue
            if known.idle_period is not None:  # the watermark advances with processing time
                times.append(now_ms + 1)
            for partition, timer in known.timers.items():
                if not known.merged.partitions[partition].idle:
                    quiet_ms = timer.quiet_since_ms
                    times.append(now_ms + 1 if quiet_ms is None else quiet_ms + strategy.idle_after_ms + 1)
        return min(times, default=None)

    def snapshot(self) -> dict[str, Any]:
        """The state as JSON-able data."""
        return {
            "merged": _encode(self._merged),
            "arrived": {name: _encode(merged) for name, merged in self._arrived.items()},
            "tracking": {
                name: {
                    "seen": {partition: seen.newest_ms for partition, seen in each.seen.items()},
                    "timers": {partition: asdict(timer) for partition, timer in each.timers.items()},
                    "merged": _encode(each.merged),
                    "silence": None if each.idle_period is None else asdict(each.idle_period),
                }
                for name, each in self._tracking.items()
            },
        }

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Apply a `snapshot`; removed sources are ignored, new sources hold the watermark."""
        if not kept:
            return
        before = _decode(kept["merged"])
        partitions: dict[PartitionId, PartitionWatermark] = {
            name: before.partitions.get(name, PartitionWatermark()) for name in self._sources
        }
        self._merged = replace(before, partitions=partitions)
        for name, merged in self._arrived.items():
            if name in kept["arrived"]:
                self._arrived[name] = _with_new(_decode(kept["arrived"][name]), merged)
        for name, fresh in self._tracking.items():
            if name not in kept["tracking"]:
                continue
            each = kept["tracking"][name]
            seen = {partition: GeneratorState(newest_ms) for partition, newest_ms in each["seen"].items()}
            timers = {partition: IdleTimer(**timer) for partition, timer in each["timers"].items()}
            self._tracking[name] = Tracking(
                {**fresh.seen, **seen},
                {**fresh.timers, **timers},
                _with_new(_decode(each["merged"]), fresh.merged),
                None if each["silence"] is None else IdlePeriod(**each["silence"]),
            )

    def _merge(self, sources: Mapping[PartitionId, PartitionWatermark]) -> Emitted:
        before, self._merged = self._merged, merge(self._merged, sources)
        return emit_difference(before, self._merged)


def _with_new(kept: MergedWatermark, fresh: MergedWatermark) -> MergedWatermark:
    """The restored partitions, and the new ones."""
    known = {str(name).split("/", 1)[0] for name in kept.partitions}
    new = {name: each for name, each in fresh.partitions.items() if name not in known}
    return replace(kept, partitions={**kept.partitions, **new})


def _encode(merged: MergedWatermark) -> dict[str, Any]:
    partitions = {name: [each.watermark_ms, each.idle] for name, each in merged.partitions.items()}
    return {"watermark_ms": merged.watermark_ms, "partitions": partitions}


def _decode(written: Mapping[str, Any]) -> MergedWatermark:
    partitions = {name: PartitionWatermark(*each) for name, each in written["partitions"].items()}
    return MergedWatermark(partitions, written["watermark_ms"])
