"""Beside the records: what else travels through a live query?

Latency markers come from a source's companion topic and leave to those of the query's sinks. Their
topic is part of a checkpoint's offsets, and their column part of its state; so a query that has been
started keeps what it was started with where Spark could not go on otherwise.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flowcore.api.connectors import KafkaTopic
from flowcore.api.operators import Aggregate, Read, StatefulOperator, Write, topic_of
from flowcore.kafka.limits import TopicLimits, topic_limits
from flowcore.kafka.topics import partition_counts
from flowcore.planner.model import LiveQuery
from flowcore.planner.plan import Plan
from flowcore.planner.rules.latency_markers import can_carry_markers
from flowcore.planner.rules.timestamps import brings_watermarks, dated_sources, undated_sources
from flowcore.settings import Settings
from flowcore.spark.checkpoint.identity import topics_in
from flowcore.spark.results.context import broker_of

__all__ = ["SideChannels", "tracks_latency"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SideChannels:
    """What a query carries beside its records.

    Attributes:
        tracked: Latency markers pass through it.
        tagged: The sinks that write tagged elements; their records' timestamps are carried.
        watermarked: Its sources bring watermarks, and those sinks write them.
        partitions: How many partitions the topics of the query have.
        limits: What the topics that it writes to take.
        windowed: Windows, timers or a buffer in it go by what its sources tell of time.
        dated: The sources whose records its windows need the timestamps of: one without is bad.
        undated: Those that only windows of other queries need them of. This one takes a record without and,
            since the source's bad records leave through it, lets a copy leave as one.
    """

    tracked: bool
    tagged: frozenset[Write]
    watermarked: bool
    partitions: Mapping[str, int]
    limits: Mapping[str, TopicLimits]
    windowed: bool = False
    dated: frozenset[Read] = frozenset()
    undated: frozenset[Read] = frozenset()

    @property
    def timed(self) -> bool:
        """Records carry their timestamps."""
        return bool(self.tagged) or self.windowed

    @property
    def tells(self) -> bool:
        """Control elements that arrive among records are looked at."""
        return self.watermarked or self.windowed

    @classmethod
    def of(cls, query: LiveQuery, plan: Plan, settings: Settings, checkpoint: Path) -> SideChannels:
        """What a query carries, by its plan, its settings, and what it carried before.

        Raises:
            BrokerError: A broker cannot be reached.
        """
        tagged = frozenset(
            edge.sender
            for edge in plan.edges_of(query.operators)
            if isinstance(edge.sender, Write) and edge.elements.value == "tagged"
        )
        partitions = {}
        for topic in filter(None, _topics(query)):
            counts = partition_counts(broker_of(topic, settings), [topic.name])
            partitions[topic.name] = counts[topic.name] or 1
        limits: dict[str, TopicLimits] = {}
        for topic in filter(None, map(topic_of, query.sinks)):
            limits |= topic_limits(broker_of(topic, settings), [topic.name])
        return cls(
            tracked=tracks_latency(query, settings, checkpoint),
            tagged=tagged,
            watermarked=bool(tagged) and brings_watermarks(query.operators),
            partitions=partitions,
            limits=limits,
            windowed=keeps_key_groups(query),
            dated=dated_sources(query.operators),
            undated=undated_sources(query, plan),
        )


def tracks_latency(query: LiveQuery, settings: Settings, checkpoint: Path) -> bool:
    """Whether latency markers pass through a query."""
    if not can_carry_markers(query):
        return False
    wanted = settings.latency_interval.total_seconds() > 0
    before = topics_in(checkpoint)
    if not before:
        return wanted
    tracked = any(topic.events in before for node in query.sources if (topic := topic_of(node)))
    aggregates = any(isinstance(node, Aggregate) for node in query.operators)
    if wanted and not tracked and (aggregates or keeps_key_groups(query)):
        _log.warning(
            "query %r keeps state that was made with metrics.latency.interval=0: its latency is not "
            "measured; to measure it, start it once on a new state.dir",
            query.name,
        )
        return False
    return wanted or tracked


def keeps_key_groups(query: LiveQuery) -> bool:
    """Whether a query keeps state by key group."""
    return query.buffer is not None or any(isinstance(node, StatefulOperator) for node in query.operators)


def _topics(query: LiveQuery) -> list[KafkaTopic | None]:
    nodes: list[Read | Write] = [*query.sources, *query.sinks]
    return [topic_of(node) for node in nodes]
