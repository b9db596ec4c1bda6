"""Offsets of topics: their start and end positions, and their ends while live queries run.

A client resolves positions once, so that a bounded stage reads exactly the records that its manifest names,
whenever Spark reads them.
"""

import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime

from flowcore.api.connectors import KafkaTopic, Position
from flowcore.errors import BrokerError, PlanError
from flowcore.kafka.topics import begin_offsets, end_offsets, end_offsets_of_topics, offsets_at
from flowcore.metrics.tally import TopicOffsets
from flowcore.planner.model import LiveQuery
from flowcore.planner.plan import Plan
from flowcore.spark.context import Context, broker_of, output_servers

__all__ = ["OffsetRange", "TopicEnds", "offset_range", "offsets_json", "start_offsets"]

_Offsets = dict[int, int]
"""By partition."""
OffsetRange = tuple[_Offsets, _Offsets]
"""First offset and end (exclusive) of each partition."""

_FIRST_ANSWER_S, _ANSWER_S = 10.0, 2.0
_AWAY_S = 5.0
_OUTAGE_S = 10.0
"""A broker that is silent for less time is only slow."""


def start_offsets(topic: KafkaTopic, servers: str) -> _Offsets:
    """The first offset to read of each partition."""
    return _resolve(topic, topic.start, servers)


def offset_range(topic: KafkaTopic, servers: str) -> OffsetRange:
    """First offset and end (exclusive) of each partition of a bounded topic.

    Raises:
        PlanError: The end of a partition is before its start, or after its last record.
    """
    start = start_offsets(topic, servers)
    end = _resolve(topic, topic.until or "latest", servers)
    last = end_offsets(servers, topic.name, committed=_is_committed(topic))
    for partition, first in start.items():
        if not first <= end[partition] <= last[partition]:
            msg = (
                f"topic {topic.name!r} partition {partition}: start {first}, until {end[partition]}, and its "
                f"last record is before {last[partition]}: the stage would wait for records that may never "
                "come; pass start <= until <= the topic's end"
            )
            raise PlanError(msg)
    return start, end


_LATEST = -1  # as Spark's Kafka source has it


def offsets_json(topic: KafkaTopic, offsets: _Offsets, events: Iterable[int] = ()) -> str:
    """Offsets as an option of Spark's Kafka source, and the end for partitions of the companion topic."""
    found = {topic.name: {str(partition): offset for partition, offset in sorted(offsets.items())}}
    companion = {str(partition): _LATEST for partition in events}
    return json.dumps(found | ({topic.events: companion} if companion else {}))


class TopicEnds:
    """The end offsets of the topics of a live stage, dead letters included, as their brokers last gave them.

    A flow may read a topic of one broker, and write one of the same name on another broker.

    Raises:
        BrokerError: A broker cannot be reached.
        PlanError: The sinks of a query are on several brokers.
    """

    def __init__(self, plan: Plan, context: Context) -> None:
        self._names: dict[str, set[str]] = {}
        """Topics by the address of their broker."""
        self._read: dict[str, dict[str, str]] = {}
        """The broker of each topic that a query reads, by the names of query and topic."""
        self._written: dict[str, str] = {}
        """The broker that a query writes to, dead letters included, by its name."""
        for query in plan.live_queries:
            read = {topic.name: broker_of(topic, context.settings) for topic in query.topics_read}
            written = {topic.name for topic in query.topics_written}
            written |= {node.dead_letter for node in query.dead_letters}
            for name, servers in read.items():
                self._names.setdefault(servers, set()).add(name)
            if written:
                servers = self._written[query.name] = output_servers(query, context.settings)
                self._names.setdefault(servers, set()).update(written)
            self._read[query.name] = read
        self._ends: dict[str, TopicOffsets] = {}
        self._answered_s: dict[str, float] = {}
        self._ask_again_s: dict[str, float] = {}
        for servers in self._names:
            self._fetch(servers, _FIRST_ANSWER_S)
        self._counted: dict[str, dict[str, _Offsets]] = {
            servers: {name: dict(each) for name, each in ends.items()} for servers, ends in self._ends.items()
        }
        """Up to which offsets records are counted, by the address of their broker and topic."""
        self._counts: Counter[tuple[str, str]] = Counter()
        """The records since the start, likewise."""

    @property
    def silent_s(self) -> float:
        """Seconds since the last answer of the broker that has been silent longest; 0 while all answer."""
        now_s = time.monotonic()
        return max((now_s - self._answered_s[servers] for servers in self._ask_again_s), default=0.0)

    def poll(self) -> Mapping[str, float]:
        """Ask the brokers; the ends of a broker that does not answer do not change.

        Returns:
            By address, how many seconds a broker was silent that answers again.
        """
        back = {}
        for servers in self._names:
            if time.monotonic() < self._ask_again_s.get(servers, 0.0):
                continue
            before_s = self._answered_s[servers]
            try:
                self._fetch(servers, _ANSWER_S)
            except BrokerError:
                # A run that stops while its broker is silent must not wait for it at each poll.
                self._ask_again_s[servers] = time.monotonic() + _AWAY_S
            else:
                self._count(servers)
                away_s = self._answered_s[servers] - before_s
                if self._ask_again_s.pop(servers, None) is not None and away_s >= _OUTAGE_S:
                    back[servers] = away_s
        return back

    def ends_read_by(self, query: LiveQuery) -> TopicOffsets:
        """The ends of the topics that a query reads."""
        return {name: self._ends[servers][name] for name, servers in self._read[query.name].items()}

    def records_since_start(self, query: LiveQuery, topics: Iterable[str]) -> int:
        """The number of records that topics at the broker of a query's sinks have got since the start."""
        servers = self._written.get(query.name)
        if servers is None:
            return 0
        return sum(self._counts[servers, name] for name in topics)

    def _count(self, servers: str) -> None:
        """Count the new records of a broker's topics; one that was created again counts on from its end."""
        for name, ends in self._ends[servers].items():
            counted = self._counted[servers].setdefault(name, {})
            self._counts[servers, name] += sum(max(end - counted.get(n, 0), 0) for n, end in ends.items())
            counted.update(ends)

    def _fetch(self, servers: str, timeout_s: float) -> None:
        self._ends[servers] = end_offsets_of_topics(servers, sorted(self._names[servers]), timeout_s)
        self._answered_s[servers] = time.monotonic()


def _resolve(topic: KafkaTopic, place: Position, servers: str) -> _Offsets:
    match place:
        case "earliest":
            return begin_offsets(servers, topic.name)
        case "latest":
            return end_offsets(servers, topic.name, committed=_is_committed(topic))
        case datetime():
            time_ms = int(place.timestamp() * 1000)
            return offsets_at(servers, topic.name, time_ms, committed=_is_committed(topic))
        case Mapping():
            begin = begin_offsets(servers, topic.name)
            unknown = sorted(set(place) - set(begin))
            if unknown:
                msg = (
                    f"topic {topic.name!r} has the partitions {sorted(begin)}, not {unknown}: their offsets "
                    "would be ignored; name partitions that exist"
                )
                raise PlanError(msg)
            return begin | dict(place)


def _is_committed(topic: KafkaTopic) -> bool:
    """Whether Spark's consumer sees the end of a topic at its first open transaction."""
    return topic.isolation == "read_committed"
