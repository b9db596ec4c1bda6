"""Chains of flushes: what does a query read that has been held back already?

Operators that are flushed one after the other are in different queries, with a topic between them. Were
each to wait for its interval, delays would add up. What reads a topic that fills once in an interval need
not wait: it only gathers what belongs to one flush, for a tenth of the interval. So a chain of N costs one
interval and N - 1 tenths, and not N intervals.

Source: FLIP-365, future work.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from flowcore.api.connectors import KafkaTopic
from flowcore.api.operators import Operator, upstream
from flowcore.durations import MILLISECOND
from flowcore.planner.model import LiveQuery

__all__ = ["Arrival", "Place", "arrival", "find_flushed_topics", "order_by_topics"]

Place = tuple[str | None, str]
"""A topic: its broker, None for that of the settings, and its name."""


class Arrival(NamedTuple):
    """What comes in a topic once in an interval.

    Attributes:
        topic: Its name.
        interval_ms: How far apart it comes.
        after: The operator that is flushed, None if it is in another flow.
    """

    topic: str
    interval_ms: int
    after: Operator | None

    @property
    def gathered_ms(self) -> int:
        """How long to wait for the rest of a flush of which something has come."""
        return max(self.interval_ms // 10, 1)


def order_by_topics(queries: Iterable[LiveQuery]) -> Iterator[LiveQuery]:
    """The queries, those first that write what others read; where they read each other, as they are."""
    waiting = list(queries)
    while waiting:
        written = {query.name: {_place(topic) for topic in _topics(query.sinks)} for query in waiting}
        free = [
            query
            for query in waiting
            if not any(
                _place(topic) in places
                for topic in _topics(query.sources)
                for name, places in written.items()
                if name != query.name
            )
        ]
        for query in free or waiting[:1]:
            yield query
            waiting.remove(query)


def find_flushed_topics(query: LiveQuery, arriving: Arrival | None) -> Iterator[tuple[Place, Arrival]]:
    """The topics that a query writes once in an interval, no shorter than that of what it reads."""
    read_ms = arriving.interval_ms if arriving else 0
    held = {each.operator: each.config for each in query.flushes if each.config is not None}
    for sink in query.sinks:
        topic = sink.topic
        last = next((node for node in reversed(tuple(upstream(sink))) if node in held), None)
        config = held[last] if last is not None else None
        if topic is not None and config is not None and config.interval_ms:
            yield _place(topic), Arrival(topic.name, max(config.interval_ms, read_ms), last)


def arrival(query: LiveQuery, known: Mapping[Place, Arrival]) -> Arrival | None:
    """What comes in all that a query reads, at the shortest interval; None if a topic fills all the time."""
    found: list[Arrival] = []
    for source in query.sources:
        topic = source.topic
        if topic is None:
            return None
        if topic.flushed:
            found.append(Arrival(topic.name, topic.flushed // MILLISECOND, None))
        elif _place(topic) in known:
            found.append(known[_place(topic)])
        else:
            return None
    return min(found, key=lambda each: each.interval_ms, default=None)


def _place(topic: KafkaTopic) -> Place:
    return topic.servers, topic.name


def _topics(ends: Iterable[Operator]) -> Iterator[KafkaTopic]:
    yield from (topic for end in ends if (topic := end.topic) is not None)
