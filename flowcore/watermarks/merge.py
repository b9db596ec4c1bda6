"""The combined watermark of several channels.

A channel is a partition of a source, a sender or key group whose elements arrive, or a source of a query. One
rule holds for all: the combined watermark is the minimum over the active channels, and never goes back. A
channel that becomes active below the combined watermark holds the combined watermark until the channel has
caught up.

A channel at the end of time has ended: it is not idle, and does not hold the combined watermark. While all
others are idle, the watermark does not advance, since they may become active again. When all channels have
ended, it is the end of time.

The channels are NumPy vectors, so that a step costs the same whether one channel changes or a thousand do.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from flowcore.elements import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS, Watermark, WatermarkStatus

__all__ = [
    "ChannelElements",
    "Emitted",
    "Flags",
    "MergedWatermark",
    "PartitionWatermark",
    "Times",
    "decode_times",
    "delay_watermark",
    "encode_times",
]

Times = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Emitted = tuple[WatermarkStatus | Watermark, ...]
"""The elements that are emitted, in order."""

_ACTIVE, _IDLE, _NO_STATUS = 0, 1, -1


@dataclass(frozen=True, slots=True)
class PartitionWatermark:
    """The watermark of one partition, and whether the partition is idle."""

    watermark_ms: int = MIN_TIMESTAMP_MS
    idle: bool = False


@dataclass(slots=True)
class ChannelElements:
    """Control elements in order: all of one channel, then all of the next one.

    Attributes:
        names: The channels.
        channel: For each element, the number of its channel in ``names``.
        watermark_ms: For each element, its watermark; the smallest timestamp if it is a status.
        status: For each element, 1 for idle, 0 for active, -1 if it is a watermark.
        numbers: For each element, its number among those of its step.
    """

    names: tuple[str, ...]
    channel: npt.NDArray[np.intp]
    watermark_ms: Times
    status: npt.NDArray[np.int8]
    numbers: npt.NDArray[np.intp]
    highest_ms: Times = field(init=False)
    """For each element, the highest watermark of its channel up to it."""
    last_status: npt.NDArray[np.int8] = field(init=False)
    """For each element, the last status of its channel up to it; -1 if there is none."""
    last: npt.NDArray[np.intp] = field(init=False)
    """For each channel, its last element."""
    activated: npt.NDArray[np.intp] = field(init=False)
    """The channels that an element makes active."""

    def __post_init__(self) -> None:
        count = len(self.channel)
        values, ranks = np.unique(self.watermark_ms, return_inverse=True)
        offset = self.channel * count  # a later channel begins anew
        self.highest_ms = values[np.maximum.accumulate(ranks + offset) - offset]
        place = np.where(self.status == _NO_STATUS, -1, np.arange(count))
        latest = np.maximum.accumulate(place)
        first = np.searchsorted(self.channel, self.channel)
        self.last_status = np.where(latest >= first, self.status[latest], _NO_STATUS).astype(np.int8)
        self.last = np.searchsorted(self.channel, np.arange(len(self.names)), side="right") - 1
        self.activated = np.unique(self.channel[self.status == _ACTIVE])

    @classmethod
    def from_elements(
        cls, elements: Iterable[tuple[str, Watermark | WatermarkStatus]]
    ) -> tuple[ChannelElements, list[int]]:
        """Sort elements by channel, in the order of the channels' first elements.

        Returns:
            The sorted elements, and for each the highest input index among it and the elements before it. An
            element may be processed once the input up to that index has been read.
        """
        by_channel: dict[str, list[tuple[int, Watermark | WatermarkStatus]]] = {}
        for number, (name, element) in enumerate(elements):
            by_channel.setdefault(name, []).append((number, element))
        numbers = [number for each in by_channel.values() for number, _ in each]
        flat = [element for each in by_channel.values() for _, element in each]
        made = cls(
            tuple(by_channel),
            np.repeat(np.arange(len(by_channel)), [len(each) for each in by_channel.values()]),
            np.array(
                [e.timestamp_ms if isinstance(e, Watermark) else MIN_TIMESTAMP_MS for e in flat], np.int64
            ),
            np.array([int(e.idle) if isinstance(e, WatermarkStatus) else _NO_STATUS for e in flat], np.int8),
            np.arange(len(flat)),
        )
        return made, np.maximum.accumulate(np.array(numbers, np.intp)).tolist()

    def without(self, names: Collection[str]) -> ChannelElements:
        """The elements of the other channels."""
        kept = np.array([name not in names for name in self.names], np.bool_)
        chosen = kept[self.channel]
        return ChannelElements(
            tuple(name for name in self.names if name not in names),
            (np.cumsum(kept) - 1)[self.channel[chosen]],
            self.watermark_ms[chosen],
            self.status[chosen],
            self.numbers[chosen],
        )


def delay_watermark(watermark_ms: int, delay_ms: int) -> int:
    """A watermark delayed by a length of time. The end of time and the smallest time are not delayed.

    >>> delay_watermark(100, 30), delay_watermark(MAX_TIMESTAMP_MS, 30) == MAX_TIMESTAMP_MS
    (70, True)
    """
    return (
        watermark_ms if watermark_ms == MAX_TIMESTAMP_MS else max(watermark_ms - delay_ms, MIN_TIMESTAMP_MS)
    )


class MergedWatermark:
    """The watermarks of all channels, and the combined one.

    Attributes:
        watermark_ms: The combined watermark; the smallest timestamp before the first one.
        names: The channels.
        channels_ms: The highest watermark of each channel.
        idle_channels: Which channels are idle.
    """

    __slots__ = ("channels_ms", "idle_channels", "names", "watermark_ms")

    def __init__(self, names: Iterable[str] = ()) -> None:
        self.names = tuple(names)
        self.channels_ms: Times = np.full(len(self.names), MIN_TIMESTAMP_MS, np.int64)
        self.idle_channels: Flags = np.zeros(len(self.names), np.bool_)
        self.watermark_ms = MIN_TIMESTAMP_MS

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, name: str) -> bool:
        return name in _numbers(self.names)

    @property
    def idle(self) -> bool:
        """Some channels are idle, and all others have ended."""
        ended = self.channels_ms == MAX_TIMESTAMP_MS
        return bool(self.idle_channels.any()) and bool((self.idle_channels | ended).all())

    def channels(self) -> dict[str, PartitionWatermark]:
        """The watermark of each channel."""
        values = zip(self.names, self.channels_ms.tolist(), self.idle_channels.tolist(), strict=False)
        # Not strict: another thread may be adding a channel.
        return {name: PartitionWatermark(watermark_ms, idle) for name, watermark_ms, idle in values}

    def find_unknown(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """The names that are not channels."""
        return _find_unknown(self.names, names)

    def ensure_channels(self, names: tuple[str, ...]) -> npt.NDArray[np.intp]:
        """Return the numbers of channels; new ones are added, active and before their first watermark."""
        added = self.find_unknown(names)
        if added:
            self.names += added
            self.channels_ms = np.append(self.channels_ms, np.full(len(added), MIN_TIMESTAMP_MS, np.int64))
            self.idle_channels = np.append(self.idle_channels, np.zeros(len(added), np.bool_))
        return _find(self.names, names)

    def remove(self, names: Iterable[str]) -> None:
        """Remove channels, which no longer hold the watermark from the next update on."""
        removed = {name for name in names if name in self}
        if removed:
            kept = [number for number, name in enumerate(self.names) if name not in removed]
            self.names = tuple(self.names[number] for number in kept)
            self.channels_ms, self.idle_channels = self.channels_ms[kept], self.idle_channels[kept]

    def update(self, numbers: npt.NDArray[np.intp], watermarks_ms: Times | int, idle: Flags | bool) -> None:
        """Update channels together; a watermark below the highest of its channel is ignored."""
        self.channels_ms[numbers] = np.maximum(self.channels_ms[numbers], watermarks_ms)
        self.idle_channels[numbers] = idle & (self.channels_ms[numbers] != MAX_TIMESTAMP_MS)
        if len(self) and not self.idle:
            active_ms = self.channels_ms[~self.idle_channels]
            self.watermark_ms = max(self.watermark_ms, int(active_ms.min()))

    def merge(self, channels: Mapping[str, PartitionWatermark]) -> None:
        """Update these channels together."""
        times = np.array([each.watermark_ms for each in channels.values()], np.int64)
        idle = np.array([each.idle for each in channels.values()], np.bool_)
        self.update(self.ensure_channels(tuple(channels)), times, idle)

    def follow(self, elements: ChannelElements) -> list[tuple[int, int, bool]]:
        """Take elements one after the other.

        Returns:
            The changes in order: the number of the element, the combined watermark after it, and whether the
            combination is idle.
        """
        numbers = self.ensure_channels(elements.names)
        own, status = numbers[elements.channel], elements.last_status
        own_ms = np.maximum(self.channels_ms[own], elements.highest_ms)
        own_idle = np.where(status == _NO_STATUS, self.idle_channels[own], status == _IDLE)
        own_idle &= own_ms != MAX_TIMESTAMP_MS
        lowest_ms = np.where(own_idle, MAX_TIMESTAMP_MS, own_ms)
        before_ms = np.where(self.idle_channels, MAX_TIMESTAMP_MS, self.channels_ms)
        others = np.ones(len(before_ms), np.bool_)
        others[numbers] = False
        others_ms = _combine_others(
            np.minimum,
            lowest_ms[elements.last],
            before_ms[numbers],
            before_ms[others].min(initial=MAX_TIMESTAMP_MS),
        )
        others_idle = _combine_others(
            np.logical_or,
            own_idle[elements.last],
            self.idle_channels[numbers],
            self.idle_channels[others].any(),
        )
        lowest_ms = np.minimum(lowest_ms, others_ms[elements.channel])
        idle = (lowest_ms == MAX_TIMESTAMP_MS) & (own_idle | others_idle[elements.channel])
        combined_ms = np.append(self.watermark_ms, np.where(idle, MIN_TIMESTAMP_MS, lowest_ms))
        combined_ms = np.maximum.accumulate(combined_ms)
        changed = (np.diff(combined_ms) != 0) | np.diff(idle, prepend=self.idle)
        self.channels_ms[numbers] = own_ms[elements.last]
        self.idle_channels[numbers] = own_idle[elements.last]
        self.watermark_ms = int(combined_ms[-1])
        return [
            (number, int(combined_ms[number + 1]), bool(idle[number]))
            for number in np.flatnonzero(changed).tolist()
        ]

    def snapshot(self) -> dict[str, Any]:
        """The state as JSON-able data."""
        return {
            "watermark_ms": self.watermark_ms,
            "names": _encode_names(self.names),
            "channels_ms": encode_times(self.channels_ms),
            "idle": np.flatnonzero(self.idle_channels).tolist(),
        }

    @classmethod
    def from_snapshot(cls, kept: Mapping[str, Any]) -> MergedWatermark:
        """The state that a `snapshot` has."""
        merged = cls(_decode_names(kept["names"]))
        merged.watermark_ms = kept["watermark_ms"]
        merged.channels_ms = decode_times(kept["channels_ms"])
        merged.idle_channels[kept["idle"]] = True
        return merged


def encode_times(times: Times) -> str:
    """Times as text, which is a third shorter than their digits."""
    return base64.b64encode(times.astype("<i8").tobytes()).decode()


def decode_times(written: str) -> Times:
    """The times of `encode_times`."""
    return np.frombuffer(base64.b64decode(written), "<i8").astype(np.int64)


@lru_cache(maxsize=64)
def _encode_names(names: tuple[str, ...]) -> str:
    return json.dumps(names, separators=(",", ":"))


@lru_cache(maxsize=64)
def _decode_names(written: str) -> tuple[str, ...]:
    return tuple(json.loads(written))


@lru_cache(maxsize=64)
def _numbers(names: tuple[str, ...]) -> Mapping[str, int]:
    """The number of each channel; all key groups of a worker have the same channels."""
    return {name: number for number, name in enumerate(names)}


@lru_cache(maxsize=64)
def _find_unknown(names: tuple[str, ...], wanted: tuple[str, ...]) -> tuple[str, ...]:
    known = _numbers(names)
    return tuple(name for name in dict.fromkeys(wanted) if name not in known)


@lru_cache(maxsize=64)
def _find(names: tuple[str, ...], wanted: tuple[str, ...]) -> npt.NDArray[np.intp]:
    known = _numbers(names)
    found = np.array([known[name] for name in wanted], np.intp)
    found.flags.writeable = False
    return found


def _combine_others(
    ufunc: np.ufunc, after: npt.NDArray[Any], before: npt.NDArray[Any], rest: Any
) -> npt.NDArray[Any]:
    """For each channel, combine the values of all other channels at the time its elements are taken.

    Args:
        ufunc: A binary ufunc with ``f(x, x) == x``, such as `np.minimum`.
        after: The values after the step, for the channels whose elements were taken earlier.
        before: The values before the step, for those whose elements are taken later.
        rest: The value of the channels without elements.
    """
    earlier = ufunc.accumulate(np.append(rest, after[:-1]))
    later = ufunc.accumulate(np.append(rest, before[:0:-1]))[::-1]
    combined: npt.NDArray[Any] = ufunc(earlier, later)
    return combined
