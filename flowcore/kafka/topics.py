"""Topics of a broker: creation, numbers of partitions, offsets, and limits of messages.

Each function opens a short connection of its own. None reads or writes a record.
"""

from __future__ import annotations

import base64
import contextlib
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flowcore.errors import BrokerError, UnreachableBrokerError
from flowcore.kafka.admin import (
    ConfigResource,
    IsolationLevel,
    KafkaAdminClient,
    KafkaError,
    OffsetSpec,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
    TopicPartition,
    connect,
    name_error,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

__all__ = [
    "TopicIdentity",
    "TopicLimits",
    "begin_offsets",
    "begin_offsets_of_topics",
    "connected",
    "end_offsets",
    "end_offsets_of_topics",
    "ensure_topics",
    "grow_topic",
    "identify_topics",
    "offsets_at",
    "partition_counts",
    "topic_limits",
    "wait_until_ready",
]

_TIMEOUT_S = 5.0
_ATTEMPT_S = 0.5
_LARGEST, _CLEANUP = "max.message.bytes", "cleanup.policy"
_TIMESTAMPS = {"message.timestamp.before.max.ms": str(4 * 10**15)}
"""126,000 years: Spark fails, at each start, at a Kafka timestamp whose microseconds have more than 64 bits.
Brokers since 4.0 take none that is an hour ahead; those before 3.6 do not know this setting."""


@dataclass(frozen=True, slots=True)
class TopicIdentity:
    """Which topic a name stands for; a topic that was deleted and created again has another id.

    Attributes:
        id: Kafka's id of the topic, 22 characters as in Kafka's tools; empty from brokers before 2.8.
    """

    cluster: str
    id: str
    partitions: int


@dataclass(frozen=True, slots=True)
class TopicLimits:
    """Limits of a topic's messages. One refused message fails the query, again after each restart.

    Attributes:
        max_message_bytes: Largest batch with its header; a message may have some tens of bytes less.
        needs_key: The topic is compacted and refuses messages without a key.
    """

    max_message_bytes: int
    needs_key: bool


def ensure_topics(
    bootstrap_servers: str, topics: Mapping[str, int], configs: Mapping[str, str] | None = None
) -> None:
    """Create the topics that do not exist; return when all of them have a leader.

    Args:
        topics: Number of partitions by topic name. An existing topic keeps its number.
        configs: Kafka's settings of created topics, such as ``retention.ms``. Default: the broker's.

    Raises:
        BrokerError: The broker cannot be reached, or refuses a topic.
        UnreachableBrokerError: A partition has no leader.
    """
    with connected(bootstrap_servers) as client:
        known = _partitions(client, topics)
        if all(map(_is_led, known.values())):
            return
        missing = {name: topics[name] for name, partitions in known.items() if not partitions}
        refused = _create(client, missing, {**_TIMESTAMPS, **(configs or {})})
        again = {name: missing[name] for name in refused}
        for name, answer in _create(client, again, configs or {}).items():
            reason = name_error(answer["error_code"], f"CREATE topic {name!r}")
            msg = (
                f"topic {name!r} with {topics[name]} partitions cannot be created at {bootstrap_servers}: "
                f"{answer['error_message'] or reason}"
            )
            raise BrokerError(msg)
        # The request is answered before every partition has a leader.
        _wait_for_leaders(client, bootstrap_servers, topics)


def grow_topic(bootstrap_servers: str, topic: str, partitions: int) -> None:
    """Give an existing topic at least this many partitions; return when all of them have a leader.

    Raises:
        BrokerError: The broker cannot be reached, or refuses.
        UnreachableBrokerError: A partition has no leader.
    """
    with connected(bootstrap_servers) as client:
        if len(_partitions(client, [topic])[topic]) < partitions:
            answer = client.create_partitions({topic: partitions}, raise_errors=False).results[0]
            deadline = time.monotonic() + _TIMEOUT_S
            # An error may mean that another client was faster, so the number is read first.
            while len(_partitions(client, [topic])[topic]) < partitions:
                if answer.error_code or time.monotonic() > deadline:
                    reason = answer.error_message or name_error(answer.error_code, f"ALTER topic {topic!r}")
                    msg = (
                        f"{topic!r} at {bootstrap_servers} cannot be given {partitions} partitions: {reason}"
                    )
                    raise BrokerError(msg)
                time.sleep(0.02)
        _wait_for_leaders(client, bootstrap_servers, [topic])


def partition_counts(bootstrap_servers: str, topics: Iterable[str]) -> dict[str, int | None]:
    """The number of partitions of each topic, None if it does not exist.

    Raises:
        BrokerError: The broker cannot be reached.
        UnreachableBrokerError: A partition has no leader.
    """
    with connected(bootstrap_servers) as client:
        return _partition_counts(client, bootstrap_servers, topics)


def identify_topics(bootstrap_servers: str, topics: Iterable[str]) -> dict[str, TopicIdentity | None]:
    """The identity of each topic, None if it does not exist.

    Raises:
        BrokerError: The broker cannot be reached.
    """
    with connected(bootstrap_servers) as client:
        cluster = client.describe_cluster()["cluster_id"] or ""
        known = {topic["name"]: topic for topic in _describe(client, sorted(set(topics)))}
    return {name: _identity(cluster, topic) if topic["partitions"] else None for name, topic in known.items()}


def begin_offsets(bootstrap_servers: str, topic: str) -> dict[int, int]:
    """By partition the offset of the oldest record.

    Raises:
        BrokerError: The broker cannot be reached, or has no such topic.
    """
    with connected(bootstrap_servers) as client:
        return _offsets(client, bootstrap_servers, topic, OffsetSpec.EARLIEST)


def end_offsets(bootstrap_servers: str, topic: str, *, committed: bool = False) -> dict[int, int]:
    """By partition the offset of the next record.

    Args:
        committed: As readers of committed records see it: they wait at the first open transaction.

    Raises:
        BrokerError: The broker cannot be reached, or has no such topic.
    """
    with connected(bootstrap_servers) as client:
        return _offsets(client, bootstrap_servers, topic, OffsetSpec.LATEST, committed=committed)


def begin_offsets_of_topics(bootstrap_servers: str, topics: Iterable[str]) -> dict[str, dict[int, int]]:
    """The offsets of the oldest records of several topics; empty for a topic that does not exist.

    Raises:
        BrokerError: The broker cannot be reached.
    """
    with connected(bootstrap_servers) as client:
        return _offsets_of_topics(client, bootstrap_servers, topics, OffsetSpec.EARLIEST)


def end_offsets_of_topics(
    bootstrap_servers: str, topics: Iterable[str], timeout_s: float = _TIMEOUT_S
) -> dict[str, dict[int, int]]:
    """The end offsets of several topics, in one request; empty for a topic that does not exist.

    Raises:
        BrokerError: The broker has not answered within the time.
    """
    with connected(bootstrap_servers, timeout_s) as client:
        return _offsets_of_topics(client, bootstrap_servers, topics, OffsetSpec.LATEST)


def offsets_at(
    bootstrap_servers: str, topic: str, time_ms: int, *, committed: bool = False
) -> dict[int, int]:
    """By partition the offset of the first record of this time or later, else the end.

    Args:
        time_ms: Milliseconds since the epoch, UTC; compared with the records' timestamps.
        committed: No offset is after the end that readers of committed records see.

    Raises:
        BrokerError: The broker cannot be reached, or has no such topic.
    """
    with connected(bootstrap_servers) as client:
        ends = _offsets(client, bootstrap_servers, topic, OffsetSpec.LATEST, committed=committed)
        # The protocol gives times below 0 another meaning.
        found = _offsets(client, bootstrap_servers, topic, max(time_ms, 0), committed=committed)
    return {partition: ends[partition] if offset < 0 else offset for partition, offset in found.items()}


def topic_limits(bootstrap_servers: str, topics: Iterable[str]) -> dict[str, TopicLimits]:
    """Limits of topics, by name.

    Raises:
        BrokerError: The broker cannot be reached, or a topic does not exist.
    """
    asked = [ConfigResource("topic", name, {_LARGEST: None, _CLEANUP: None}) for name in set(topics)]
    if not asked:
        return {}
    with connected(bootstrap_servers) as client:
        found = client.describe_configs(asked, config_filter="all")["topic"]
        for name, configs in found.items():
            if not configs:  # kafka-python drops the reason
                _require_topic(client, name)
                name_error(TopicAuthorizationFailedError.errno, f"DESCRIBE_CONFIGS topic {name!r}")
    return {
        name: TopicLimits(
            max_message_bytes=int(configs[_LARGEST]["value"]),
            needs_key="compact" in configs[_CLEANUP]["value"],
        )
        for name, configs in found.items()
    }


def wait_until_ready(bootstrap_servers: str, timeout_s: float, still_running: Callable[[], object]) -> None:
    """Wait until a starting broker answers a client.

    Neither an open port shows that (a container's proxy opens it at once) nor a line in a log (it survives a
    restart).

    Args:
        still_running: Called before each attempt; raises if the broker has ended.

    Raises:
        BrokerError: The timeout is over.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        still_running()
        try:
            with connect(bootstrap_servers, _ATTEMPT_S):
                return
        except KafkaError as error:
            if time.monotonic() > deadline:
                raise _unreachable(bootstrap_servers, timeout_s, error) from error
        time.sleep(0.02)


@contextlib.contextmanager
def connected(bootstrap_servers: str, timeout_s: float = _TIMEOUT_S) -> Iterator[KafkaAdminClient]:
    """Open a client for administration that has reached the broker.

    Raises:
        BrokerError: The broker has not answered a request within the time, or has refused it.
    """
    try:
        with connect(bootstrap_servers, timeout_s) as client:
            yield client
    except KafkaError as error:
        raise _unreachable(bootstrap_servers, timeout_s, error) from error


def _unreachable(bootstrap_servers: str, timeout_s: float, error: KafkaError) -> BrokerError:
    is_silent = type(error) is KafkaError or error.retriable  # and has not refused a login, or a permission
    kind = UnreachableBrokerError if is_silent else BrokerError
    return kind(
        f"bootstrap_servers={bootstrap_servers!r} did not answer within {timeout_s:.0f} s "
        f"({error}): nothing can be read or written; start a broker there, for "
        "example with `flowcore broker --port N`, or pass the address of one that runs"
    )


def _identity(cluster: str, topic: Mapping[str, Any]) -> TopicIdentity:
    found = uuid.UUID(str(topic.get("topic_id", uuid.UUID(int=0))))
    shown = base64.urlsafe_b64encode(found.bytes).decode().rstrip("=") if found.int else ""
    return TopicIdentity(cluster, shown, len(topic["partitions"]))


def _describe(client: KafkaAdminClient, topics: Iterable[str]) -> list[dict[str, Any]]:
    # The client forbids the broker to create topics for this request.
    found: list[dict[str, Any]] = client.describe_topics(list(topics))
    for topic in found:
        name_error(topic["error_code"], f"DESCRIBE topic {topic['name']!r}")
    return found


def _partitions(client: KafkaAdminClient, topics: Iterable[str]) -> dict[str, list[dict[str, Any]]]:
    """The partitions of each topic; none of a topic that does not exist."""
    names = [*topics]
    known = {topic["name"]: topic["partitions"] for topic in _describe(client, names)}
    return {name: known[name] for name in names}


def _is_led(partitions: Iterable[Mapping[str, Any]]) -> bool:
    """Whether a topic exists, and each partition has a leader."""
    leaders = [partition["leader_id"] for partition in partitions]
    return bool(leaders) and min(leaders) >= 0


def _without_leader(
    bootstrap_servers: str, known: Mapping[str, Iterable[Mapping[str, Any]]]
) -> UnreachableBrokerError:
    names = ", ".join(sorted(name for name, partitions in known.items() if not _is_led(partitions)))
    return UnreachableBrokerError(
        f"topics {names} at {bootstrap_servers} have partitions without a leader: nothing can be read from "
        "or written to them until their brokers are back; see the brokers' logs"
    )


def _wait_for_leaders(client: KafkaAdminClient, bootstrap_servers: str, topics: Iterable[str]) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while not all(map(_is_led, (known := _partitions(client, topics)).values())):
        if time.monotonic() > deadline:
            raise _without_leader(bootstrap_servers, known)
        time.sleep(0.02)


def _partition_counts(
    client: KafkaAdminClient, bootstrap_servers: str, topics: Iterable[str]
) -> dict[str, int | None]:
    known = _partitions(client, topics)
    existing = {name: partitions for name, partitions in known.items() if partitions}
    if not all(map(_is_led, existing.values())):
        raise _without_leader(bootstrap_servers, existing)
    return {name: len(partitions) or None for name, partitions in known.items()}


def _create(
    client: KafkaAdminClient, topics: Mapping[str, int], configs: Mapping[str, str]
) -> dict[str, Mapping[str, Any]]:
    """Create topics; return the answers about those that the broker refuses, by name."""
    if not topics:
        return {}
    # Without a replication factor the broker uses its default, which fits its number of nodes.
    wanted = {name: {"num_partitions": number, "configs": configs} for name, number in topics.items()}
    answers = client.create_topics(wanted, raise_errors=False)["topics"]
    taken = (0, TopicAlreadyExistsError.errno)
    return {each["name"]: each for each in answers if each["error_code"] not in taken}


def _require_topic(client: KafkaAdminClient, topic: str) -> None:
    if not _partitions(client, [topic])[topic]:
        msg = f"topic {topic!r} does not exist: what is written to it would be refused; create it first"
        raise BrokerError(msg)


def _offsets_of_topics(
    client: KafkaAdminClient, bootstrap_servers: str, topics: Iterable[str], place: OffsetSpec
) -> dict[str, dict[int, int]]:
    counts = _partition_counts(client, bootstrap_servers, topics)
    asked = [TopicPartition(topic, number) for topic, count in counts.items() for number in range(count or 0)]
    found = client.list_partition_offsets(dict.fromkeys(asked, place)) if asked else {}
    return {
        topic: {each.partition: found[each].offset for each in asked if each.topic == topic}
        for topic in counts
    }


def _offsets(
    client: KafkaAdminClient,
    bootstrap_servers: str,
    topic: str,
    place: OffsetSpec | int,
    *,
    committed: bool = False,
) -> dict[int, int]:
    count = _partition_counts(client, bootstrap_servers, [topic])[topic]
    if count is None:
        msg = (
            f"topic {topic!r} does not exist at {bootstrap_servers}: it has no offsets; create it "
            "first, for example with `flowcore broker --topic NAME:PARTITIONS`"
        )
        raise BrokerError(msg)
    asked = [TopicPartition(topic, number) for number in range(count)]
    isolation = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
    found = client.list_partition_offsets(dict.fromkeys(asked, place), isolation)
    return {partition.partition: found[partition].offset for partition in asked}
