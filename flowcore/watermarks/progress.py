"""Event time of a query or of a key group, from all inputs.

The driver follows a query's sources to write watermarks to its sinks. Each key group follows the inputs of
its operator: every task sends every key group what it saw of event time, so all groups of a query compute the
same watermark. A source with a strategy generates watermarks from its records and from processing time, and
takes only the end of input from the elements of its topic. Without a strategy, watermarks of a tagged topic
arrive by channel, as do those of another operator. The combined watermark is the minimum over the sources.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from flowcore.elements import Watermark, WatermarkStatus
from flowcore.watermarks.arriving import ArrivingWatermarks
from flowcore.watermarks.generated import GeneratedWatermarks, NewestTimes
from flowcore.watermarks.merge import ChannelElements, Emitted, MergedWatermark, PartitionWatermark
from flowcore.watermarks.strategies import WatermarkStrategy

__all__ = ["WatermarkProgress", "WatermarkSource"]


@dataclass(frozen=True, slots=True)
class WatermarkSource:
    """An input with event time.

    Attributes:
        strategy: Generates watermarks from records; None if watermarks arrive as elements.
        partitions: The partitions, or key groups, that are known when the query starts.
        senders: The senders of elements that the source declares; None if any may write to it.
        expiry_ms: A sender that has sent nothing for longer is idle until it sends again; None for no limit.
    """

    strategy: WatermarkStrategy | None
    partitions: tuple[str, ...]
    senders: frozenset[str] | None = None
    expiry_ms: int | None = None


class WatermarkProgress:
    """The watermarks of all sources, and the combined one."""

    def __init__(self, sources: Mapping[str, WatermarkSource]) -> None:
        self._sources = {
            name: ArrivingWatermarks(source.partitions, source.senders, source.expiry_ms)
            if source.strategy is None
            else GeneratedWatermarks(source.strategy, source.partitions, source.senders)
            for name, source in sources.items()
        }
        self._merged = MergedWatermark(sources)

    @property
    def watermark_ms(self) -> int:
        """The last watermark that was emitted; the smallest timestamp before that."""
        return self._merged.watermark_ms

    def partitions(self) -> dict[str, dict[str, PartitionWatermark]]:
        """By source, the watermark of each partition."""
        return {name: each.partitions() for name, each in self._sources.items()}

    @property
    def ignored(self) -> dict[str, int]:
        """By source, how many elements were of channels that do not count."""
        return {name: each.ignored for name, each in self._sources.items()}

    def take(self, source: str, newest: NewestTimes) -> None:
        """Take the newest times of a source's records; ignored if the source has no strategy."""
        if isinstance(generated := self._sources.get(source), GeneratedWatermarks):
            generated.take(newest)

    def activate(self, source: str) -> None:
        """Mark all channels of a source as active, after its statuses were missed."""
        if isinstance(arriving := self._sources[source], ArrivingWatermarks):
            arriving.activate()

    def arrive(self, source: str, elements: ChannelElements) -> None:
        """Take the elements of a source together; the next poll returns what has changed."""
        self._sources[source].arrive(elements)

    def follow(
        self, arrivals: Mapping[str, ChannelElements], newest: Mapping[str, NewestTimes]
    ) -> Iterator[tuple[str, int, Emitted]]:
        """Apply the elements of a step one by one, source by source.

        The next poll returns what they change for sources that generate watermarks.

        Args:
            newest: The newest times of the records of the step, by source; `take` takes them afterwards.

        Yields:
            The changes in order: the source, the number of the element, and what is emitted for it. The
            number is -1 if channels became active, which they do before the records of the step.
        """
        generating = {n: each for n, each in self._sources.items() if isinstance(each, GeneratedWatermarks)}
        active = [name for name in newest if name in generating]
        for name in active:
            generating[name].activate(newest[name].partitions)
        followed = {
            name: source.join(elements)
            for name, elements in arrivals.items()
            if isinstance(source := self._sources[name], ArrivingWatermarks)
        }
        if emitted := self._merge(*followed, *active):
            yield "", -1, emitted
        for name, elements in arrivals.items():
            if name in generating:
                generating[name].arrive(elements)
        for name, elements in followed.items():
            for number, watermark_ms, idle in self._sources[name].merged.follow(elements):
                if emitted := self._emit({name: PartitionWatermark(watermark_ms, idle)}):
                    yield name, int(elements.numbers[number]), emitted

    def poll(self, now_ms: int) -> Emitted:
        """Advance processing time; returns what has changed."""
        for each in self._sources.values():
            each.poll(now_ms)
        return self.emit()

    def emit(self) -> Emitted:
        """Return what has changed without a poll, through arrived watermarks and markers."""
        return self._merge(*self._sources)

    def wake_ms(self, now_ms: int) -> int | None:
        """When processing time alone may change the watermark or the status."""
        times = (each.wake_ms(now_ms) for each in self._sources.values())
        return min((time for time in times if time is not None), default=None)

    def restart(self) -> None:
        """After a restart of the query, begin time-outs anew, and emit the last watermark again."""
        for each in self._sources.values():
            each.restart()
        self._merged = MergedWatermark(self._merged.names)

    def snapshot(self) -> dict[str, Any]:
        """The state as JSON-able data."""
        return {
            "merged": self._merged.snapshot(),
            "sources": {name: each.snapshot() for name, each in self._sources.items()},
        }

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Apply a `snapshot`.

        Removed sources are ignored. A new source holds the watermark, and so does a source that has gained or
        lost its strategy, since its state layout differs.
        """
        if not kept:
            return
        names, self._merged = self._merged.names, MergedWatermark.from_snapshot(kept["merged"])
        self._merged.remove(set(self._merged.names) - set(names))
        self._merged.ensure_channels(names)
        for name, each in self._sources.items():
            mine = kept["sources"].get(name)
            if mine is None:
                continue
            if isinstance(each, GeneratedWatermarks) == ("merged" in mine):
                each.restore(mine)
            else:
                each.merged.watermark_ms = mine.get("merged", mine)["watermark_ms"]

    def _merge(self, *names: str) -> Emitted:
        found = {name: self._sources[name] for name in names}
        return self._emit({k: PartitionWatermark(each.watermark_ms, each.idle) for k, each in found.items()})

    def _emit(self, sources: Mapping[str, PartitionWatermark]) -> Emitted:
        """Update sources; returns what changes: first the status, then the watermark."""
        merged, (before_ms, was_idle) = self._merged, (self._merged.watermark_ms, self._merged.idle)
        merged.merge(sources)
        emitted: list[WatermarkStatus | Watermark] = []
        if merged.idle != was_idle:
            emitted.append(WatermarkStatus(idle=merged.idle))
        if merged.watermark_ms > before_ms:
            emitted.append(Watermark(merged.watermark_ms))
        return tuple(emitted)
