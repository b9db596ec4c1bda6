"""What is in a topic now? Read once, from the beginning or from where it ended before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from confluent_kafka import Consumer, TopicPartition

from flowcore.errors import BrokerError
from flowcore.kafka.topics import end_offsets

if TYPE_CHECKING:
    from confluent_kafka import Message

__all__ = ["messages_of", "values_of"]

_READ_RECORDS: Final = 50_000
_LONGEST_S: Final = 10.0


def messages_of(
    bootstrap_servers: str, topic: str, since: Mapping[int, int] | None = None
) -> Iterator[list[Message]]:
    """Yield all messages that are in a topic now, those of a partition in their order.

    Args:
        bootstrap_servers: Address of the broker.
        topic: A topic that exists.
        since: By partition, the offset of the first one wanted, such as an earlier end. Default: from the
            beginning.

    Raises:
        BrokerError: The broker cannot be reached, has no such topic, or stops answering.
    """
    ends = end_offsets(bootstrap_servers, topic)
    places = {partition: (since or {}).get(partition, 0) for partition in ends}
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "messages",
            "enable.auto.commit": False,
            "log_level": 0,  # what goes wrong is raised
        }
    )
    try:
        consumer.assign(
            [TopicPartition(topic, each, place) for each, place in places.items() if place < ends[each]]
        )
        while left := sum(max(end - places[partition], 0) for partition, end in ends.items()):
            # No more than there are: a client that is asked for more waits for them.
            found = consumer.consume(min(left, _READ_RECORDS), timeout=_LONGEST_S)
            messages = [message for message in found if message.error() is None]
            if not messages:
                msg = f"topic {topic!r} at {bootstrap_servers} gives no more, but has {left:,} messages left"
                raise BrokerError(msg)
            for message in messages:
                partition, offset = message.partition(), message.offset()
                if partition is not None and offset is not None:
                    places[partition] = offset + 1
            yield messages
    finally:
        consumer.close()


def values_of(bootstrap_servers: str, topic: str, since: Mapping[int, int] | None = None) -> Iterator[bytes]:
    """Yield the values of these messages, one that is null as an empty one.

    Raises:
        BrokerError: As `messages_of`.
    """
    for messages in messages_of(bootstrap_servers, topic, since):
        for message in messages:
            yield message.value() or b""
