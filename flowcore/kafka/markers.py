"""Latency markers beside a topic, in its companion topic ``<topic>.events``.

`MarkerSource` writes a `LatencyMarkerEvent` to every partition of the companion topic each interval, from one
thread. `flowcore.kafka.latency_collector` reads them at the sinks.

A marked time is in whole milliseconds, and a fast flow takes less than one. So a marker is sent at the turn
of a millisecond, and its time is exact. A marker that the broker does not accept within a second is dropped
and counted, never sent late or twice: it would measure this producer and not the flow. The latency of an
outage shows in the markers that were accepted before it.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Final, Self

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from flowcore.api.connectors import KafkaTopic
from flowcore.durations import MILLISECOND, show_duration
from flowcore.elements import LatencyMarkerEvent
from flowcore.errors import BrokerError, ConfigurationError
from flowcore.kafka.refusals import GUIDE
from flowcore.kafka.security import client_login
from flowcore.kafka.topics import ensure_topics, grow_topic, partition_counts
from flowcore.serializers.events import LatencyMarkerEventSerializer

__all__ = ["AT_SOURCE_HEADER", "COMPANION_CONFIGS", "MarkerSource", "ensure_companion"]

COMPANION_CONFIGS: Final = {
    "retention.ms": "3600000",
    # Kafka deletes closed segment files only; markers would fill one in a month.
    "segment.ms": "900000",
}

AT_SOURCE_HEADER: Final = "flowcore-at-source"
"""Header of a marker that no query has forwarded yet.

