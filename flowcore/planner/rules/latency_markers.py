"""Tracking: do latency markers pass through a live query, and if not, why?

They travel in its frame beside the records, from a topic to topics. So they need a topic at each end, and no
operator on the way that sees the whole frame.
"""

from __future__ import annotations

from collections.abc import Iterator

from flowcore.api.decisions import Decision
from flowcore.api.operators import Read, Write
from flowcore.durations import show_duration
from flowcore.planner.model import LiveQuery
from flowcore.settings import Settings

__all__ = ["can_carry_markers", "decide_latency"]


def can_carry_markers(query: LiveQuery) -> bool:
    """Whether markers can pass through a query, whatever the settings are."""
    return not any(_obstacles(query))


def decide_latency(query: LiveQuery, settings: Settings) -> Decision:
    """How often markers are sent through a query; ``"off"``, or ``"not possible"``."""
    found = tuple(_obstacles(query))
    reasons = tuple(why for why, _ in found)
    changes = tuple(change for _, change in found if change)
    if not settings.latency_interval:
        setting = "set metrics.latency.interval, for instance to '1 s'"
        return Decision("off", ("metrics.latency.interval is 0", *reasons), (setting, *changes))
    if found:
        return Decision("not possible", reasons, changes)
    interval = show_duration(settings.latency_interval)
    return Decision(f"every {interval}", (f"metrics.latency.interval is {interval}",))


def _obstacles(query: LiveQuery) -> Iterator[tuple[str, str]]:
    """What stands in the way, and what to do about it."""
    if not query.sinks:
        yield "it writes nothing but dead letters", ""
    for node in query.operators:
        if node.takes_whole_frame:
            yield (
                f"{node.name} is a DataFrame function, which would be given the markers as records",
                f"say {node.name} in Spark SQL (select, with_columns, where, aggregate)",
            )
    ends: tuple[Read | Write, ...] = (*query.sources, *query.sinks)
    for end in ends:
        if end.topic is None:
            yield (
                f"{end.name} is not a Kafka topic, and markers travel beside topics",
                f"let {end.name} be a KafkaTopic",
            )
