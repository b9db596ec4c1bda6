"""Combined backlog status of several channels.

The combination is in backlog if any channel is, and live once every channel has reported that it is live.
While a channel has reported nothing, the combination is unknown and the last emitted status holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from flowcore.elements import RecordAttributes
from flowcore.errors import ConfigurationError

__all__ = ["ChannelStatus", "QueryInputs", "open_channels", "receive"]


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
    (`flowcore.backlog.thresholds`).

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
