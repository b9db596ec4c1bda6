"""Control elements in a topic: watermarks and others as messages of their own.

A control element is written to every partition, since a reader may read only one. A header names its channel:
each query that writes to a topic is a channel with a watermark of its own.
"""

import logging
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Self

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from flowcore.api.connectors import KafkaTopic
from flowcore.elements import StreamElement
from flowcore.kafka.security import client_login
from flowcore.kafka.topics import end_offsets
from flowcore.serializers.formats import RawFormat
from flowcore.serializers.tagged import TaggedSerializer
from flowcore.signatures import SIGNATURE_HEADER, sign

__all__ = ["CHANNEL_HEADER", "ELEMENT_HEADER", "ElementWriter"]

ELEMENT_HEADER = "flowcore-element"
"""Header of tagged elements with ``headers=True``: the element without its value."""
CHANNEL_HEADER = "flowcore-channel"

_FLUSH_S = 10.0
_DELIVERY_S = 1.0
"""What is not delivered in this time is delivered later."""
_REFRESH_S = 10.0
"""Interval of the search for missing partitions."""
_log = logging.getLogger(__name__)


class ElementWriter:
    """Writes control elements to topics; a context manager that flushes at its end.

    Args:
        topics: Number of partitions by topic of tagged elements.
        channel: Name of the writing query, for instance ``auctions/bids``.
        key: Signs the elements of signed topics; needed if a topic is signed.
    """

    def __init__(
        self, servers: str, topics: Mapping[KafkaTopic, int], channel: str, key: bytes | None = None
    ) -> None:
        self._servers = servers
        self._topics = dict(topics)
        self._counted_s = time.monotonic()
        self._channel = channel.encode()
        self._key = key
        self._serializer = TaggedSerializer(RawFormat(), channel)
        # In order; a duplicate does no harm, and an idempotent producer may fail permanently.
        refresh = {"topic.metadata.refresh.interval.ms": round(_REFRESH_S * 1000)}
        settings = {**client_login(servers), "max.in.flight": 1, "linger.ms": 0, "log_level": 0, **refresh}
        self._producer = Producer(settings)
        self._latest: dict[type, StreamElement[Any]] = {}
        self._lost = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._producer.flush(_FLUSH_S)

    def continues(self) -> bool:
        """Whether a topic has records, so that its readers may know the channel.

        Raises:
            BrokerError: The broker cannot be reached.
        """
        return any(sum(end_offsets(self._servers, topic.name).values()) for topic in self._topics)

    @property
    def has_undelivered(self) -> bool:
        """An element was lost, or is still to be delivered."""
        return self._lost or len(self._producer) > 0

    def write(self, elements: Iterable[StreamElement[Any]]) -> None:
        """Write control elements in order to every partition of every topic.

        If an element was lost, the latest of each kind is written again before these: readers would wait for
        it. A partition that was added meanwhile gets the latest of each kind, too.
        """
        for topic, added in self._find_added_partitions():
            for element in self._latest.values():
                self._write(element, topic, added)
        again, self._lost = list(self._latest.values()) if self._lost else [], False
        for element in (*again, *elements):
            self._latest.pop(type(element), None)
            self._latest[type(element)] = element  # the last one last
            for topic, partitions in self._topics.items():
                self._write(element, topic, range(partitions))
        self._producer.flush(_DELIVERY_S)

    def _find_added_partitions(self) -> list[tuple[KafkaTopic, range]]:
        if time.monotonic() - self._counted_s < _REFRESH_S:
            return []
        self._counted_s = time.monotonic()
        found = []
        for topic, known in self._topics.items():
            with suppress(KafkaException):  # the broker is away
                metadata = self._producer.list_topics(topic.name, timeout=_DELIVERY_S).topics[topic.name]
                if len(metadata.partitions) > known:
                    found.append((topic, range(known, len(metadata.partitions))))
        self._topics |= {topic: added.stop for topic, added in found}
        return found

    def _write(self, element: StreamElement[Any], topic: KafkaTopic, partitions: Iterable[int]) -> None:
        content = self._serializer.encode(element)
        headers: list[tuple[str, str | bytes | None]] = [(CHANNEL_HEADER, self._channel)]
        value: bytes | None = content
        if topic.headers:
            headers.append((ELEMENT_HEADER, content))
            value = None
        for partition in partitions:
            proof = self._signature(topic, partition, content)
            self._produce(topic.name, value, partition, [*headers, *proof])

    def _signature(self, topic: KafkaTopic, partition: int, content: bytes) -> list[tuple[str, bytes]]:
        if not topic.signed or self._key is None:
            return []
        return [(SIGNATURE_HEADER, sign(self._key, topic.name, partition, self._channel, content))]

    def _produce(
        self, topic: str, value: bytes | None, partition: int, headers: list[tuple[str, str | bytes | None]]
    ) -> None:
        try:
            self._producer.produce(
                topic, value, partition=partition, headers=headers, on_delivery=self._delivered
            )
        except (KafkaException, BufferError) as error:  # no such partition, or a full queue
            self._lost = True
            _log.debug("a watermark for %s[%s] cannot be sent now: %s", topic, partition, error)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._lost = True
            _log.warning(
                "a watermark for %s[%s] was not delivered (%s): it will be sent again",
                message.topic(), message.partition(), error,
            )  # fmt: skip
