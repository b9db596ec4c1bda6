"""Topics that fill once in a flush interval, because their writer's output is buffered.

Operators that are flushed one after the other are in different queries, with a topic between them. If each
waited for its interval, delays would add up. A query that reads such a topic gathers only what belongs to one
flush, for a tenth of the interval: a chain of N costs one interval and N - 1 tenths.

Source: FLIP-365, future work.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from flowcore.api.connectors import KafkaTopic
from flowcore.api.operators import Operator
from flowcore.durations import MILLISECOND
from flowcore.planner.model import LiveQuery

__all__ = ["Arrival", "Place", "find_arrival", "find_flushed_topics", "order_by_topics"]

Place = tuple[str | None, str]
"""A topic: its broker, None for that of the settings, and its name."""


class Arrival(NamedTuple):
    """Input that arrives in a topic once in an interval, after a flush (None: of another flow)."""

    topic: str
    interval_ms: int
    after: Operator | None

    @property
    def gathered_ms(self) -> int:
        """How long to wait for the rest of a flush whose first records have arrived."""
        return max(self.interval_ms // 10, 1)


def order_by_topics(queries: Iterable[LiveQuery]) -> Iterator[LiveQuery]:
    """The queries, writers of a topic before its readers; those that read each other stay in order."""
    waiting = list(queries)
    while waiting:
        free = [
            query
            for query in waiting
            if not any(_places(query.sources) & _places(each.sinks) for each in waiting if each is not query)
        ]
        for query in free or waiting[:1]:
            yield query
            waiting.remove(query)


def find_flushed_topics(query: LiveQuery, arriving: Arrival | None) -> Iterator[tuple[Place, Arrival]]:
    """The topics that a query writes once in an interval, which is at least that of its input."""
    read_ms = arriving.interval_ms if arriving else 0
    configs = {each.operator: each.config for each in query.flushes if each.config is not None}
    for sink in query.sinks:
        topic = sink.topic
        last = next((node for node in reversed(sink.upstream) if node in configs), None)
        config = configs[last] if last is not None else None
        if topic is not None and config is not None and config.interval_ms:
            yield _place(topic), Arrival(topic.name, max(config.interval_ms, read_ms), last)


def find_arrival(query: LiveQuery, known: Mapping[Place, Arrival]) -> Arrival | None:
    """The input of a query with the shortest interval; None if one of its topics fills all the time."""
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


def _places(ends: Iterable[Operator]) -> set[Place]:
    return {_place(topic) for end in ends if (topic := end.topic) is not None}
