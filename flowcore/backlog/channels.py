"""Channels: what do several inputs say together of the records that follow?

They are history if any channel says so, and news once every channel has said that. While a channel has said
nothing yet, nothing is known, and what was told before holds.
"""

from __future__ import annotations

from dataclasses import dataclass

from flowcore.elements import RecordAttributes
from flowcore.errors import ConfigurationError

__all__ = ["Channels", "hear", "start"]


@dataclass(frozen=True, slots=True)
class Channels:
    """What is known of the channels.

    Attributes:
        backlog: What each has said last, None if nothing.
        told: What was told downstream last, None if nothing.
    """

    backlog: tuple[bool | None, ...]
    told: bool | None = None

    @property
    def combined(self) -> bool | None:
        """What they say together, None if that is not known."""
        if any(self.backlog):
            return True
        return None if None in self.backlog else False


def start(channels: int) -> Channels:
    """Channels that have said nothing yet.

    Raises:
        ConfigurationError: There is none.
    """
    if channels < 1:
        msg = f"channels={channels} is not positive: nothing would ever be told downstream; pass channels > 0"
        raise ConfigurationError(msg)
    return Channels((None,) * channels)


def hear(
    channels: Channels, channel: int, said: RecordAttributes
) -> tuple[Channels, RecordAttributes | None]:
    """Hear what one channel says: the channels after it, and what is to be told downstream, if anything.

    Args:
        channels: As they were.
        channel: Which one speaks, from 0.
        said: What it says.

    Raises:
        ConfigurationError: There is no such channel.

    >>> _, told = hear(start(2), 1, RecordAttributes(backlog=True))
    >>> told
    RecordAttributes(backlog=True)
    """
    if not 0 <= channel < len(channels.backlog):
        msg = (
            f"channel {channel} is none of {len(channels.backlog)}: it would be counted for another; "
            f"pass 0 to {len(channels.backlog) - 1}"
        )
        raise ConfigurationError(msg)
    backlog = (*channels.backlog[:channel], said.backlog, *channels.backlog[channel + 1 :])
    after = Channels(backlog, channels.told)
    combined = after.combined
    if combined is None or combined == channels.told:
        return after, None
    return Channels(backlog, combined), RecordAttributes(combined)
