"""Latency: what runs beside live queries whose latency is tracked?

For each source a thread that marks the time in its companion topic, and one that reads what comes out
of the sinks' companions. A query that keeps a marker column from an earlier run has topics, no threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

from flowcore.graph.operators import topic_of
from flowcore.kafka.latency_collector import LatencyCollector
from flowcore.kafka.markers import MarkerSource, ensure_companion
from flowcore.planner.plan import LiveQuery, Plan
from flowcore.spark.beside import Beside
from flowcore.spark.context import Context

__all__ = ["track"]


@contextmanager
def track(
    plan: Plan, beside: Mapping[LiveQuery, Beside], context: Context
) -> Iterator[LatencyCollector | None]:
    """Companion topics for the tracked queries, and markers through them while the context lasts.

    Raises:
        BrokerError: A broker cannot be reached.
    """
    tracked = [query for query in beside if beside[query].tracked]
    sources = {topic: node for query in tracked for node in query.sources if (topic := topic_of(node))}
    sinks = {topic: node for query in tracked for node in query.sinks if (topic := topic_of(node))}
    for topic in (*sources, *sinks):
        ensure_companion(context.servers(topic), topic.name)
    interval = context.settings.latency_interval
    with ExitStack() as stack:
        collector = None
        if interval:
            # The sinks of a flow are on one broker or on few; latency is shown for those of the first.
            servers = context.servers(next(iter(sinks)))
            named = {
                topic.name: f"{plan.flow}/{node.name}"
                for topic, node in sinks.items()
                if context.servers(topic) == servers
            }
            collector = stack.enter_context(LatencyCollector(servers, named))
            for topic, node in sources.items():
                marker = MarkerSource(
                    context.servers(topic), topic.name, f"{plan.flow}/{node.name}", interval
                )
                stack.enter_context(marker)
        yield collector
