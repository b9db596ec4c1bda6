"""Backlog: whether the records being read are backlog or live, and what changes while they are backlog.

A source enters and leaves backlog by its lag. A combination of channels, such as the partitions of a topic,
is in backlog if any channel is, and live once every channel has reported that it is live. While a channel has
reported nothing, the combination is unknown and the last emitted status holds. A channel that has ended does
not count; when all have ended, nothing changes. A backlog can be read again, so it needs fewer checkpoints.
`flowcore.flush` holds the rules of flush buffers in backlog.

Pure: the clock is passed in. Times are integer milliseconds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from flowcore.channels import find_ignored, partition_of
from flowcore.durations import show_ms
from flowcore.elements import RecordAttributes
from flowcore.errors import ConfigurationError

__all__ = [
    "LEAST_RECORDS",
    "BacklogProgress",
    "CheckpointInterval",
    "MergedBacklog",
    "Thresholds",
    "batch_records",
]


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The lags between which a source keeps its status.

    Args:
        enter: A lag above this one begins backlog.
        leave: A lag up to this one ends it; 0 <= leave < enter.

    Raises:
        ConfigurationError: ``leave`` is negative or not below ``enter``.
    """

    enter: int
    leave: int

    def __post_init__(self) -> None:
        if not 0 <= self.leave < self.enter:
            msg = (
                f"backlog.leave={self.leave} is not below backlog.enter={self.enter}: a query would go "
                "to and fro between catching up and live; pass 0 <= backlog.leave < backlog.enter, in records"
            )
            raise ConfigurationError(msg)

    def in_backlog(self, lag: int, *, before: bool | None) -> bool:
        """Whether a source is in backlog.

        Args:
            lag: Unread records of the partition that has most.
            before: Whether the source was in backlog, None if that is not known.

        >>> Thresholds(100, 10).in_backlog(50, before=False), Thresholds(100, 10).in_backlog(50, before=True)
        (False, True)
        """
        return lag > (self.leave if before else self.enter)


class MergedBacklog:
    """The backlog statuses of the channels of one input, and their combination.

    Args:
        channels: Their names; no channel has reported yet. A channel may be added with its first report.
        senders: The senders that the input declares; None if any may write to it.

    Attributes:
        backlog: The status emitted downstream last, None if there is none.

    >>> merged = MergedBacklog(["0", "1"])
    >>> [merged.receive("1", backlog=True), merged.receive("1", backlog=False)]
    [RecordAttributes(backlog=True), None]
    >>> merged.receive("0", backlog=False)
    RecordAttributes(backlog=False)
    """

    __slots__ = ("_channels", "_senders", "backlog")

    def __init__(self, channels: Iterable[str] = (), senders: Collection[str] | None = None) -> None:
        self._channels: dict[str, bool | None] = dict.fromkeys(channels)
        self._senders = senders
        self.backlog: bool | None = None

    def receive(self, channel: str, *, backlog: bool | None) -> RecordAttributes | None:
        """Take the report of a channel; return what is to be emitted downstream, if the status changes.

        Args:
            channel: Its name, or ``partition/sender`` if the senders to a partition are channels.
            backlog: Its status; None if it has ended, so that the others decide.
        """
        if "/" in channel and channel not in self._channels and self._ignores(channel):
            return None
        if self._channels.get(partition := partition_of(channel)) is None:  # it has reported nothing
            self._channels.pop(partition, None)
        self._channels.pop(channel, None)
        if backlog is not None:
            self._channels[channel] = backlog
        statuses = self._channels.values()
        combined = any(statuses)
        is_known = combined or (statuses and None not in statuses)
        if not is_known or combined == self.backlog:
            return None
        self.backlog = combined
        return RecordAttributes(combined)

    def snapshot(self, known: Iterable[str]) -> dict[str, Any]:
        """The state as JSON-able data; short if the channels are the known ones, and agree."""
        agree = self._channels == dict.fromkeys(known, self.backlog)
        return {"backlog": self.backlog, "channels": None if agree else self._channels}

    @classmethod
    def from_snapshot(
        cls, kept: Mapping[str, Any], known: Iterable[str], senders: Collection[str] | None = None
    ) -> MergedBacklog:
        """The state of a `snapshot`, without the channels that the input does not declare any more."""
        merged = cls((), senders)
        merged.backlog = kept["backlog"]
        if kept["channels"] is None:
            merged._channels = dict.fromkeys(known, merged.backlog)
            return merged
        merged._channels = {**kept["channels"]}
        for channel in [each for each in merged._channels if "/" in each and merged._ignores(each)]:
            del merged._channels[channel]
        left = set(map(partition_of, merged._channels))
        gone = {partition_of(each) for each in kept["channels"]} - left
        merged._channels |= dict.fromkeys(gone)
        return merged

    def _ignores(self, channel: str) -> bool:
        others = (each for each in self._channels if each != channel)
        return bool(find_ignored([channel], others, self._senders))


