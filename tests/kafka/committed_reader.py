"""A reader of committed records that reads while a flow writes."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

from confluent_kafka import Consumer, Message, TopicPartition

from flowcore.kafka.topics import end_offsets

__all__ = ["CommittedReader"]


class CommittedReader:
    """Reads the committed records of a topic in a thread, from its beginning."""

    def __init__(self, servers: str, topic: str) -> None:
        self.found: list[Message] = []
        self._stop = threading.Event()
        self._reads = threading.Event()
        self._reads.set()
        settings = {"bootstrap.servers": servers, "group.id": "reader", "isolation.level": "read_committed"}
        self._consumer = Consumer({**settings, "enable.auto.commit": False, "log_level": 0})
        self._consumer.assign([TopicPartition(topic, each, 0) for each in end_offsets(servers, topic)])
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._consumer.close()

    @property
    def values(self) -> list[dict[str, Any]]:
        """The values of the records, in the order in which they were read."""
        return [json.loads(message.value() or b"null") for message in self.found]

    def wait_for(self, count: int) -> None:
        """Wait until it has read this many records."""
        deadline = time.monotonic() + 300
        while len(self.found) < count and time.monotonic() < deadline:
            time.sleep(0.05)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Read nothing in the block."""
        self._reads.clear()
        try:
            yield
        finally:
            self._reads.set()

    def _read(self) -> None:
        while not self._stop.is_set():
            if not self._reads.wait(0.1):
                continue
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                self.found.append(message)
