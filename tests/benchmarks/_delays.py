"""What delays of results are reported as: percentiles, the longest one, and pauses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipelines.auctions.readers import latencies_ms
from pipelines.benchmark import Figures

__all__ = ["Delays", "figures_of_delays", "select_sent", "summarize_delays"]

_PAUSE_MS = 100.0
"""A second with a delay over this is slow."""


@dataclass(frozen=True, slots=True)
class Delays:
    """The delays of one run.

    Attributes:
        slow_seconds: Seconds of sending in which a delay was longer than 100 ms.
        longest_pause_ms: The longest time between two results.
    """

    p50_ms: float
    p99_ms: float
    max_ms: float
    slow_seconds: int
    longest_pause_ms: float


def summarize_delays(delays_ms: npt.NDArray[np.float64], received_us: npt.NDArray[np.int64]) -> Delays:
    """Summarize delays.

    Args:
        delays_ms: The delay of each result.
        received_us: When each was received, in microseconds since the epoch.
    """
    p50, p99 = (float(value) for value in np.percentile(delays_ms, [50, 99]))
    sent_s = (received_us - delays_ms * 1_000) // 1_000_000
    pauses_us = np.diff(np.sort(received_us))
    return Delays(
        p50, p99, float(delays_ms.max()),
        slow_seconds=len(np.unique(sent_s[delays_ms > _PAUSE_MS])),
        longest_pause_ms=float(pauses_us.max(initial=0)) / 1_000,
    )  # fmt: skip


def select_sent(
    received: Sequence[tuple[int, bytes]], from_us: int, until_us: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """The delay and the time of receipt of each result of a record that was sent in a period.

    Args:
        received: Time of receipt and value of each result, whenever it was received.
        from_us: Begin of the period, in microseconds since the epoch.
        until_us: Its end, which is not in it.
    """
    delays_ms = latencies_ms(received)
    received_us = np.array([time_us for time_us, _ in received], dtype=np.int64)
    sent_us = np.rint(received_us - delays_ms * 1_000)
    wanted = (sent_us >= from_us) & (sent_us < until_us)
    return delays_ms[wanted], received_us[wanted]


def figures_of_delays(name: str, runs: Sequence[Delays]) -> list[Figures]:
    """Figures of the runs of one contender."""
    return [
        Figures(f"{name}, p50", "ms", [run.p50_ms for run in runs]),
        Figures(f"{name}, p99", "ms", [run.p99_ms for run in runs]),
        Figures(f"{name}, p100", "ms", [run.max_ms for run in runs]),
        Figures(f"{name}, longest pause", "ms", [run.longest_pause_ms for run in runs]),
    ]