class BacklogProgress:
    """Backlog status of an operator or a query over all its inputs: backlog while any of them is.

    Inputs that have no status do not count.

    Args:
        inputs: The known channels of each input.
        ignored: The inputs that do not count.
        senders: Of each input that declares them, its senders.

    Attributes:
        backlog: The status emitted downstream last, None if there is none.
    """

    def __init__(
        self,
        inputs: Mapping[str, Collection[str]],
        ignored: Collection[str] = (),
        senders: Mapping[str, Collection[str]] | None = None,
    ) -> None:
        self._known = inputs
        self._senders = senders or {}
        self._ignored = ignored
        self._inputs: dict[str, MergedBacklog] = {}
        self.backlog: bool | None = None

    def receive(self, source: str, channel: str, *, backlog: bool | None) -> RecordAttributes | None:
        """Take the report of a channel of an input, as `MergedBacklog.receive` does."""
        if source not in self._inputs:
            self._inputs[source] = MergedBacklog(self._known[source], self._senders.get(source))
        self._inputs[source].receive(channel, backlog=backlog)
        statuses = {each.backlog for name, each in self._inputs.items() if name not in self._ignored} - {None}
        combined = True in statuses
        if not statuses or combined == self.backlog:
            return None
        self.backlog = combined
        return RecordAttributes(combined)

    def snapshot(self) -> dict[str, Any]:
        """The state as JSON-able data."""
        inputs = {name: each.snapshot(self._known[name]) for name, each in self._inputs.items()}
        return {"backlog": self.backlog, "inputs": inputs} if inputs else {}

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Apply a `snapshot`; removed inputs are ignored."""
        self.backlog = kept.get("backlog")
        for name, each in kept.get("inputs", {}).items():
            if name in self._known:
                senders = self._senders.get(name)
                self._inputs[name] = MergedBacklog.from_snapshot(each, self._known[name], senders)


LEAST_RECORDS = 10_000
"""A speed measured over very few records must not make very small batches."""


@dataclass(frozen=True, slots=True)
class CheckpointInterval:
    """Time between two checkpoints.

    Args:
        interval_ms: The interval, > 0.
        backlog_interval_ms: The interval while a source is in backlog, at least ``interval_ms``; 0 for no
            checkpoints in backlog, None for the same interval.

    Raises:
        ConfigurationError: ``interval_ms`` is not positive, or ``backlog_interval_ms`` is shorter.
    """

    interval_ms: int
    backlog_interval_ms: int | None = None

    def __post_init__(self) -> None:
        if self.interval_ms < 1:
            msg = (
                f"interval_ms={self.interval_ms} is not positive: checkpoints would never end; "
                f"pass interval_ms > 0"
            )
            raise ConfigurationError(msg)
        backlog_ms = self.backlog_interval_ms
        if backlog_ms is not None and backlog_ms != 0 and backlog_ms < self.interval_ms:
            msg = (
                f"setting execution.checkpointing.interval-during-backlog='{show_ms(backlog_ms)}' is shorter "
                f"than execution.realtime.batch-duration='{show_ms(self.interval_ms)}': the backlog would "
                f"cost more checkpoints than live records; set it to '{show_ms(self.interval_ms)}' or more, "
                "or to 0 for no checkpoints in backlog"
            )
            raise ConfigurationError(msg)

    def interval_ms_in(self, *, backlog: bool) -> int | None:
        """The interval in backlog or out of it; None if there are no checkpoints."""
        if backlog and self.backlog_interval_ms is not None:
            return self.backlog_interval_ms or None
        return self.interval_ms


def batch_records(interval: CheckpointInterval, per_second: float | None, most: int) -> int:
    """The number of records of a batch in backlog: what the query reads in one checkpoint interval.

    Each batch is a checkpoint, and a planned stop waits for its end.

    Args:
        per_second: Records that the query reads in a second, None if the speed is not known yet.
        most: The upper bound, which protects memory.

    >>> batch_records(CheckpointInterval(60_000), 15_000.0, 5_000_000)
    900000
    """
    interval_ms = interval.interval_ms_in(backlog=True)
    if interval_ms is None or not per_second:
        return most
    return min(most, max(round(per_second * interval_ms / 1000), LEAST_RECORDS))
