"""Figures: what is known of a live run as one flat mapping, for those that plot a number by its key.

Keys stay the same from one look to the next. Dagster plots whole numbers of 32 bits and leaves a gap for
a larger one, so those are floats.
"""

from __future__ import annotations

from typing import Any

from flowcore.metrics.measures import measures_of
from flowcore.metrics.progress import FlowProgress

__all__ = ["Figure", "figures", "plotted"]

Figure = str | int | float


def figures(progress: FlowProgress) -> dict[str, Figure]:
    """Every measure that says something to a person, and beside them modes and versions as text.

    >>> figures(FlowProgress(flow="sales", time_ms=0, seconds=1.5))
    {'seconds': 1.5, 'broker_silent_s': 0.0}
    """
    found: dict[str, Figure] = {
        "seconds": progress.seconds, "broker_silent_s": progress.broker_silent_ms / 1000
    }  # fmt: skip
    for query in progress.queries:
        found[f"{query.name}/mode"] = query.mode
        found[f"{query.name}/realtime"] = int(query.mode == "realtime")
        found |= _measures(query.name, query, progress.time_ms)
        for one in query.partitions:
            found |= _measures(f"{query.name}/{one.topic}[{one.partition}]", one, progress.time_ms)
        for stage, version in query.bounded.items():
            found[f"bounded_version/{stage}"] = version
    for latency in progress.latencies:
        found |= _measures(f"latency/{latency.source} -> {latency.sink}", latency, progress.time_ms)
    return found


def plotted(number: float) -> float:
    """A number as Dagster plots it."""
    return float(number) if abs(number) >= 1 << 31 else number


def _measures(path: str, of: Any, now_ms: int) -> dict[str, Figure]:
    found: dict[str, Figure] = {}
    for measure in measures_of(of):
        key, value = measure.key, measure.of(of)
        if measure.unit == "ago":  # a watermark that stands still shall be seen to fall behind
            key, value = key.replace("_ms", "_delay_s"), measure.figure(of, now_ms)
        if value is not None and measure.plotted:
            found[f"{path}/{key}"] = plotted(int(value) if isinstance(value, bool) else value)
    return found
