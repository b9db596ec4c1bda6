"""What topics does a broker have, and which records are in them?

Small questions and orders for a running broker, each answered over its own short connection. The
answers are numbers; nothing here reads or writes a record.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from flowcore.errors import BrokerError
from flowcore.kafka.admin import (
    KafkaAdminClient,
    KafkaError,
    OffsetSpec,
    TopicAlreadyExistsError,
    TopicPartition,
    connected,
    for_code,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

__all__ = [
    "begin_offsets",
    "end_offsets",
    "ends_of",
    "ensure_topics",
    "grow_topic",
    "offsets_at",
    "partition_counts",
    "wait_until_ready",
]

_TIMEOUT_S = 5.0
_ATTEMPT_S = 0.5


def ensure_topics(
    bootstrap_servers: str, topics: Mapping[str, int], configs: Mapping[str, str] | None = None
) -> None:
    """Create the topics that do not exist; return when all of them can be used.

    Args:
        bootstrap_servers: Address of the broker, ``host:port[,host:port...]``.
        topics: Number of partitions by topic name. A topic that exists keeps the number it has.
        configs: Kafka's settings of topics that are created, such as ``retention.ms``. Default: the
            broker's.

    Raises:
        BrokerError: The broker cannot be reached, or refuses a topic.
    """
    with _asking(bootstrap_servers) as client:
        missing = [name for name, count in _partition_counts(client, topics).items() if count is None]
        if not missing:
            return
        # The number of copies is the broker's own default, which fits one node as well as many.
        wanted = {name: {"num_partitions": topics[name], "configs": configs or {}} for name in missing}
        for answer in client.create_topics(wanted, raise_errors=False)["topics"]:
            if answer["error_code"] in {0, TopicAlreadyExistsError.errno}:
                continue
            name = answer["name"]
            msg = (
                f"topic {name!r} with {topics[name]} partitions cannot be created at {bootstrap_servers}: "
                f"{answer['error_message'] or for_code(answer['error_code']).__name__}"
            )
            raise BrokerError(msg)
        # The order is accepted before every partition has a leader.
        deadline = time.monotonic() + _TIMEOUT_S
        while None in _partition_counts(client, missing).values():
            if time.monotonic() > deadline:
                msg = (
                    f"topics {missing} were created at {bootstrap_servers} but have no leader after "
                    f"{_TIMEOUT_S:.0f} s: nothing could be written to them; see the broker's log"
                )
                raise BrokerError(msg)
            time.sleep(0.02)


def grow_topic(bootstrap_servers: str, topic: str, partitions: int) -> None:
    """Give a topic that exists at least this many partitions; return when all of them can be used.

    Raises:
        BrokerError: The broker cannot be reached, or refuses.
    """
    with _asking(bootstrap_servers) as client:
        if (_partition_counts(client, [topic])[topic] or 0) >= partitions:
            return
        answer = client.create_partitions({topic: partitions}, raise_errors=False).results[0]
        deadline = time.monotonic() + _TIMEOUT_S
        # Asked first: a refusal may only say that somebody else was faster.
        while (_partition_counts(client, [topic])[topic] or 0) < partitions:
            if answer.error_code or time.monotonic() > deadline:
                reason = answer.error_message or for_code(answer.error_code).__name__
                msg = f"{topic!r} at {bootstrap_servers} cannot be given {partitions} partitions: {reason}"
                raise BrokerError(msg)
            time.sleep(0.02)


def partition_counts(bootstrap_servers: str, topics: Iterable[str]) -> dict[str, int | None]:
    """Return the number of partitions of each topic, or none for a topic that does not exist.

    Raises:
        BrokerError: The broker cannot be reached.
    """
    with _asking(bootstrap_servers) as client:
        return _partition_counts(client, topics)


def begin_offsets(bootstrap_servers: str, topic: str) -> dict[int, int]:
    """Return by partition the offset of the oldest record that is still there.

    Raises:
        BrokerError: The broker cannot be reached, or has no such topic.
    """
    with _asking(bootstrap_servers) as client:
        return _offsets(client, bootstrap_servers, topic, OffsetSpec.EARLIEST)


def end_offsets(bootstrap_servers: str, topic: str) -> dict[int, int]:
    """Return by partition the offset that the next record will get.

    Raises:
        BrokerError: The broker cannot be reached, or has no such topic.
    """
    with _asking(bootstrap_servers) as client:
        return _offsets(client, bootstrap_servers, topic, OffsetSpec.LATEST)


def ends_of(
    bootstrap_servers: str, topics: Iterable[str], timeout_s: float = _TIMEOUT_S
) -> dict[str, dict[int, int]]:
    """Return the end offsets of several topics, asked for at once; one that does not exist has none.

    Raises:
        BrokerError: The broker has not answered within the time.
    """
    with _asking(bootstrap_servers, timeout_s) as client:
        counts = _partition_counts(client, topics)
        asked = [
            TopicPartition(topic, number) for topic, count in counts.items() for number in range(count or 0)
        ]
        found = client.list_partition_offsets(dict.fromkeys(asked, OffsetSpec.LATEST)) if asked else {}
    return {
        topic: {each.partition: found[each].offset for each in asked if each.topic == topic}
        for topic in counts
    }


def offsets_at(bootstrap_servers: str, topic: str, time_ms: int) -> dict[int, int]:
    """Return by partition the offset of the first record of this time or later, else the end.

    Args:
        bootstrap_servers: Address of the broker.
        topic: Name of the topic.
        time_ms: Milliseconds since the epoch, UTC; compared with the records' timestamps.

    Raises:
        BrokerError: The broker cannot be reached, or has no such topic.
    """
    with _asking(bootstrap_servers) as client:
        ends = _offsets(client, bootstrap_servers, topic, OffsetSpec.LATEST)
        # A time below 0 would be taken for one of the protocol's special places.
        found = _offsets(client, bootstrap_servers, topic, max(time_ms, 0))
    return {partition: ends[partition] if offset < 0 else offset for partition, offset in found.items()}


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
    deadline = time.monotonic() + timeout_s
    while True:
        still_running()
        try:
            with connected(bootstrap_servers, _ATTEMPT_S):
                return
        except KafkaError as error:
            if time.monotonic() > deadline:
                raise _unreachable(bootstrap_servers, timeout_s, error) from error
        time.sleep(0.02)


@contextlib.contextmanager
def _asking(bootstrap_servers: str, timeout_s: float = _TIMEOUT_S) -> Iterator[KafkaAdminClient]:
    try:
        with connected(bootstrap_servers, timeout_s) as client:
            yield client
    except KafkaError as error:
        raise _unreachable(bootstrap_servers, timeout_s, error) from error


def _unreachable(bootstrap_servers: str, timeout_s: float, error: KafkaError) -> BrokerError:
    return BrokerError(
        f"bootstrap_servers={bootstrap_servers!r} did not answer within {timeout_s:.0f} s "
        f"({error}): nothing can be read or written; start a broker there, for "
        "example with `flowcore broker --port N`, or pass the address of one that runs"
    )


def _partition_counts(client: KafkaAdminClient, topics: Iterable[str]) -> dict[str, int | None]:
    # Asking creates nothing: the client forbids it with each question.
    known = {topic["name"]: topic["partitions"] for topic in client.describe_topics(list(topics))}
    return {name: _count(known[name]) for name in topics}


def _count(partitions: list[dict[str, int]]) -> int | None:
    # A topic that does not exist has none.
    all_are_led = partitions and all(partition["leader_id"] >= 0 for partition in partitions)
    return len(partitions) if all_are_led else None


def _offsets(
    client: KafkaAdminClient, bootstrap_servers: str, topic: str, place: OffsetSpec | int
) -> dict[int, int]:
    count = _partition_counts(client, [topic])[topic]
    if count is None:
        msg = (
            f"topic {topic!r} does not exist at {bootstrap_servers}: it has no offsets; create it "
            "first, for example with `flowcore broker --topic NAME:PARTITIONS`"
        )
        raise BrokerError(msg)
    asked = [TopicPartition(topic, number) for number in range(count)]
    found = client.list_partition_offsets(dict.fromkeys(asked, place))
    return {partition.partition: found[partition].offset for partition in asked}