If one flow writes a topic that another reads, the markers of the second start where those of the first end.
"""

_GIVE_UP_MS: Final = 1_000
_FLUSH_S: Final = 1.0
_SETTINGS: Final = {
    "linger.ms": 0,
    # Readers wait for the replicas anyway; one lost marker does not matter.
    "acks": 1,
    "retries": 0,
    "message.timeout.ms": _GIVE_UP_MS,
    "reconnect.backoff.max.ms": 1_000,
    "log_level": 0,  # failures are counted
}
_SHORTEST_BEAT_MS: Final = 5  # markers sent together delay each other
_POLL_S: Final = 1.0
_log = logging.getLogger(__name__)
_MS_NS: Final = 1_000_000
_SPIN_NS: Final = 150_000  # a short sleep may last this much longer
_LATE_NS: Final = 100_000
_ATTEMPTS: Final = 5
_AT_SOURCE: Final[list[tuple[str, str | bytes | None]]] = [(AT_SOURCE_HEADER, b"true")]


def ensure_companion(servers: str, topic: str) -> int:
    """Create the companion topic of a topic if it is missing, with at least as many partitions.

    It keeps an event for an hour. An existing companion keeps its settings.

    Returns:
        The number of the companion's partitions.

    Raises:
        BrokerError: The broker cannot be reached or refuses, or the topic does not exist.
    """
    partitions = partition_counts(servers, [topic])[topic]
    if partitions is None:
        msg = (
            f"topic {topic!r} does not exist at {servers}: the number of partitions of its companion is "
            "unknown; create it first"
        )
        raise BrokerError(msg)
    companion = KafkaTopic(topic).events
    ensure_topics(servers, {companion: partitions}, COMPANION_CONFIGS)
    grow_topic(servers, companion, partitions)
    return partition_counts(servers, [companion])[companion] or partitions


class MarkerSource:
    """Writes latency markers beside a topic, from entering the context to leaving it.

    >>> with MarkerSource("127.0.0.1:9092", "bids", "auctions/bids", timedelta(seconds=1)):  # doctest: +SKIP
    ...     run_the_flow()

    Args:
        topic: The topic of records; its companion is created if it is missing.
        operator_id: Name of the source in the markers, such as ``auctions/bids``.
        interval: Time between two markers of a partition, at least a millisecond. The partitions take
            turns within it, so that their cost is spread.

    Raises:
        ConfigurationError: The interval is too short.
        ElementError: The operator id does not fit in a marker.
        BrokerError: On entering: the broker cannot be reached, or the topic does not exist. A later outage
            only counts in `failed`.
    """

    def __init__(self, servers: str, topic: str, operator_id: str, interval: timedelta) -> None:
        if interval < MILLISECOND:
            msg = (
                f"interval={show_duration(interval)} of markers beside topic {topic!r} is under a "
                "millisecond: marks could not be distinguished; pass for instance timedelta(seconds=1)"
            )
            raise ConfigurationError(msg)
        LatencyMarkerEvent(0, operator_id, 0)
        self._servers = servers
        self._topic = topic
        self._companion = KafkaTopic(topic).events
        self._operator_id = operator_id
        self._interval_s = interval.total_seconds()
        self._serializer = LatencyMarkerEventSerializer()
        self._stop = threading.Event()
        self._running: tuple[Producer, threading.Thread] | None = None
        self._delivered = 0
        self._failed = 0
        self._last_error: str | None = None

    @property
    def delivered(self) -> int:
        """Number of markers that the broker has accepted."""
        return self._delivered

    @property
    def failed(self) -> int:
        """Number of dropped markers, which the broker did not accept in time."""
        return self._failed

    @property
    def last_error(self) -> str | None:
        """Reason of the last drop."""
        return self._last_error

    def __enter__(self) -> Self:
        partitions = ensure_companion(self._servers, self._topic)
        producer = Producer({**client_login(self._servers), **_SETTINGS})
        self._stop.clear()
        thread = threading.Thread(
            target=self._run, args=(producer, partitions), name=f"markers-{self._topic}", daemon=True
        )
        thread.start()
        self._running = producer, thread
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop; sent markers have a second to arrive. A second call does nothing."""
        if self._running is None:
            return
        (producer, thread), self._running = self._running, None
        self._stop.set()
        thread.join()
        if producer.flush(_FLUSH_S):
            producer.purge()
            producer.poll(0)

    def _run(self, producer: Producer, partitions: int) -> None:
        # Partitions share a beat if each of its own would be too short.
        beats = min(partitions, max(int(self._interval_s * 1_000) // _SHORTEST_BEAT_MS, 1))
        beat_s = self._interval_s / beats
        # Turns follow the monotonic clock, marked times the wall clock, which the sinks read.
        began_s = time.monotonic()
        turn = 0
        while self._wait_until(began_s + turn * beat_s, producer):
            self._mark(producer, range(turn % beats, partitions, beats))
            producer.poll(0)
            # Turns that a suspended process has missed are skipped.
            turn = max(turn + 1, int((time.monotonic() - began_s) / beat_s))

    def _wait_until(self, due_s: float, producer: Producer) -> bool:
        while not self._stop.is_set():
            left_s = due_s - time.monotonic()
            if left_s <= 0:
                return True
            self._stop.wait(min(left_s, _POLL_S))
            producer.poll(0)
        return False

    def _mark(self, producer: Producer, partitions: Iterable[int]) -> None:
        def encode(marked_ms: int) -> dict[int, bytes]:
            marks = {each: LatencyMarkerEvent(marked_ms, self._operator_id, each) for each in partitions}
            return {each: self._serializer.encode(mark) for each, mark in marks.items()}

        marked_ms, events = _at_turn(encode)
        for partition, event in events.items():
            self._send(producer, marked_ms, partition, event)

    def _send(self, producer: Producer, marked_ms: int, partition: int, event: bytes) -> None:
        try:
            producer.produce(
                self._companion,
                event,
                partition=partition,
                timestamp=marked_ms,
                headers=_AT_SOURCE,
                on_delivery=self._sent,
            )
        except (KafkaException, BufferError) as error:
            self._drop(str(error))

    def _sent(self, error: KafkaError | None, _message: Message) -> None:
        if error is None:
            self._delivered += 1
        else:
            self._drop(error.str(), is_forbidden=error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED)

    def _drop(self, reason: str, *, is_forbidden: bool = False) -> None:
        self._failed += 1
        if is_forbidden and reason != self._last_error:
            _log.warning(
                "the broker at %s does not allow to write to topic %r: latency is not shown; see %s",
                self._servers, self._companion, GUIDE,
            )  # fmt: skip
        self._last_error = reason


def _at_turn(prepare: Callable[[int], dict[int, bytes]]) -> tuple[int, dict[int, bytes]]:
    """Wait until the wall clock turns to a whole millisecond; return it and what was prepared for it."""
    for _ in range(_ATTEMPTS):
        turn_ms = time.time_ns() // _MS_NS + 1
        turn_ns = turn_ms * _MS_NS
        prepared = prepare(turn_ms)
        ahead_ns = turn_ns - time.time_ns()
        if ahead_ns > _SPIN_NS:
            time.sleep((ahead_ns - _SPIN_NS) / 1e9)
        # The upper bound ends the loop if the clock is set back meanwhile.
        while 0 < turn_ns - (now_ns := time.time_ns()) <= _MS_NS:
            pass
        if 0 <= now_ns - turn_ns <= _LATE_NS:
            return turn_ms, prepared
    now_ms = now_ns // _MS_NS  # a busy machine: less than a millisecond off
    return now_ms, prepare(now_ms)
