"""Whether latency markers pass through a live query.

Markers travel in the query's frame beside the records, from a topic to topics. They need a topic at each end,
and no operator in between that takes the whole frame.
"""

from collections.abc import Iterator

from flowcore.api.decisions import Decision, Obstacle
from flowcore.durations import show_duration
from flowcore.planner.model import LiveQuery
from flowcore.settings import Settings

__all__ = ["can_carry_markers", "decide_latency"]


def can_carry_markers(query: LiveQuery) -> bool:
    """Whether markers can pass through a query, whatever the settings are."""
    return not any(_find_obstacles(query))


def decide_latency(query: LiveQuery, settings: Settings) -> Decision:
    """How often markers are sent through a query; ``"off"``, or ``"not possible"``."""
    found = tuple(_find_obstacles(query))
    reasons = tuple(each.why for each in found)
    changes = tuple(each.change for each in found if each.change)
    if not settings.latency_interval:
        setting = "set metrics.latency.interval, for instance to '1 s'"
        return Decision("off", ("metrics.latency.interval is 0", *reasons), (setting, *changes))
    if found:
        return Decision("not possible", reasons, changes)
    interval = show_duration(settings.latency_interval)
    return Decision(f"every {interval}", (f"metrics.latency.interval is {interval}",))


def _find_obstacles(query: LiveQuery) -> Iterator[Obstacle]:
    if not query.sinks:
        yield Obstacle("it writes nothing but dead letters")
    for node in query.operators:
        if node.takes_whole_frame:
            yield Obstacle(
                f"{node.name} is a DataFrame function, which would get the markers as records",
                f"say {node.name} in Spark SQL (select, with_columns, where, aggregate)",
            )
    for end in (*query.sources, *query.sinks):
        if end.topic is None:
            yield Obstacle(
                f"{end.name} is not a Kafka topic, and markers travel beside topics",
                f"let {end.name} be a KafkaTopic",
            )
