"""What has come out so far, and how long did it take to come out?

A consumer in a thread of its own notes each record's value and the moment it was received. Latency is
that moment less the `sent_us` in the value: from the producer's send to the consumer's receive, on one
machine's clock. ``_us`` is microseconds since the epoch, UTC.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, TopicPartition

from flowcore.errors import BrokerError
from flowcore.kafka.topics import end_offsets
from pipelines.auctions.verify import rows_from_json

__all__ = ["Collector", "latencies_ms"]

_SENT = pa.schema({"sent_us": pa.int64()})
_WAIT_S = 0.1


class Collector:
    """Reads topics from their present end on; a context manager.

    Args:
        bootstrap_servers: Address of the broker.
        topics: Topics that exist.
    """

    def __init__(self, bootstrap_servers: str, topics: Iterable[str]) -> None:
        self._received: dict[str, list[tuple[int, bytes]]] = {topic: [] for topic in topics}
        self._failure: KafkaError | None = None
        self._stop = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": "collect",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 50,
                "log_level": 0,
            }
        )
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
        """Records of a topic received so far.

        Raises:
            BrokerError: The consumer failed.
        """
        if self._failure is not None:
            msg = f"topic {topic!r} cannot be read any more: {self._failure.str()}"
            raise BrokerError(msg)
        return len(self._received[topic])

    def values(self, topic: str) -> list[bytes]:
        """The values of a topic, in the order of receipt."""
        return [value for _, value in self._received[topic][: self.count(topic)]]

    def since(self, topic: str, received_us: int) -> list[tuple[int, bytes]]:
        """Moment of receipt and value of each record received at this moment or later."""
        return [pair for pair in self._received[topic][: self.count(topic)] if pair[0] >= received_us]

    def _run(self) -> None:
        while not self._stop.is_set():
            # One at a time: asking for several would wait until there are so many.
            message = self._consumer.poll(_WAIT_S)
            if message is None:
                continue
            if message.error() is not None:
                self._failure = message.error()
                return
            self._received[str(message.topic())].append((time.time_ns() // 1_000, message.value() or b""))


def latencies_ms(received: Sequence[tuple[int, bytes]], sent_from_us: int = 0) -> npt.NDArray[np.float64]:
    """Milliseconds from send to receipt of each record that was sent at this moment or later."""
    sent = rows_from_json([value for _, value in received], _SENT)["sent_us"].to_numpy()
    moments = np.array([moment for moment, _ in received], dtype=np.int64)
    wanted = sent >= sent_from_us
    latencies: npt.NDArray[np.float64] = (moments[wanted] - sent[wanted]) / 1_000.0
    return latencies
