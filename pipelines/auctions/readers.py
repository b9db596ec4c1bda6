"""Readers of Kafka topics: all messages that a topic holds now, or the messages that arrive from now on.

``_us`` is microseconds since the epoch, UTC.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, TopicPartition

from flowcore.errors import BrokerError
from flowcore.kafka.security import client_login
from flowcore.kafka.topics import end_offsets
from pipelines.auctions.verify import rows_from_json

if TYPE_CHECKING:
    from confluent_kafka import Message

__all__ = ["Collector", "latencies_ms", "read_messages", "read_rows", "read_values"]

_READ_RECORDS: Final = 50_000
_TIMEOUT_S: Final = 10.0
_POLL_S: Final = 0.1
_SENT: Final = pa.schema({"sent_us": pa.int64()})
_CONSUMER: Final = {"group.id": "readers", "enable.auto.commit": False, "log_level": 0}  # errors are raised
_EOF: Final = {"enable.partition.eof": True}  # the last offsets may be markers of transactions


def read_messages(
    bootstrap_servers: str, topic: str, since: Mapping[int, int] | None = None
) -> Iterator[list[Message]]:
    """Yield all committed messages that a topic holds now, in the order of each partition, some at once.

    Args:
        bootstrap_servers: Address of the broker.
        topic: An existing topic.
        since: The first offset to read, by partition, such as an earlier end. Default: the beginning.

    Raises:
        BrokerError: The broker cannot be reached, has no such topic, or stops answering.
    """
    ends = end_offsets(bootstrap_servers, topic)
    offsets = {partition: (since or {}).get(partition, 0) for partition in ends}
    consumer = Consumer({**client_login(bootstrap_servers), **_CONSUMER, **_EOF})
    try:
        consumer.assign(
            [TopicPartition(topic, each, offset) for each, offset in offsets.items() if offset < ends[each]]
        )
        answered = time.monotonic()
        while left := sum(max(end - offsets[partition], 0) for partition, end in ends.items()):
            # A client that is asked for more messages than there are waits for them. Markers of transactions
            # have offsets and are no messages, so there may be fewer.
            found = consumer.consume(min(left, _READ_RECORDS), timeout=_POLL_S)
            answers = [message for message in found if message.error() is None or _is_end(message)]
            if answers:
                answered = time.monotonic()
            elif time.monotonic() > answered + _TIMEOUT_S:
                msg = f"topic {topic!r} at {bootstrap_servers} stopped answering with {left:,} messages left"
                raise BrokerError(msg)
            for message in answers:
                partition, offset = message.partition(), message.offset()
                if partition is not None and offset is not None:
                    offsets[partition] = ends[partition] if _is_end(message) else offset + 1
            if messages := [message for message in answers if message.error() is None]:
                yield messages
    finally:
        consumer.close()


def _is_end(message: Message) -> bool:
    error = message.error()
    return error is not None and error.code() == KafkaError._PARTITION_EOF  # noqa: SLF001 - librdkafka's name


def read_values(
    bootstrap_servers: str, topic: str, since: Mapping[int, int] | None = None
) -> Iterator[bytes]:
    """Yield the values of these messages; a null value is yielded as an empty one.

    Raises:
        BrokerError: As `read_messages`.
    """
    for messages in read_messages(bootstrap_servers, topic, since):
        for message in messages:
            yield message.value() or b""


def read_rows(bootstrap_servers: str, topic: str, schema: pa.Schema) -> pa.Table:
    """Read the JSON objects of a topic, as `rows_from_json` does.

    Raises:
        BrokerError: As `read_messages`.
    """
    parts = [
        rows_from_json([message.value() or b"" for message in messages], schema)
        for messages in read_messages(bootstrap_servers, topic)
    ]
    return pa.concat_tables([schema.empty_table(), *parts])


class Collector:
    """Collects the messages of topics from their present ends on, in a thread; a context manager.

    Args:
        bootstrap_servers: Address of the broker.
        topics: Existing topics.
    """

    def __init__(self, bootstrap_servers: str, topics: Iterable[str]) -> None:
        self._received: dict[str, list[tuple[int, bytes]]] = {topic: [] for topic in topics}
        self._failure: KafkaError | None = None
        self._stop = threading.Event()
        self._consumer = Consumer({**client_login(bootstrap_servers), "fetch.wait.max.ms": 50, **_CONSUMER})
        self._consumer.assign(
            [
                TopicPartition(topic, partition, offset)
                for topic in self._received
                for partition, offset in end_offsets(bootstrap_servers, topic).items()
            ]
        )
        self._thread = threading.Thread(target=self._run, name="collect", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._consumer.close()

    def count(self, topic: str) -> int:
        """The number of messages of a topic so far.

        Raises:
            BrokerError: The consumer failed.
        """
        if self._failure is not None:
            msg = f"topic {topic!r} cannot be read any more: {self._failure.str()}"
            raise BrokerError(msg)
        return len(self._received[topic])

    def values(self, topic: str) -> list[bytes]:
        """The values of a topic, in order of receipt."""
        return [value for _, value in self._received[topic][: self.count(topic)]]

    def since(self, topic: str, received_us: int) -> list[tuple[int, bytes]]:
        """Time of receipt and value of each message received at this time or later."""
        return [pair for pair in self._received[topic][: self.count(topic)] if pair[0] >= received_us]

    def _run(self) -> None:
        while not self._stop.is_set():
            # One message at a time: the client would wait until it has several.
            message = self._consumer.poll(_POLL_S)
            if message is None:
                continue
            if message.error() is not None:
                self._failure = message.error()
                return
            self._received[str(message.topic())].append((time.time_ns() // 1_000, message.value() or b""))


def latencies_ms(received: Sequence[tuple[int, bytes]], sent_from_us: int = 0) -> npt.NDArray[np.float64]:
    """Milliseconds from send to receipt of each message that was sent at this time or later.

    The time of sending is `sent_us` in the value, on the clock of this machine.
    """
    sent = rows_from_json([value for _, value in received], _SENT)["sent_us"].to_numpy()
    times_us = np.array([time_us for time_us, _ in received], dtype=np.int64)
    wanted = sent >= sent_from_us
    latencies: npt.NDArray[np.float64] = (times_us[wanted] - sent[wanted]) / 1_000.0
    return latencies
