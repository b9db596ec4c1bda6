"""Elements beside records: how does a watermark reach the readers of a topic?

As a message of its own in every partition, since a reader may read only one. A header names its channel,
so that a topic that several queries write to has a watermark from each.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer

from flowcore.graph.connectors import KafkaTopic
from flowcore.kafka.security import client_login
from flowcore.serializers.formats.raw import RawFormat
from flowcore.serializers.tagged import TaggedSerializer

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from confluent_kafka import KafkaError, Message

    from flowcore.elements import StreamElement

__all__ = ["CHANNEL_HEADER", "ELEMENT_HEADER", "ElementWriter"]

ELEMENT_HEADER = "flowcore-element"
"""Of tagged elements with ``headers=True``: everything but the value."""
CHANNEL_HEADER = "flowcore-channel"

_FLUSH_S = 10.0
_log = logging.getLogger(__name__)


class ElementWriter:
    """Writes control elements to topics; a context manager that waits for what is on its way.

    Args:
        servers: Address of the broker, ``host:port[,host:port...]``.
        topics: Topics of tagged elements, and how many partitions each has.
        channel: Who writes, for instance ``auctions/bids``.
    """

    def __init__(self, servers: str, topics: Mapping[KafkaTopic, int], channel: str) -> None:
        self._topics = topics
        self._channel = channel.encode()
        self._serializer = TaggedSerializer(RawFormat(), channel)
        self._producer = Producer({**client_login(servers), "enable.idempotence": True, "log_level": 0})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._producer.flush(_FLUSH_S)

    def write(self, elements: Iterable[StreamElement[Any]]) -> None:
        """Write elements in order to every partition of every topic; records are not written here."""
        for element in elements:
            content = self._serializer.encode(element)
            for topic, partitions in self._topics.items():
                headers: list[tuple[str, str | bytes | None]] = [(CHANNEL_HEADER, self._channel)]
                value: bytes | None = content
                if topic.headers:
                    headers.append((ELEMENT_HEADER, content))
                    value = None
                for partition in range(partitions):
                    self._producer.produce(
                        topic.name, value, partition=partition, headers=headers, on_delivery=_delivered
                    )
        self._producer.poll(0)


def _delivered(error: KafkaError | None, message: Message) -> None:
    if error is not None:
        _log.warning(
            "a watermark for %s[%s] was not delivered (%s): readers wait for the next",
            message.topic(), message.partition(), error,
        )  # fmt: skip
