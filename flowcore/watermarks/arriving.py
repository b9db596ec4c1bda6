"""Watermarks that arrive among the records of a source, or from the key groups of another operator.

A partition may have several channels, one for each sender. A partition without a known channel holds the
watermark. Channels that an element adds or makes active do so together, before the records of the step: else
the watermark of the first one would make the records of the others late.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from flowcore.elements import MIN_TIMESTAMP_MS
from flowcore.watermarks.merge import ChannelElements, MergedWatermark, PartitionWatermark

__all__ = ["ArrivingWatermarks", "channel_name"]


def channel_name(partition: str, sender: str = "") -> str:
    """The name of a channel; without a sender, that of its partition."""
    return f"{partition}/{sender}" if sender else partition


class ArrivingWatermarks:
    """The watermarks of the channels of a source.

    Attributes:
        merged: The channels.
    """

    def __init__(self, partitions: Iterable[str]) -> None:
        self.merged = MergedWatermark(partitions)

    @property
    def watermark_ms(self) -> int:
        """The combined watermark."""
        return self.merged.watermark_ms

    @property
    def idle(self) -> bool:
        """All channels are idle."""
        return self.merged.idle

    def join(self, elements: ChannelElements) -> None:
        """Add the channels that are not known yet, and make active those that an element makes active."""
        new = tuple(name for name in elements.names if name not in self.merged)
        self.merged.numbers(new)
        self.merged.remove(_partition(name) for name in new if "/" in name)
        numbers = self.merged.numbers(elements.names)[elements.activated]
        if new or self.merged.idle_channels[numbers].any():
            self.merged.update(numbers, MIN_TIMESTAMP_MS, idle=False)

    def take(self, elements: ChannelElements) -> None:
        """Take elements together: the last watermark and status of each channel."""
        self.join(elements)
        numbers, last = self.merged.numbers(elements.names), elements.last
        status = elements.last_status[last]
        idle = np.where(status < 0, self.merged.idle_channels[numbers], status == 1)
        self.merged.update(numbers, elements.highest_ms[last], idle)

    def partitions(self) -> dict[str, PartitionWatermark]:
        """The watermark of each partition, over all its channels."""
        channels: dict[str, dict[str, PartitionWatermark]] = {}
        for name, each in self.merged.channels().items():
            channels.setdefault(_partition(name), {})[name] = each
        return {partition: _combine(each) for partition, each in channels.items()}

    def snapshot(self) -> dict[str, Any]:
        """The state as JSON-able data."""
        return self.merged.snapshot()

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Apply a `snapshot`; partitions that are not part of it hold the watermark."""
        fresh, self.merged = self.merged.names, MergedWatermark.restored(kept)
        known = set(map(_partition, self.merged.names))
        self.merged.numbers(tuple(name for name in fresh if name not in known))


def _partition(channel: str) -> str:
    return channel.split("/", 1)[0]


def _combine(channels: Mapping[str, PartitionWatermark]) -> PartitionWatermark:
    merged = MergedWatermark(channels)
    merged.merge(channels)
    return PartitionWatermark(merged.watermark_ms, merged.idle)
