"""What is told of the latency between one source and one sink."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LatencySummary"]


@dataclass(frozen=True, slots=True)
class LatencySummary:
    """The latency from one source to one sink.

    Percentiles are exact to 0.1 %, and None where no marker was counted.

    Args:
        source: Operator id that the markers were made with, such as ``auctions/bids``.
        sink: Name of the operator that wrote what the markers travelled with.
        count: Markers whose latency is counted.
        p50_ms: Half of them took no longer.
        p90_ms: Nine in ten took no longer.
        p99_ms: 99 in a hundred took no longer.
        max_ms: None took longer.
        skewed: Markers left out because they came before their mark: two clocks do not agree.
        implausible: Markers left out because mark and receipt are more than a day apart.
        saturated: Markers counted as one hour that took longer.
        subtasks: Source partitions seen since the start.
    """

    source: str
    sink: str
    count: int
    p50_ms: float | None
    p90_ms: float | None
    p99_ms: float | None
    max_ms: float | None
    skewed: int = 0
    implausible: int = 0
    saturated: int = 0
    subtasks: int = 0
