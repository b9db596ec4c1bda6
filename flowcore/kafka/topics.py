"""What topics does a broker have, and which records are in them?

Small questions and orders for a running broker, each answered over its own short connection. The
answers are numbers; nothing here reads or writes a record.

confluent-kafka asks, because it gives up in time, says why and leaves no thread behind.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from flowcore.errors import BrokerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

__all__ = [
    "begin_offsets",
    "end_offsets",
    "ensure_topics",
    "offsets_at",
    "partition_counts",
    "wait_until_ready",
]

_TIMEOUT_S = 5.0
_ATTEMPT_S = 0.5


def ensure_topics(bootstrap_servers: str, topics: Mapping[str, int]) -> None:
    """Create the topics that do not exist; return when all of them can be used.

    Args:
        bootstrap_servers: Address of the broker, ``host:port[,host:port...]``.
        topics: Number of partitions by topic name. A topic that exists keeps the number it has.

    Raises:
        BrokerError: The broker cannot be reached, or refuses a topic.
    """
    client = _connect(bootstrap_servers)
    counts = _partition_counts(client, bootstrap_servers, topics)
    missing = [name for name, count in counts.items() if count is None]
    if not missing:
        return
    # Replication -1: the broker's own default, which fits one node as well as many.
    wanted = [NewTopic(name, num_partitions=topics[name], replication_factor=-1) for name in missing]
    for name, created in client.create_topics(wanted, request_timeout=_TIMEOUT_S).items():
        try:
            created.result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                msg = (
                    f"topic {name!r} with {topics[name]} partitions cannot be created at "
                    f"{bootstrap_servers}: {error.args[0].str()}"
                )
                raise BrokerError(msg) from error
    # The order is accepted before every partition has a leader.
    deadline = time.monotonic() + _TIMEOUT_S
    while None in _partition_counts(client, bootstrap_servers, missing).values():
        if time.monotonic() > deadline:
            msg = (
                f"topics {missing} were created at {bootstrap_servers} but have no leader after "
                f"{_TIMEOUT_S:.0f} s: nothing could be written to them; see the broker's log"
            )
            raise BrokerError(msg)
        time.sleep(0.02)


def partition_counts(bootstrap_servers: str, topics: Iterable[str]) -> dict[str, int | None]:
    """Return the number of partitions of each topic, or none for a topic that does not exist.

    Raises:
        BrokerError: The broker cannot be reached.
    """
    return _partition_counts(_connect(bootstrap_servers), bootstrap_servers, topics)


def begin_offsets(bootstrap_servers: str, topic: str) -> dict[int, int]:
    """Return by partition the offset of the oldest record that is still there.

    Raises:
        BrokerError: The broker cannot be reached, or has no such topic.
    """
    return {partition: begin for partition, (begin, _) in _begins_and_ends(bootstrap_servers, topic).items()}


def end_offsets(bootstrap_servers: str, topic: str) -> dict[int, int]:
    """Return by partition the offset that the next record will get.

    Raises:
        BrokerError: The broker cannot be reached, or has no such topic.
    """
    return {partition: end for partition, (_, end) in _begins_and_ends(bootstrap_servers, topic).items()}


def offsets_at(bootstrap_servers: str, topic: str, time_ms: int) -> dict[int, int]:
    """Return by partition the offset of the first record of this time or later, else the end.

    Args:
        bootstrap_servers: Address of the broker.
        topic: Name of the topic.
        time_ms: Milliseconds since the epoch, UTC; compared with the records' timestamps.

    Raises:
        BrokerError: The broker cannot be reached, or has no such topic.
    """
    ends = end_offsets(bootstrap_servers, topic)
    with _asking(bootstrap_servers) as consumer:
        asked = [TopicPartition(topic, partition, time_ms) for partition in ends]
        found = consumer.offsets_for_times(asked, timeout=_TIMEOUT_S)
    return {part.partition: ends[part.partition] if part.offset < 0 else part.offset for part in found}


def wait_until_ready(bootstrap_servers: str, timeout_s: float, still_running: Callable[[], object]) -> None:
    """Wait until a broker that is starting answers a client.

    An open port is not enough (a container's proxy opens it at once), nor is a line in a log (it
    survives a restart).

    Args:
        bootstrap_servers: Address of the broker.
        timeout_s: Seconds to wait at most.
        still_running: Called before each attempt; raises if waiting is in vain.

    Raises:
        BrokerError: The time is over, or what ``still_running`` raises.
    """
    client = _client(bootstrap_servers)
    deadline = time.monotonic() + timeout_s
    while True:
        still_running()
        try:
            client.list_topics(timeout=_ATTEMPT_S)
        except KafkaException as error:
            if time.monotonic() > deadline:
                raise _unreachable(bootstrap_servers, timeout_s, error) from error
        else:
            return


def _client(bootstrap_servers: str) -> AdminClient:
    return AdminClient(_settings(bootstrap_servers))


def _settings(bootstrap_servers: str) -> dict[str, str | int | float | bool]:
    return {
        "bootstrap.servers": bootstrap_servers,
        "log_level": 0,  # what goes wrong is in the exception, not on stderr
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 200,
    }


def _connect(bootstrap_servers: str) -> AdminClient:
    client = _client(bootstrap_servers)
    try:
        client.list_topics(timeout=_TIMEOUT_S)
    except KafkaException as error:
        raise _unreachable(bootstrap_servers, _TIMEOUT_S, error) from error
    return client


def _unreachable(bootstrap_servers: str, timeout_s: float, error: KafkaException) -> BrokerError:
    return BrokerError(
        f"bootstrap_servers={bootstrap_servers!r} did not answer within {timeout_s:.0f} s "
        f"({error.args[0].str()}): nothing can be read or written; start a broker there, for "
        "example with `flowcore broker --port N`, or pass the address of one that runs"
    )


def _partition_counts(
    client: AdminClient, bootstrap_servers: str, topics: Iterable[str]
) -> dict[str, int | None]:
    # Asking for all topics: asking for one by name may create it.
    try:
        known = client.list_topics(timeout=_TIMEOUT_S).topics
    except KafkaException as error:
        raise _unreachable(bootstrap_servers, _TIMEOUT_S, error) from error
    return {
        name: len(known[name].partitions)
        if name in known and all(part.leader >= 0 for part in known[name].partitions.values())
        else None
        for name in topics
    }


def _begins_and_ends(bootstrap_servers: str, topic: str) -> dict[int, tuple[int, int]]:
    count = partition_counts(bootstrap_servers, [topic])[topic]
    if count is None:
        msg = (
            f"topic {topic!r} does not exist at {bootstrap_servers}: it has no offsets; create it "
            "first, for example with `flowcore broker --topic NAME:PARTITIONS`"
        )
        raise BrokerError(msg)
    with _asking(bootstrap_servers) as consumer:
        return {
            number: consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=_TIMEOUT_S)
            for number in range(count)
        }


@contextlib.contextmanager
def _asking(bootstrap_servers: str) -> Iterator[Consumer]:
    # A consumer has to name a group; asking for offsets does not join it.
    consumer = Consumer({**_settings(bootstrap_servers), "group.id": "flowcore-offsets"})
    try:
        yield consumer
    except KafkaException as error:
        raise _unreachable(bootstrap_servers, _TIMEOUT_S, error) from error
    finally:
        consumer.close()
