"""Input that arrives once in a flush interval, because the output of the operator upstream is buffered.

If each of several buffered operators waited for its interval, delays would add up. So an operator that reads
the flushed output of another one only waits for the rest of that flush, for a tenth of the interval. A chain
of N costs one interval and N - 1 tenths. The upstream operator may be in the same query, where a control
element follows each flush, or write a topic that this query reads.

Source: FLIP-365, future work.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from flowcore.api.connectors import KafkaTopic
from flowcore.api.operators import Operator, SideOutput
from flowcore.durations import MILLISECOND
from flowcore.planner.model import Flush, LiveQuery

__all__ = [
    "Arrival",
    "TopicAddress",
    "find_arrival",
    "find_flushed_topics",
    "find_upstream_buffer",
    "gathered_ms",
    "interval_between",
    "order_by_topics",
]

TopicAddress = tuple[str | None, str]
"""A topic: its broker, None for that of the settings, and its name."""


class Arrival(NamedTuple):
    """Input that arrives in a topic once in an interval, after a flush (None: of another flow)."""

    topic: str
    interval_ms: int
    after: Operator | None

    @property
    def gathered_ms(self) -> int:
        """How long to wait for the rest of a flush whose first records have arrived."""
        return gathered_ms(self.interval_ms)


def gathered_ms(interval_ms: int) -> int:
    """How long to wait for the rest of a flush that happens once in an interval."""
    return max(interval_ms // 10, 1)


def find_upstream_buffer(node: Operator, decided: Mapping[Operator, Flush]) -> Flush | None:
    """Of the next buffers by key group upstream of an operator, the one that is flushed most often."""
    found: dict[Operator, Flush] = {}
    pending = [*node.inputs]
    while pending:
        each = pending.pop()
        if each in decided and decided[each].way == "key-groups":
            found[each] = decided[each]
        elif not isinstance(each, SideOutput):  # late records do not wait in the buffer
            pending += each.inputs
    return min(found.values(), key=lambda flush: interval_between(flush, decided), default=None)


def interval_between(flush: Flush, decided: Mapping[Operator, Flush]) -> int:
    """The least time between two flushes of a buffer; it is not flushed more often than the upstream one."""
    if flush.after is not None and flush.after in decided:
        return interval_between(decided[flush.after], decided)
    config = flush.config
    return 0 if config is None or config.at_checkpoint else config.interval_ms or 0


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


def find_flushed_topics(query: LiveQuery, arriving: Arrival | None) -> Iterator[tuple[TopicAddress, Arrival]]:
    """The topics that a query writes once in an interval, which is at least that of its input."""
    read_ms = arriving.interval_ms if arriving else 0
    decided = {each.operator: each for each in query.flushes if each.config is not None}
    for sink in query.sinks:
        topic = sink.topic
        last = _find_last(sink, decided)
        if (
            topic is not None
            and last is not None
            and (interval_ms := interval_between(decided[last], decided))
        ):
            yield _place(topic), Arrival(topic.name, max(interval_ms, read_ms), last)


def _find_last(sink: Operator, decided: Mapping[Operator, Flush]) -> Operator | None:
    """Of the buffers that records of a sink leave, the one flushed most often; None if some leave none."""
    found: dict[Operator, Flush] = {}
    pending = [sink]
    while pending:
        each = pending.pop()
        if each in decided:
            found[each] = decided[each]
        elif not each.inputs or isinstance(each, SideOutput) or each.emits_without_input:
            return None
        else:
            pending += (parent for parent in each.inputs if not parent.bounded)
    return min(found, key=lambda node: interval_between(found[node], decided), default=None)


def find_arrival(query: LiveQuery, known: Mapping[TopicAddress, Arrival]) -> Arrival | None:
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


def _place(topic: KafkaTopic) -> TopicAddress:
    return topic.servers, topic.name


def _places(ends: Iterable[Operator]) -> set[TopicAddress]:
    return {_place(topic) for end in ends if (topic := end.topic) is not None}
