"""Watermarks that arrive among the records of a source, or from the key groups of another operator.

A partition may have several channels, one for each sender, and one for elements without a sender. The latter
is there from the start, so that a partition without a known channel holds the watermark; another channel
removes it if it has sent nothing. Channels that elements add or make active become active together, before
the records of the step: otherwise the watermark of the first channel would make the records of the other
channels late.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

from flowcore.channels import find_ignored, partition_of
from flowcore.elements import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from flowcore.watermarks.merge import ChannelElements, MergedWatermark, PartitionWatermark

__all__ = ["ArrivingWatermarks"]


class ArrivingWatermarks:
    """The watermarks of the channels of a source, with the arguments of `WatermarkSource`.

    Attributes:
        merged: The channels that count.
        ignored: How many elements were of other channels.
    """

    def __init__(
        self,
        partitions: Iterable[str],
        senders: Collection[str] | None = None,
        expiry_ms: int | None = None,
    ) -> None:
        self.merged = MergedWatermark(partitions)
        self.ignored = 0
        self._senders = senders
        self._expiry_ms = expiry_ms
        self._heard_ms: dict[str, int | None] = {}
        """The first poll after the last element of each channel; None before that poll."""
        self._expired: set[str] = set()

    @property
    def watermark_ms(self) -> int:
        """The combined watermark."""
        return self.merged.watermark_ms

    @property
    def idle(self) -> bool:
        """All channels are idle."""
        return self.merged.idle

    def join(self, elements: ChannelElements) -> ChannelElements:
        """Add the channels that are not known yet, and make active those that an element makes active.

        Returns:
            The elements of the channels that count.
        """
        new = self.merged.find_unknown(elements.names)
        if new and (ignored := find_ignored(new, self.merged.names, self._senders)):
            every, elements = elements, elements.without(ignored)
            self.ignored += len(every.channel) - len(elements.channel)
            new = tuple(name for name in new if name not in ignored)
        self.merged.ensure_channels(new)
        if named := {partition_of(name) for name in new if "/" in name} - {*elements.names}:
            channels, unheard = self.merged.channels(), PartitionWatermark()
            self.merged.remove(name for name in named if channels.get(name) == unheard)
        numbers = self.merged.ensure_channels(elements.names)[elements.activated]
        if new or self.merged.idle_channels[numbers].any():
            self.merged.update(numbers, MIN_TIMESTAMP_MS, idle=False)
        if self._expiry_ms is not None:
            self._heard_ms |= dict.fromkeys(elements.names)
        if expired := tuple(name for name in elements.names if name in self._expired):
            self._expired.difference_update(expired)
            self.merged.update(self.merged.ensure_channels(expired), MIN_TIMESTAMP_MS, idle=False)
        return elements

    def arrive(self, elements: ChannelElements) -> None:
        """Take elements together: the last watermark and status of each channel."""
        elements = self.join(elements)
        numbers, last = self.merged.ensure_channels(elements.names), elements.last
        status = elements.last_status[last]
        idle = np.where(status < 0, self.merged.idle_channels[numbers], status == 1)
        self.merged.update(numbers, elements.highest_ms[last], idle)

    def activate(self) -> None:
        """Take it that each channel may have become active: the watermark is too low then, never too high."""
        self._expired.clear()
        self.restart()
        self.merged.update(np.arange(len(self.merged)), MIN_TIMESTAMP_MS, idle=False)

    def poll(self, now_ms: int) -> None:
        """Advance processing time: channels that have sent nothing for too long become idle."""
        if self._expiry_ms is None:
            return
        for name, heard_ms in self._heard_ms.items():  # a clock may go back
            self._heard_ms[name] = now_ms if heard_ms is None else min(heard_ms, now_ms)
        due = tuple(name for name, due_ms in self._due_ms(now_ms).items() if due_ms <= now_ms)
        if due:
            self._expired.update(due)
            self.merged.update(self.merged.ensure_channels(due), MIN_TIMESTAMP_MS, idle=True)

    def wake_ms(self, now_ms: int) -> int | None:
        """When processing time alone may make a channel idle."""
        return min(self._due_ms(now_ms).values(), default=None)

    def restart(self) -> None:
        """Begin the time-outs of channels anew."""
        self._heard_ms = dict.fromkeys(self._heard_ms)

    def partitions(self) -> dict[str, PartitionWatermark]:
        """The watermark of each partition, over all its channels."""
        channels: dict[str, dict[str, PartitionWatermark]] = {}
        for name, each in self.merged.channels().items():
            channels.setdefault(partition_of(name), {})[name] = each
        return {partition: _combine(each) for partition, each in channels.items()}

    def snapshot(self) -> dict[str, Any]:
        """The state as JSON-able data."""
        kept = self.merged.snapshot() | ({"ignored": self.ignored} if self.ignored else {})
        if self._expiry_ms is not None:
            kept["heard_ms"] = self._heard_ms
        if self._expired:
            kept["expired"] = sorted(self._expired)
        return kept

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Apply a `snapshot`; partitions that are not part of it hold the watermark.

        Channels that the source does not declare any more are removed, and hold nothing.
        """
        fresh, self.merged = self.merged.names, MergedWatermark.from_snapshot(kept)
        self.ignored = kept.get("ignored", 0)
        if self._senders is not None:
            self.merged.remove(find_ignored(self.merged.names, (), self._senders))
        known = set(map(partition_of, self.merged.names))
        self.merged.ensure_channels(tuple(name for name in fresh if name not in known))
        self._heard_ms = {
            name: each for name, each in kept.get("heard_ms", {}).items() if name in self.merged
        }
        if self._expiry_ms is not None:  # channels from before it was set
            self._heard_ms |= dict.fromkeys(set(self.merged.names) - {*fresh, *self._heard_ms})
        self._expired = {name for name in kept.get("expired", ()) if name in self.merged}

    def _due_ms(self, now_ms: int) -> dict[str, int]:
        """When each channel becomes idle that is neither idle nor has ended."""
        if self._expiry_ms is None:
            return {}
        waits = ~self.merged.idle_channels & (self.merged.channels_ms != MAX_TIMESTAMP_MS)
        active = (self.merged.names[number] for number in np.flatnonzero(waits).tolist())
        heard = {name: self._heard_ms[name] for name in active if name in self._heard_ms}
        return {
            name: (now_ms if heard_ms is None else heard_ms) + self._expiry_ms + 1
            for name, heard_ms in heard.items()
        }


def _combine(channels: Mapping[str, PartitionWatermark]) -> PartitionWatermark:
    merged = MergedWatermark(channels)
    merged.merge(channels)
    return PartitionWatermark(merged.watermark_ms, merged.idle)
