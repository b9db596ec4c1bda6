"""Event time of a key group: how far has it come, by all the inputs that the group hears of?

Every task that reads an input partition tells every key group what it saw of time, so that all groups of a
query come to the same answer without asking each other. A source with a strategy tells the newest timestamps
of its partitions, and the watermark follows from them and from the clock here; one that reads tagged elements
passes on those that arrived, for each of its *channels*.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from flowcore.elements import MAX_TIMESTAMP_MS, EndOfInput, StreamElement, Watermark, WatermarkStatus
from flowcore.watermarks import tracking
from flowcore.watermarks.generators import Seen
from flowcore.watermarks.idleness import IdleTimer, Silence
from flowcore.watermarks.merge import MergedWatermark, PartitionId, PartitionWatermark, merge
from flowcore.watermarks.strategies import Punctuated, WatermarkStrategy
from flowcore.watermarks.tracking import Told, Tracking, difference

__all__ = ["WatermarkProgress", "WatermarkSource"]


@dataclass(frozen=True, slots=True)
class WatermarkSource:
    """An input whose partitions say something of time.

    Attributes:
        strategy: What its records say; None if it reads watermarks that others made.
        partitions: Those that are known when the query starts; more may turn up.
        relays: It is the only input, of one partition and one sender: there is nothing to merge, and what
            arrived is passed on as it is.
    """

    strategy: WatermarkStrategy | None
    partitions: tuple[str, ...]
    relays: bool = False


class WatermarkProgress:
    """How far event time has come in one key group.

    Args:
        sources: The query's inputs by name.
    """

    def __init__(self, sources: Mapping[str, WatermarkSource]) -> None:
        self._sources = sources
        self._tracking = {
            name: tracking.start(source.partitions) for name, source in sources.items() if source.strategy
        }
        self._arrived = {
            name: MergedWatermark(dict.fromkeys(source.partitions, PartitionWatermark()))
            for name, source in sources.items()
            if not source.strategy
        }
        self._merged = MergedWatermark({name: PartitionWatermark() for name in sources})

    @property
    def watermark_ms(self) -> int:
        """How far it has come."""
        return self._merged.watermark_ms

    def seen(self, source: str, partition: str, newest_ms: int | None) -> None:
        """A partition had records: the newest timestamp that counts, if one does."""
        strategy = self._sources[source].strategy
        if strategy is None:
            return
        before = self._tracking[source]
        if partition not in before.seen:
            known = replace(
                before.merged, partitions={**before.merged.partitions, partition: PartitionWatermark()}
            )
            before = replace(
                before,
                seen={**before.seen, partition: Seen()},
                timers={**before.timers, partition: IdleTimer()},
                merged=known,
            )
        marker = isinstance(strategy.generator, Punctuated) and newest_ms is not None
        self._tracking[source], _ = tracking.record(
            strategy, before, partition, newest_ms, marker=marker, said_ms=newest_ms
        )

    def arrive(self, source: str, partition: str, channel: str, element: StreamElement[Any]) -> Told:
        """A control element came among the records of a partition; what changes at once."""
        if self._sources[source].relays and isinstance(element, Watermark | WatermarkStatus):
            return (element,)
        merged = self._arrived[source]
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
                return ()
        # A partition is no longer waited for under its own name when its first channel is known.
        known = {key: value for key, value in merged.partitions.items() if key != partition}
        self._arrived[source] = merge(MergedWatermark(known, merged.watermark_ms), {name: now})
        news: dict[PartitionId, PartitionWatermark] = {source: _standing(self._arrived[source])}
        return self._tell(news)

    def poll(self, now_ms: int) -> Told:
        """Look at the clock; what has changed."""
        news: dict[PartitionId, PartitionWatermark] = {}
        for name, before in self._tracking.items():
            strategy = self._sources[name].strategy
            if strategy is not None:
                self._tracking[name], _ = tracking.poll(strategy, before, now_ms)
            now = self._tracking[name]
            news[name] = PartitionWatermark(now.merged.watermark_ms, now.idle)
        return self._tell(news)

    def wake_ms(self, now_ms: int) -> int | None:
        """When the clock alone may change something."""
        times = []
        for name, known in self._tracking.items():
            strategy = self._sources[name].strategy
            if strategy is None or strategy.idle_after_ms is None:
                continue
            if known.silence is not None:  # event time goes on as the clock does
                times.append(now_ms + 1)
            for partition, timer in known.timers.items():
                standing = known.merged.partitions[partition]
                if not standing.idle:
                    quiet_ms = timer.quiet_since_ms
                    times.append(now_ms + 1 if quiet_ms is None else quiet_ms + strategy.idle_after_ms + 1)
        return min(times, default=None)

    def snapshot(self) -> dict[str, Any]:
        """What must survive, as JSON-able data."""
        return {
            "merged": _written(self._merged),
            "arrived": {name: _written(merged) for name, merged in self._arrived.items()},
            "tracking": {
                name: {
                    "seen": {partition: seen.newest_ms for partition, seen in each.seen.items()},
                    "timers": {partition: asdict(timer) for partition, timer in each.timers.items()},
                    "merged": _written(each.merged),
                    "silence": None if each.silence is None else asdict(each.silence),
                }
                for name, each in self._tracking.items()
            },
        }

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Go on from a `snapshot`; sources that are gone since are forgotten, new ones waited for."""
        if not kept:
            return
        before = _read(kept["merged"])
        standing: dict[PartitionId, PartitionWatermark] = {
            name: before.partitions.get(name, PartitionWatermark()) for name in self._sources
        }
        self._merged = replace(before, partitions=standing)
        for name, merged in self._arrived.items():
            if name in kept["arrived"]:
                self._arrived[name] = _with_new(_read(kept["arrived"][name]), merged)
        for name, fresh in self._tracking.items():
            if name not in kept["tracking"]:
                continue
            each = kept["tracking"][name]
            seen = {partition: Seen(newest_ms) for partition, newest_ms in each["seen"].items()}
            timers = {partition: IdleTimer(**timer) for partition, timer in each["timers"].items()}
            self._tracking[name] = Tracking(
                {**fresh.seen, **seen},
                {**fresh.timers, **timers},
                _with_new(_read(each["merged"]), fresh.merged),
                None if each["silence"] is None else Silence(**each["silence"]),
            )

    def _tell(self, news: Mapping[PartitionId, PartitionWatermark]) -> Told:
        before, self._merged = self._merged, merge(self._merged, news)
        return difference(before, self._merged)


def _standing(merged: MergedWatermark) -> PartitionWatermark:
    return PartitionWatermark(merged.watermark_ms, merged.idle)


def _with_new(kept: MergedWatermark, fresh: MergedWatermark) -> MergedWatermark:
    """What was kept, and partitions that nobody has heard of yet."""
    known = {str(name).split("/", 1)[0] for name in kept.partitions}
    new = {name: standing for name, standing in fresh.partitions.items() if name not in known}
    return replace(kept, partitions={**kept.partitions, **new})


def _written(merged: MergedWatermark) -> dict[str, Any]:
    partitions = {name: [each.watermark_ms, each.idle] for name, each in merged.partitions.items()}
    return {"watermark_ms": merged.watermark_ms, "partitions": partitions}


def _read(written: Mapping[str, Any]) -> MergedWatermark:
    partitions = {name: PartitionWatermark(*each) for name, each in written["partitions"].items()}
    return MergedWatermark(partitions, written["watermark_ms"])
