"""Latency: what runs beside live queries whose latency is tracked?

For each source a thread that marks the time in its companion topic, and one that reads what comes out
of the sinks' companions. A query that keeps a marker column from an earlier run has topics, no threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

from flowcore.api.operators import topic_of
from flowcore.kafka.latency_collector import LatencyCollector
from flowcore.kafka.markers import MarkerSource, ensure_companion
from flowcore.planner.model import LiveQuery
from flowcore.planner.plan import Plan
from flowcore.spark.context import Context
from flowcore.spark.topics.side_channels import SideChannels

__all__ = ["track"]


@contextmanager
def track(
    plan: Plan, side_channels: Mapping[LiveQuery, SideChannels], context: Context
) -> Iterator[tuple[LatencyCollector, ...]]:
    """Companion topics for the tracked queries, and markers through them while the context lasts.

    Yields:
        A collector for each broker that sinks are on.

    Raises:
        BrokerError: A broker cannot be reached.
    """
    tracked = [query for query in side_channels if side_channels[query].has_markers]
    sources = {topic: node for query in tracked for node in query.sources if (topic := topic_of(node))}
    sinks = {topic: node for query in tracked for node in query.sinks if (topic := topic_of(node))}
    for topic in (*sources, *sinks):
        ensure_companion(context.servers(topic), topic.name)
    interval = context.settings.latency_interval
    if not interval:
        yield ()
        return
    named: dict[str, dict[str, str]] = {}
    for topic, node in sinks.items():
        named.setdefault(context.servers(topic), {})[topic.name] = f"{plan.flow}/{node.name}"
    with ExitStack() as stack:
        collectors = [
            stack.enter_context(LatencyCollector(servers, names)) for servers, names in named.items()
        ]
        for topic, source in sources.items():
            sender = f"{plan.flow}/{source.name}"
            stack.enter_context(MarkerSource(context.servers(topic), topic.name, sender, interval))
        yield tuple(collectors)
