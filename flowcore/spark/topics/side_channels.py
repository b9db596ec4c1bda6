"""Side channels: what a live query carries beside its records.

Latency markers are read from a source's companion topic and written to the companion topics of the query's
sinks. A checkpoint has offsets of their topic, and its state has their column. So a query with state that was
started without markers stays without them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from flowcore.api.operators import Read, Write
from flowcore.durations import MILLISECOND
from flowcore.errors import BrokerAccessError
from flowcore.kafka.topics import TopicIdentity, TopicLimits, identify_topics, topic_limits
from flowcore.metrics.progress import PartitionProgress
from flowcore.planner.model import LiveQuery
from flowcore.planner.rules.timestamps import brings_watermarks, find_timed_sources
from flowcore.settings import Settings
from flowcore.signatures import require_control_key
from flowcore.spark.checkpoint.offset_log import checkpointed_topics
from flowcore.spark.context import names_by_broker, output_servers
from flowcore.spark.topics.arriving_attributes import reads_attributes

__all__ = ["SideChannels", "tracks_latency"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SideChannels:
    """What a query carries beside its records.

    Attributes:
        tagged_sinks: The sinks that write tagged elements; their records' timestamps are carried.
        writes_watermarks: The sources have watermarks, and the tagged sinks write them.
        polls_watermarks: Periodic watermarks are emitted: ``pipeline.auto-watermark-interval`` is not 0.
        topics: The identity of each topic that the query reads, by name.
        sink_partitions: The number of partitions of each topic that the query writes, by name. A topic of
            another broker may have the name of one that is read.
        limits: The limits of the topics that the query writes to, by name.
        has_key_groups: Windows, timers or a buffer in the query depend on watermarks.
        timestamped: The sources whose records carry their timestamps.
        timed_sources: The sources whose records need an event time: a record without one is bad.
        untimed_sources: The sources whose records need an event time in other queries or branches only. This
            query processes a record without one and also emits a copy as a bad record, if the source's bad
            records leave through it.
        max_ahead_ms: How far ahead of the clock, when a record was written, an event time may be where it
            advances watermarks; 0 for any.
        channel_expiry_ms: The time after which a silent channel of a tagged topic is idle; None for no limit.
        reads_attributes: A function of a chain asks for the attributes of its records, which are rows.
        control_key: Signs and checks the control elements of signed topics; None without such a topic.
        lags: The query is in backlog while it runs, so that all its records are; only if a function asks.
    """

    has_markers: bool = False
    tagged_sinks: frozenset[Write] = frozenset()
    writes_watermarks: bool = False
    polls_watermarks: bool = True
    topics: Mapping[str, TopicIdentity] = field(default_factory=dict)
    sink_partitions: Mapping[str, int] = field(default_factory=dict)
    limits: Mapping[str, TopicLimits] = field(default_factory=dict)
    has_key_groups: bool = False
    timestamped: frozenset[Read] = frozenset()
    timed_sources: frozenset[Read] = frozenset()
    untimed_sources: frozenset[Read] = frozenset()
    max_ahead_ms: int = 0
    channel_expiry_ms: int | None = None
    reads_attributes: bool = False
    lags: bool = False
    control_key: bytes | None = field(default=None, repr=False)

    @property
    def partitions(self) -> Mapping[str, int]:
        """The number of partitions of each topic that the query reads, by name."""
        return {name: topic.partitions for name, topic in self.topics.items()}

    def follow(self, progress: Iterable[PartitionProgress]) -> SideChannels:
        """With the partitions that were added to topics since, by the progress of the query."""
        topics = dict(self.topics)
        for each in progress:
            if each.topic in topics and each.partition >= topics[each.topic].partitions:
                topics[each.topic] = replace(topics[each.topic], partitions=each.partition + 1)
        return replace(self, topics=topics)

    def before_growth(self, topics: Mapping[str, TopicIdentity]) -> SideChannels | None:
        """With topics as they were before partitions were added; None if none was added."""
        fewer = {
            name: topic
            for name, topic in topics.items()
            if name in self.topics and topic.partitions < self.topics[name].partitions
        }
        return replace(self, topics={**self.topics, **fewer}) if fewer else None

    @property
    def reads_control(self) -> bool:
        """Whether control elements that arrive among records are read."""
        return self.writes_watermarks or self.has_key_groups or self.reads_attributes

    @classmethod
    def of(cls, query: LiveQuery, settings: Settings, checkpoint: Path) -> SideChannels:
        """Derive a query's side channels from its plan, the settings and the checkpoint.

        Raises:
            BrokerError: A broker cannot be reached.
        """
        topics: dict[str, TopicIdentity] = {}
        sink_partitions: dict[str, int] = {}
        limits: dict[str, TopicLimits] = {}
        for servers, names in names_by_broker(query.topics_read, settings).items():
            topics |= _identify(servers, names)
        for servers, names in names_by_broker(query.topics_written, settings).items():
            sink_partitions |= {name: each.partitions for name, each in _identify(servers, names).items()}
            limits |= topic_limits(servers, names)
        dead_letters = [each.dead_letter for each in query.topics_read if each.on_error == "dead-letter"]
        if dead_letters:
            with suppress(BrokerAccessError):  # who may write them need not be able to ask for their limits
                limits |= topic_limits(output_servers(query, settings), dead_letters)
        planned = cls.planned(
            query,
            topics,
            sink_partitions,
            limits,
            has_markers=tracks_latency(query, checkpoint),
            polls_watermarks=bool(settings.auto_watermark_interval),
        )
        return replace(
            planned,
            max_ahead_ms=settings.max_ahead // MILLISECOND,
            control_key=require_control_key(
                settings,
                (each.name for each in (*query.topics_read, *query.topics_written) if each.signed),
            ),
            channel_expiry_ms=settings.channel_expiry // MILLISECOND or None,
        )

    @classmethod
    def planned(
        cls,
        query: LiveQuery,
        topics: Mapping[str, TopicIdentity],
        sink_partitions: Mapping[str, int],
        limits: Mapping[str, TopicLimits],
        *,
        has_markers: bool,
        polls_watermarks: bool = True,
    ) -> SideChannels:
        """The side channels of a query with these topics, as it was planned."""
        timestamped = query.timestamped
        tagged = frozenset(query.tagged_sinks)
        return cls(
            has_markers=has_markers,
            tagged_sinks=tagged,
            writes_watermarks=bool(tagged) and brings_watermarks(query.operators),
            topics=topics,
            sink_partitions=sink_partitions,
            limits=limits,
            has_key_groups=query.keeps_key_groups,
            polls_watermarks=polls_watermarks,
            timestamped=frozenset(source for source in query.sources if source in timestamped),
            timed_sources=find_timed_sources(query.operators) - query.untimed_sources,
            untimed_sources=query.untimed_sources,
            # The chain of a process function gets them in its key groups.
            reads_attributes=any(not each.process and reads_attributes(each) for each in query.chains),
        )


def tracks_latency(query: LiveQuery, checkpoint: Path) -> bool:
    """Whether latency markers pass through a query."""
    before = checkpointed_topics(checkpoint)
    wanted = query.latency.value != "off"
    if not query.can_carry_markers:
        return False
    if not before:
        return wanted
    tracked = any(topic.events in before for topic in query.topics_read)
    if wanted and not tracked and query.keeps_state:
        _log.warning(
            "query %r keeps state that was made with metrics.latency.interval=0: its latency is not "
            "measured; to measure it, start it once on a new state.dir",
            query.name,
        )
        return False
    return wanted or tracked


def _identify(servers: str, names: Iterable[str]) -> dict[str, TopicIdentity]:
    """The identities of topics of one broker; of one that does not exist yet, one without ids."""
    found = identify_topics(servers, names)
    return {name: found[name] or TopicIdentity("", "", 1) for name in names}
