"""Latency of markers from the sources to the sinks of a flow, wherever it runs.

`LatencyCollector` reads the companion topics of the sinks' topics in a thread, from their ends. A marker is
received when any reader of the sink could receive a record, so its latency includes two hops through Kafka
and the flow between them. `flowcore.latency` explains the percentiles.
"""

import logging
import threading
import time
from collections.abc import Mapping
from typing import Final, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from flowcore.api.connectors import KafkaTopic
from flowcore.errors import SerializationError
from flowcore.kafka.markers import AT_SOURCE_HEADER
from flowcore.kafka.refusals import GUIDE
from flowcore.kafka.security import client_login
from flowcore.latency import LatencySummary, LatencyTracker
from flowcore.serializers.events import LatencyMarkerEventSerializer

__all__ = ["LatencyCollector"]

_SETTINGS: Final = {
    "group.id": "flowcore-latency",  # required by the client; no group is joined, nothing is committed
    "enable.auto.commit": False,
    "fetch.min.bytes": 1,
    "fetch.wait.max.ms": 100,
    "reconnect.backoff.max.ms": 250,  # a waiting marker would look slow
    "auto.offset.reset": "latest",  # of a topic that was created again, or read too late
    "log_level": 0,  # an outage of the broker is waited for
}
_POLL_S: Final = 0.1
_log = logging.getLogger(__name__)
_ANSWER_S: Final = 1.0
_DISCOVERY_S: Final = 1.0
_REDISCOVERY_S: Final = 30.0


class LatencyCollector:
    """Latency of the markers that reach the sinks' topics, from entering the context to leaving it.

    It waits for topics that do not exist yet and for a broker that cannot be reached. A bad message does
    not stop it.

    >>> with LatencyCollector("127.0.0.1:9092", {"enriched-bids": "enriched"}) as found:  # doctest: +SKIP
    ...     time.sleep(60)
    ...     print(found.read())

    Args:
        sinks: Name of the sink by its topic. The companion topics of these are read.
    """

    def __init__(self, servers: str, sinks: Mapping[str, str]) -> None:
        self._servers = servers
        self._sinks = {KafkaTopic(topic).events: sink for topic, sink in sinks.items()}
        self._serializer = LatencyMarkerEventSerializer()
        self._tracker = LatencyTracker()
        self._counting = threading.Lock()
        self._bad = 0
        self._last_bad: str | None = None
        self._stop = threading.Event()
        self._ready = threading.Event()
        self._running: tuple[Consumer, threading.Thread] | None = None

    @property
    def bad(self) -> int:
        """Number of messages that are not events."""
        return self._bad

    @property
    def last_bad(self) -> str | None:
        """Error of the last bad message, with its coordinates."""
        return self._last_bad

    def read(self) -> tuple[LatencySummary, ...]:
        """Summaries since the start, by sink and source."""
        with self._counting:
            return self._tracker.total()

    def recent(self) -> tuple[LatencySummary, ...]:
        """Summaries of the last minute, by sink and source."""
        with self._counting:
            return self._tracker.recent(_now_us())

    def wait_ready(self, timeout_s: float) -> bool:
        """Wait until the broker has answered once; return whether it has.

        From then on no marker in an existing topic is missed. Later topics are found within a second or two,
        and read from their ends at that moment.
        """
        return self._ready.wait(timeout_s)

    def __enter__(self) -> Self:
        consumer = Consumer({**client_login(self._servers), **_SETTINGS})
        self._stop.clear()
        self._ready.clear()
        thread = threading.Thread(target=self._run, args=(consumer,), name="latency", daemon=True)
        thread.start()
        self._running = consumer, thread
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop reading; summaries can still be read. A second call does nothing."""
        if self._running is None:
            return
        (consumer, thread), self._running = self._running, None
        self._stop.set()
        thread.join()
        consumer.close()

    def _run(self, consumer: Consumer) -> None:
        partitions: dict[str, int] = {}
        discovery_s = time.monotonic()
        while not self._stop.is_set():
            if time.monotonic() >= discovery_s:
                self._discover(consumer, partitions)
                is_complete = all(partitions.get(topic) for topic in self._sinks)
                discovery_s = time.monotonic() + (_REDISCOVERY_S if is_complete else _DISCOVERY_S)
            message = consumer.poll(_POLL_S)
            if message is None:
                continue
            error = message.error()
            if error is None:
                self._record(message, _now_us())
            elif error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                _log.warning(
                    "the broker at %s does not allow to read topic %r: latency is not shown; see %s",
                    self._servers, message.topic(), GUIDE,
                )  # fmt: skip

    def _discover(self, consumer: Consumer, known: dict[str, int]) -> None:
        """Start reading the partitions that are not read yet."""
        try:
            for topic in self._sinks:
                found = len(consumer.list_topics(topic, timeout=_ANSWER_S).topics[topic].partitions)
                added = [TopicPartition(topic, number) for number in range(known.get(topic, 0), found)]
                for each in added:
                    # The special offset "end" is resolved at the first fetch, which may be later. Earlier
                    # markers have waited for this reader and not for the flow.
                    _, each.offset = consumer.get_watermark_offsets(each, timeout=_ANSWER_S)
                if added:
                    consumer.incremental_assign(added)
                known[topic] = max(found, known.get(topic, 0))
        except KafkaException:
            return  # the broker cannot be reached; tried again
        self._ready.set()

    def _record(self, message: Message, received_us: int) -> None:
        topic = message.topic() or ""
        where = f"{topic}[{message.partition()}]@{message.offset()}"
        try:
            if AT_SOURCE_HEADER in dict(message.headers() or ()):
                return  # the marker starts here, at the source of another flow
            event = self._serializer.decode(message.value() or b"", where)
        except SerializationError as error:
            self._bad, self._last_bad = self._bad + 1, str(error)
            return
        except (SystemError, UnicodeDecodeError) as error:  # a key of its headers is not UTF-8
            self._bad, self._last_bad = self._bad + 1, f"{where} has headers that cannot be read ({error})"
            return
        with self._counting:
            self._tracker.record(event, self._sinks[topic], received_us)


def _now_us() -> int:
    return time.time_ns() // 1_000
