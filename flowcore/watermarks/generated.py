"""Watermarks of a source with several partitions, from the times of its records.

They follow from the newest timestamp of any record, of markers only, or the newest value of a user's
generator. Polls emit them, as do markers of a punctuated strategy, and only if they have changed. Of the
elements that arrive in the topic, only the end of input counts: a partition ends when all of its senders have
ended.

An idle timer changes only when it is polled. The first poll after a record notices the record, the next one
starts the time-out, and a poll more than the time-out later finds the partition idle.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flowcore.elements import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from flowcore.errors import FunctionError
from flowcore.watermarks.arriving import ArrivingWatermarks
from flowcore.watermarks.merge import (
    ChannelElements,
    Flags,
    MergedWatermark,
    PartitionWatermark,
    Times,
    decode_times,
    encode_times,
)
from flowcore.watermarks.strategies import BoundedOutOfOrderness, Generator, Punctuated, WatermarkStrategy

__all__ = ["GeneratedWatermarks", "IdlePeriod", "NewestTimes", "call_generator", "watermarks_ms"]


_NOT_QUIET = MIN_TIMESTAMP_MS


def watermarks_ms(generator: Generator, newest_ms: Times) -> Times:
    """The watermarks of partitions; the smallest timestamp before the first time that counts."""
    match generator:
        case BoundedOutOfOrderness(delay_ms=delay_ms):
            behind_ms = delay_ms + 1
            return np.maximum(newest_ms, MIN_TIMESTAMP_MS + behind_ms) - behind_ms
        case _:
            return newest_ms


def call_generator(function: Callable[[Any], int | None], timestamps_ms: Any) -> int | None:
    """Call a user's generator with the timestamps of a batch of one partition.

    Raises:
        FunctionError: The generator returned something that is not a time.
    """
    time_ms = function(timestamps_ms)
    if time_ms is None or (isinstance(time_ms, int) and MIN_TIMESTAMP_MS <= time_ms <= MAX_TIMESTAMP_MS):
        return time_ms
    msg = (
        f"the generator of watermarks {function!r} returned {time_ms!r}, which is not a time: event time "
        "could not advance; return int milliseconds since 1970, or None"
    )
    raise FunctionError(msg)


@dataclass(frozen=True, slots=True)
class IdlePeriod:
    """Begin of a period in which all partitions are idle and the watermark advances with processing time."""

    since_ms: int
    watermark_ms: int

    def advance(self, now_ms: int) -> int:
        """The watermark now; the smallest timestamp does not advance."""
        if self.watermark_ms == MIN_TIMESTAMP_MS:
            return MIN_TIMESTAMP_MS
        # The maximum watermark means the end of input.
        return min(self.watermark_ms + max(now_ms - self.since_ms, 0), MAX_TIMESTAMP_MS - 1)


@dataclass(frozen=True, slots=True, eq=False)
class NewestTimes:
    """The newest time that counts of the records of some partitions.

    Attributes:
        partitions: The partitions, each once.
        times_ms: The times; the smallest timestamp if no record counts.
    """

    partitions: tuple[str, ...]
    times_ms: Times

    @classmethod
    def of(cls, times_ms: Mapping[str, int | None]) -> NewestTimes:
        """Times by partition, None if no record counts."""
        times = [MIN_TIMESTAMP_MS if each is None else each for each in times_ms.values()]
        return cls(tuple(times_ms), np.array(times, np.int64))


class GeneratedWatermarks:
    """The watermarks of a source with a strategy, with the arguments of `WatermarkSource`.

    Attributes:
        merged: The watermarks of its partitions.
    """

    def __init__(
        self,
        strategy: WatermarkStrategy,
        partitions: Iterable[str],
        senders: Collection[str] | None = None,
    ) -> None:
        self._strategy = strategy
        self._senders = ArrivingWatermarks((), senders)
        self.merged = MergedWatermark()
        self._newest_ms: Times = np.empty(0, np.int64)
        """The newest time that counts of each partition; the smallest timestamp before the first."""
        self._quiet_ms: Times = np.empty(0, np.int64)
        """The first poll without a new record; ``_NOT_QUIET`` if there was none."""
        self._active: Flags = np.empty(0, np.bool_)
        """A record has arrived since the last poll."""
        self._idle_period: IdlePeriod | None = None
        self._numbers(tuple(partitions))

    @property
    def watermark_ms(self) -> int:
        """The combined watermark."""
        return self.merged.watermark_ms

    @property
    def idle(self) -> bool:
        """All partitions are idle, and the watermark does not advance."""
        return self._idle_period is None and self.merged.idle

    @property
    def ignored(self) -> int:
        """How many elements were of channels that do not count."""
        return self._senders.ignored

    def take(self, newest: NewestTimes) -> None:
        """Take records of partitions; one that is not known yet is added.

        A punctuated strategy's marker advances its partition at once, other records at the next poll.
        """
        at = self._numbers(newest.partitions)
        self._active[at] = True
        if self._strategy.generates:
            self._newest_ms[at] = np.maximum(self._newest_ms[at], newest.times_ms)
        if isinstance(self._strategy.generator, Punctuated):
            at = at[newest.times_ms != MIN_TIMESTAMP_MS]
            self.merged.update(at, watermarks_ms(self._strategy.generator, self._newest_ms[at]), idle=False)
            self._begin_or_end_idle_period(None)

    def activate(self, partitions: tuple[str, ...]) -> None:
        """Make partitions active whose records are about to be taken; the watermark stays."""
        at = self._numbers(partitions)  # before the array is taken: a partition may be new
        self.merged.idle_channels[at] = False
        self._begin_or_end_idle_period(None)

    def poll(self, now_ms: int) -> None:
        """Advance processing time for all partitions."""
        if self.watermark_ms == MAX_TIMESTAMP_MS:  # the input has ended
            return
        idle = np.zeros(len(self.merged), np.bool_)
        idle_after_ms = self._strategy.idle_after_ms
        if idle_after_ms is not None:
            quiet = ~self._active & (self._quiet_ms != _NOT_QUIET)
            np.minimum(self._quiet_ms, now_ms, out=self._quiet_ms, where=quiet)  # a clock may go back
            idle[quiet] = now_ms - self._quiet_ms[quiet] > idle_after_ms
            self._quiet_ms[~self._active & ~quiet] = now_ms
        self._quiet_ms[self._active] = _NOT_QUIET
        self._active[:] = False
        watermarks = watermarks_ms(self._strategy.generator, self._newest_ms)
        self.merged.update(np.arange(len(idle)), watermarks, idle)
        self._begin_or_end_idle_period(now_ms)

    def arrive(self, elements: ChannelElements) -> None:
        """End the partitions all of whose senders have ended; the next poll emits that."""
        self._senders.arrive(elements)
        if MAX_TIMESTAMP_MS in elements.watermark_ms:
            senders = self._senders.partitions()
            ended = tuple(name for name in senders if senders[name].watermark_ms == MAX_TIMESTAMP_MS)
            self.merged.update(self._numbers(ended), MAX_TIMESTAMP_MS, idle=False)
            self._begin_or_end_idle_period(None)

    def wake_ms(self, now_ms: int) -> int | None:
        """When processing time alone may change the watermark or the status."""
        if self._strategy.idle_after_ms is None:
            return None
        if self._idle_period is not None:
            return now_ms + 1
        waits = ~self.merged.idle_channels & (self.merged.channels_ms != MAX_TIMESTAMP_MS)
        quiet_ms = self._quiet_ms[waits]
        if not len(quiet_ms):
            return None
        if (quiet_ms == _NOT_QUIET).any():
            return now_ms + 1
        return int(quiet_ms.min()) + self._strategy.idle_after_ms + 1

    def partitions(self) -> dict[str, PartitionWatermark]:
        """The watermark of each partition."""
        return self.merged.channels()

    def restart(self) -> None:
        """Begin the time-outs of partitions anew."""
        self._quiet_ms[:] = _NOT_QUIET

    def snapshot(self) -> dict[str, Any]:
        """The state as JSON-able data."""
        return {
            "merged": self.merged.snapshot(),
            "senders": self._senders.snapshot() if len(self._senders.merged) else None,
            "newest_ms": encode_times(self._newest_ms),
            "delayed": self._is_delayed,
            "active": np.flatnonzero(self._active).tolist(),
            "quiet_ms": "" if self._strategy.idle_after_ms is None else encode_times(self._quiet_ms),
            "idle_period": None if self._idle_period is None else asdict(self._idle_period),
        }

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Apply a `snapshot`; partitions that are not part of it hold the watermark.

        If the newest times had another meaning, watermarks stay until the strategy gives higher ones.
        """
        names = self.merged.names
        self.merged = MergedWatermark.from_snapshot(kept["merged"])
        if kept.get("senders"):
            self._senders.restore(kept["senders"])
        self._newest_ms = decode_times(kept["newest_ms"])
        if kept.get("delayed", self._is_delayed) != self._is_delayed:
            self._newest_ms[:] = MIN_TIMESTAMP_MS
        self._quiet_ms = np.full(len(self.merged), _NOT_QUIET, np.int64)
        if kept["quiet_ms"]:
            self._quiet_ms = decode_times(kept["quiet_ms"])
        self._active = np.zeros(len(self.merged), np.bool_)
        self._active[kept["active"]] = True
        self._idle_period = None if kept["idle_period"] is None else IdlePeriod(**kept["idle_period"])
        self._numbers(names)

    @property
    def _is_delayed(self) -> bool:
        """Whether the newest times are timestamps, of which watermarks follow, and not watermarks."""
        return isinstance(self._strategy.generator, BoundedOutOfOrderness)

    def _numbers(self, partitions: tuple[str, ...]) -> npt.NDArray[np.intp]:
        found = self.merged.ensure_channels(partitions)
        added = len(self.merged) - len(self._newest_ms)
        if added:
            self._newest_ms = np.append(self._newest_ms, np.full(added, MIN_TIMESTAMP_MS, np.int64))
            self._quiet_ms = np.append(self._quiet_ms, np.full(added, _NOT_QUIET, np.int64))
            self._active = np.append(self._active, np.zeros(added, np.bool_))
        return found

    def _begin_or_end_idle_period(self, now_ms: int | None) -> None:
        if not self.merged.idle or self._strategy.all_idle == "hold":
            self._idle_period = None
        elif now_ms is not None:
            period = self._idle_period or IdlePeriod(now_ms, self.watermark_ms)
            if period.advance(now_ms) < self.watermark_ms:  # the clock was set back
                period = IdlePeriod(now_ms, self.watermark_ms)
            self._idle_period = period
            self.merged.watermark_ms = period.advance(now_ms)
