"""Minutes of `flowcore bench latency`, which follow one another: latency of the bids and of the markers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flowcore.errors import RunError
from flowcore.latency import RECENT_S, recent_since_us
from tests.benchmarks._delays import Delays, select_sent, summarize_delays

__all__ = ["Marked", "Minute", "minute_ends"]

ALIGNED_US = 10_000_000
"""Between two moments at which the period of recent markers may begin."""


@dataclass(frozen=True, slots=True)
class Minute:
    """Latency of the bids and of the markers of one minute.

    Attributes:
        checkpoints: Of the query that had the fewest.
    """

    bids: int
    delays: Delays
    markers: int
    p50_ms: float
    p99_ms: float
    checkpoints: int


@dataclass(frozen=True, slots=True)
class Marked:
    """The latency of the markers of a minute, whose end is not in it."""

    from_us: int
    until_us: int
    markers: int
    p50_ms: float
    p99_ms: float
    checkpoints: int

    def with_bids(self, received: Sequence[tuple[int, bytes]]) -> Minute:
        """Add the latency of the bids that were sent in it.

        Args:
            received: Time of receipt and value of the results of all bids, also of later ones.

        Raises:
            RunError: No bid was sent in it.
        """
        delays_ms, received_us = select_sent(received, self.from_us, self.until_us)
        if not delays_ms.size:
            msg = "no bid was sent in a minute: there is nothing to compare its markers with"
            raise RunError(msg)
        delays = summarize_delays(delays_ms, received_us)
        return Minute(delays_ms.size, delays, self.markers, self.p50_ms, self.p99_ms, self.checkpoints)


def minute_ends(now_us: int, minutes: int) -> list[int]:
    """The ends of minutes that follow one another, each with the markers that are recent then.

    The first one begins at this time, or up to ten seconds later.
    """
    length_us = RECENT_S * 1_000_000
    # The period of recent markers is a minute exactly if it is read at one of the moments where it may begin.
    begin_us = recent_since_us(now_us) + length_us
    if begin_us < now_us:
        begin_us += ALIGNED_US
    return [begin_us + number * length_us for number in range(1, minutes + 1)]
