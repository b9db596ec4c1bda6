"""Beside the records: what else travels through a live query?

Latency markers come from a source's companion topic and leave to those of the query's sinks. Their
topic is part of a checkpoint's offsets, and their column part of its state; so a query that has been
started keeps what it was started with where Spark could not go on otherwise.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flowcore.graph.connectors import KafkaTopic
from flowcore.graph.operators import Aggregate, Apply, Read, Write, topic_of
from flowcore.kafka.topics import partition_counts
from flowcore.planner.plan import LiveQuery, Plan
from flowcore.planner.timestamps import brings_watermarks
from flowcore.settings import Settings
from flowcore.spark.context import broker_of

__all__ = ["Beside", "tracks_latency"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Beside:
    """What a query carries beside its records.

    Attributes:
        tracked: Latency markers pass through it.
        tagged: The sinks that write tagged elements; their records' timestamps are carried.
        watermarked: Its sources bring watermarks, and those sinks write them.
        partitions: How many partitions the topics of the query have.
    """

    tracked: bool
    tagged: frozenset[Write]
    watermarked: bool
    partitions: Mapping[str, int]

    @property
    def timed(self) -> bool:
        """Records carry their timestamps."""
        return bool(self.tagged)

    @classmethod
    def of(cls, query: LiveQuery, plan: Plan, settings: Settings, checkpoint: Path) -> Beside:
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
        tracked = tracks_latency(query, settings, checkpoint)
        return cls(tracked, tagged, bool(tagged) and brings_watermarks(query.operators), partitions)


def tracks_latency(query: LiveQuery, settings: Settings, checkpoint: Path) -> bool:
    """Whether latency markers pass through a query."""
    if not query.sinks or None in _topics(query) or any(isinstance(node, Apply) for node in query.operators):
        return False
    wanted = settings.latency_interval.total_seconds() > 0
    before = _topics_of(checkpoint)
    if not before:
        return wanted
    tracked = any(topic.events in before for node in query.sources if (topic := topic_of(node)))
    if wanted and not tracked and any(isinstance(node, Aggregate) for node in query.operators):
        _log.warning(
            "query %r keeps state that was made with metrics.latency.interval=0: its latency is not "
            "measured; to measure it, start it once on a new state.dir",
            query.name,
        )
        return False
    return wanted or tracked


def _topics(query: LiveQuery) -> list[KafkaTopic | None]:
    nodes: list[Read | Write] = [*query.sources, *query.sinks]
    return [topic_of(node) for node in nodes]


def _topics_of(checkpoint: Path) -> set[str]:
    """The topics that a checkpoint has offsets of."""
    numbers = (int(file.name) for file in (checkpoint / "offsets").glob("*") if file.name.isdigit())
    latest = max(numbers, default=None)
    if latest is None:
        return set()
    found: set[str] = set()
    for line in (checkpoint / "offsets" / str(latest)).read_text().splitlines()[2:]:
        offsets = json.loads(line) if line.startswith("{") else {}
        found.update(offsets)
    return found
