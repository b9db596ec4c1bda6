"""Backlog: whether the records being read are backlog or live, and what changes while they are backlog.

A source enters and leaves backlog by its lag. A combination of channels, such as the inputs of a query, is in
backlog if any channel is, and live once every channel has reported that it is live. While a channel has
reported nothing, the combination is unknown and the last emitted status holds. A backlog can be read again,
so it needs fewer checkpoints. `flowcore.flush` holds the rules of flush buffers in backlog.

Pure: the clock is passed in. Times are integer milliseconds.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from flowcore.elements import RecordAttributes
from flowcore.errors import ConfigurationError

__all__ = [
    "LEAST_RECORDS",
    "ChannelStatus",
    "CheckpointInterval",
    "QueryInputs",
    "Thresholds",
    "batch_records",
    "open_channels",
    "receive",
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


@dataclass(frozen=True, slots=True)
class ChannelStatus:
    """The backlog status of each channel.

    Attributes:
        backlog: The last report of each channel, None before the first.
        emitted: The status emitted downstream last, None if there is none.
    """

    backlog: tuple[bool | None, ...]
    emitted: bool | None = None


def open_channels(count: int) -> ChannelStatus:
    """Channels that have reported nothing yet.

    Raises:
        ConfigurationError: ``count`` is not positive.
    """
    if count < 1:
        msg = f"channels={count} is not positive: nothing would ever be emitted downstream; pass channels > 0"
        raise ConfigurationError(msg)
    return ChannelStatus((None,) * count)


def receive(
    channels: ChannelStatus, channel: int, attributes: RecordAttributes
) -> tuple[ChannelStatus, RecordAttributes | None]:
    """The status after the report of one channel, and what is to be emitted downstream, if anything.

    Args:
        channels: The status before.
        attributes: The report.

    Raises:
        ConfigurationError: There is no such channel.

    >>> _, emitted = receive(open_channels(2), 1, RecordAttributes(backlog=True))
    >>> emitted
    RecordAttributes(backlog=True)
    """
    if not 0 <= channel < len(channels.backlog):
        msg = (
            f"channel {channel} is not one of {len(channels.backlog)}: its report would count for another; "
            f"pass 0 to {len(channels.backlog) - 1}"
        )
        raise ConfigurationError(msg)
    backlog = (*channels.backlog[:channel], attributes.backlog, *channels.backlog[channel + 1 :])
    combined = any(backlog)
    if combined == channels.emitted or (not combined and None in backlog):
        return ChannelStatus(backlog, channels.emitted), None
    return ChannelStatus(backlog, combined), RecordAttributes(combined)


class QueryInputs:
    """Backlog status of a query; its channels are its bounded results and its sources, by name.

    A bounded result is in backlog until it is committed, a source while it lags
    (`Thresholds`).

    Args:
        pending: Names of the bounded results that it joins; they begin in backlog.
        sources: Names of the sources that it reads; their status is unknown at first.

    >>> inputs = QueryInputs(["catalog"], ["bids"])
    >>> inputs.backlog
    True
    >>> inputs.update("catalog", backlog=False), inputs.update("bids", backlog=False)
    (None, RecordAttributes(backlog=False))
    """

    def __init__(self, pending: Iterable[str], sources: Iterable[str]) -> None:
        pending = tuple(pending)
        self._numbers = {name: number for number, name in enumerate((*pending, *sources))}
        self._channels = open_channels(len(self._numbers))
        for name in pending:
            self.update(name, backlog=True)

    @property
    def backlog(self) -> bool | None:
        """The status emitted downstream last, None if there is none."""
        return self._channels.emitted

    def update(self, name: str, *, backlog: bool) -> RecordAttributes | None:
        """Take the report of one input; return what is to be emitted downstream, if the status changes."""
        attributes = RecordAttributes(backlog)
        self._channels, emitted = receive(self._channels, self._numbers[name], attributes)
        return emitted


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
                f"backlog_interval_ms={backlog_ms} is shorter than interval_ms={self.interval_ms}: the "
                f"backlog would cost more checkpoints than live records; pass backlog_interval_ms >= "
                f"{self.interval_ms}, or 0 for no checkpoints in backlog"
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
