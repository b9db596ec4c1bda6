"""The topics of live queries: check sources, create outputs, and track latency through companions."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

from flowcore.api.connectors import KafkaTopic
from flowcore.api.operators import Read, Write
from flowcore.delivery import LedgerTerms, ledger_topic
from flowcore.errors import RunError
from flowcore.kafka.latency_collector import LatencyCollector
from flowcore.kafka.markers import MarkerSource, ensure_companion
from flowcore.kafka.topic_schemas import TopicSchemas
from flowcore.kafka.topics import begin_offsets, end_offsets, ensure_topics, grow_topic, partition_counts
from flowcore.kafka.transactions import LEDGER_CONFIGS
from flowcore.planner.model import LiveQuery
from flowcore.planner.plan import Plan
from flowcore.settings import Settings
from flowcore.spark.checkpoint.offset_log import checkpointed_topics, move_offsets
from flowcore.spark.checkpoint.plan_file import checkpoint_folder
from flowcore.spark.context import Context, broker_of, output_servers
from flowcore.spark.run.lost_records import require_topics_fit
from flowcore.spark.topics.side_channels import SideChannels
from flowcore.spark.topics.sinks import DEAD_LETTER_CONFIGS

__all__ = [
    "create_companions",
    "prepare_ledger",
    "prepare_topics",
    "require_schemas",
    "skip_lost_markers",
    "track_latency",
]

_log = logging.getLogger(__name__)


def prepare_topics(plan: Plan, settings: Settings) -> dict[KafkaTopic, int]:
    """Check that source topics exist and fit the checkpoints, and create the topics that are written.

    Returns:
        The number of partitions of each source topic.

    Raises:
        BrokerError: A broker cannot be reached.
        StateError: A topic was created again, or is in another cluster.
        LostRecordsError: Records are gone that a live query has not read.
        RunError: A source topic does not exist and may not be created.
    """
    stage = plan.live
    if stage is None:
        return {}
    require_topics_fit(plan, settings)
    servers = {
        topic: broker_of(topic, settings)
        for query in stage.queries
        for topic in (*query.topics_read, *query.topics_written)
    }
    dead_letters = [
        (output_servers(query, settings), topic.dead_letter)
        for query in stage.queries
        for topic in query.topics_read
        if topic.on_error == "dead-letter"
    ]
    counts: dict[KafkaTopic, int] = {}
    # The writer of a cut runs before its reader, and creates the topic.
    for source in stage.sources:
        topic = source.topic
        if topic is None:
            continue
        if topic.partitions is not None:
            ensure_topics(servers[topic], {topic.name: topic.partitions})
        partitions = partition_counts(servers[topic], [topic.name])[topic.name]
        if partitions is None:
            msg = (
                f"source {source.name!r}: topic {topic.name!r} does not exist at {servers[topic]}: the query "
                "would fail at its first batch; start its producer first, or pass partitions= to create it"
            )
            raise RunError(msg)
        counts[topic] = partitions
        for query in stage.queries:
            if source in query.sources:
                for output in query.topics_written:
                    ensure_topics(servers[output], {output.name: output.partitions or partitions})
    sinks = (sink for query in stage.queries for sink in query.sinks)
    _report_kept_partitions((*stage.sources, *sinks), servers)
    for address, name in dead_letters:
        ensure_topics(address, {name: 1}, DEAD_LETTER_CONFIGS)
    return counts


def require_schemas(plan: Plan, settings: Settings) -> TopicSchemas:
    """Ask the schema registry for the schemas of the plan's topics that have their ids there.

    Raises:
        RegistryError: The registry refuses, or its schemas do not fit a topic.
        UnreachableRegistryError: The registry does not answer.
    """
    queries = plan.live.queries if plan.live else ()
    sources = [topic for query in queries for topic in query.topics_read]
    sources += [node.topic for stage in plan.bounded for node in stage.sources if node.topic]
    sinks = [topic for query in queries for topic in query.topics_written]
    sinks += [node.topic for stage in plan.bounded for node in stage.sinks if node.topic]
    schemas = TopicSchemas()
    schemas.require(sources, sinks, settings)
    return schemas


def _report_kept_partitions(ends: Iterable[Read | Write], servers: Mapping[KafkaTopic, str]) -> None:
    """Warn of topics that have another number of partitions than their source or sink declares."""
    for node in ends:
        topic = node.topic
        if topic is None or topic.partitions is None:
            continue
        found = partition_counts(servers[topic], [topic.name])[topic.name]
        if found != topic.partitions:
            _log.warning(
                "operator %r: topic %r exists with %s partitions, and partitions=%d counts only where it is "
                "created: it keeps %s; add partitions with Kafka's tools, or leave partitions= out",
                node.name, topic.name, found, topic.partitions, found,
            )  # fmt: skip


def prepare_ledger(servers: str, flow: str, query: str, terms: LedgerTerms) -> None:
    """Create the ledger of a query, with a partition for each slot.

    Raises:
        BrokerError: The broker cannot be reached, or refuses.
    """
    topic = ledger_topic(flow, query)
    ensure_topics(servers, {topic: terms.slots}, LEDGER_CONFIGS)
    grow_topic(servers, topic, terms.slots)


def skip_lost_markers(query: LiveQuery, context: Context, *, has_markers: bool) -> bool:
    """Move a stopped query past the markers that its companion topics have lost, by age or deletion.

    Args:
        has_markers: Whether the query reads its companion topics; it may not have read them before.

    Returns:
        Whether any were lost.

    Raises:
        BrokerError: A broker cannot be reached.
    """
    checkpoint = checkpoint_folder(query, context.flow, context.settings)
    known = checkpointed_topics(checkpoint)
    moved = False
    for topic in query.topics_read:
        if topic.events not in known and not has_markers:
            continue
        servers = context.servers(topic)
        first, last = begin_offsets(servers, topic.events), end_offsets(servers, topic.events)
        if move_offsets(checkpoint, topic.events, first, last, beside=topic.name):
            _log.info("query %r skips latency markers that %s has lost", query.name, topic.events)
            moved = True
    return moved


def create_companions(queries: Iterable[LiveQuery], context: Context) -> None:
    """Create the companion topics of queries that markers pass through, where they are missing.

    Raises:
        BrokerError: A broker cannot be reached.
    """
    for topic in {topic for query in queries for topic in (*query.topics_read, *query.topics_written)}:
        ensure_companion(context.servers(topic), topic.name)


@contextmanager
def track_latency(
    plan: Plan, side_channels: Mapping[LiveQuery, SideChannels], context: Context
) -> Iterator[tuple[LatencyCollector, ...]]:
    """Create the companion topics of the tracked queries, and send and collect markers through them.

    For each source a thread writes markers to its companion topic; for each broker a thread reads the
    companions of the sinks. A query that keeps a marker column from an earlier run has topics, but no
    threads.

    Yields:
        A collector for each broker that has sinks.

    Raises:
        BrokerError: A broker cannot be reached.
    """
    tracked = [query for query in side_channels if side_channels[query].has_markers]
    create_companions(tracked, context)
    sources = {topic: node for query in tracked for node in query.sources if (topic := node.topic)}
    sinks = {topic: node for query in tracked for node in query.sinks if (topic := node.topic)}
    interval = context.settings.latency_interval
    if not interval:
        yield ()
        return
    names: dict[str, dict[str, str]] = {}
    for topic, node in sinks.items():
        names.setdefault(context.servers(topic), {})[topic.name] = f"{plan.flow}/{node.name}"
    with ExitStack() as stack:
        collectors = [stack.enter_context(LatencyCollector(*each)) for each in names.items()]
        for topic, source in sources.items():
            sender = f"{plan.flow}/{source.name}"
            stack.enter_context(MarkerSource(context.servers(topic), topic.name, sender, interval))
        yield tuple(collectors)
