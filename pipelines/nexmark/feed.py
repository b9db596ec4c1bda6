"""Feed of bids to a Kafka topic, at a fixed rate or as fast as possible.

Each bid is one record. Its key is the auction's id as text. Its value is a JSON object of the table's columns
and ``sent_us``, the time at which it was passed to the client. A consumer on the same machine can subtract
``sent_us`` from its own clock to measure the end-to-end latency. Arrow builds the values by column, not by
record. ``_us`` is microseconds since the epoch, UTC.

From a shell: ``python -m pipelines.nexmark.feed --help``.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Final

import click
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaException, Producer
from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

from flowcore.errors import BrokerError, ConfigurationError, SchemaError
from flowcore.kafka.security import BrokerAddress, Security, client_login
from flowcore.kafka.topics import ensure_topics, partition_counts
from flowcore.settings import Settings
from pipelines.nexmark.generator import NexmarkConfig, live_batches

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

__all__ = ["FeedReport", "encode", "feed"]

KEY: Final = "auction_id"
QUEUE_RECORDS: Final = 200_000
BATCH_RECORDS: Final = 10_000
SHORTEST_SLEEP_S: Final = 0.0001  # shorter sleeps take longer than requested: send several bids at once
PROGRESS_S: Final = 0.1
SEED: Final = 1
_ESCAPED: Final = r'["\\\x00-\x1f]'

COMMON_SETTINGS: Final = {
    "enable.idempotence": True,  # a retry must not send a bid twice
    "partitioner": "murmur2_random",  # the default of Java clients
    "delivery.report.only.error": True,  # after flush(), every record without a report has arrived
    "message.timeout.ms": 30_000,
    "log_level": 0,  # errors are raised, not logged
}
PACED_SETTINGS: Final = {"linger.ms": 0}
FAST_SETTINGS: Final = {
    "linger.ms": 50,
    "batch.size": 1_048_576,
    "batch.num.messages": 100_000,
    "compression.type": "lz4",
}


@dataclass(frozen=True, slots=True)
class FeedReport:
    """Result of a feed: exactly its first ``sent`` bids are in the topic."""

    sent: int
    seconds: float

    @property
    def per_second(self) -> float:
        """Bids per second."""
        return self.sent / self.seconds


def feed(
    bootstrap_servers: str,
    topic: str,
    tables: Iterable[pa.Table],
    rate: float | None = None,
    *,
    key: str = KEY,
    at_random: bool = False,
    stop: threading.Event | None = None,
    on_progress: Callable[[int], None] = lambda _sent: None,
) -> FeedReport:
    """Send every row of the tables, in order, and wait until the broker has all of them.

    Args:
        bootstrap_servers: Address of the broker, ``host:port[,host:port...]``.
        topic: An existing topic.
        tables: Bids.
        rate: Bids a second. Without it, the feed is as fast as the broker. The rate also selects the client's
            settings: low latency with a rate, high throughput without.
        key: The column of numbers whose text is the key.
        at_random: With a rate: send at random moments (a Poisson process), as many independent senders would,
            instead of evenly spaced.
        stop: Ends the feed early, from another thread.
        on_progress: Called about ten times a second with the number of sent bids.

    Raises:
        BrokerError: The broker cannot be reached, has no such topic, or refused a bid.
        ConfigurationError: The rate is not positive.
        SchemaError: A column cannot be sent.
    """
    if rate is not None and rate <= 0:
        msg = f"rate={rate} would never send a bid; pass rate > 0, or None for full speed"
        raise ConfigurationError(msg)
    _require_topic(bootstrap_servers, topic)
    failures = _Failures(topic)
    producer = _connect(bootstrap_servers, failures, FAST_SETTINGS if rate is None else PACED_SETTINGS)
    stop = stop or threading.Event()
    started = reported = time.perf_counter()
    sent = 0
    if rate is None:
        steps = _send_fast(producer, topic, tables, key)
    else:
        moments_s = _moments_s(rate, at_random=at_random)
        steps = _send_paced(producer, topic, tables, key, moments_s=moments_s, stop=stop)
    try:
        for records in steps:
            sent += records
            failures.check()
            if time.perf_counter() - reported > PROGRESS_S:
                reported = time.perf_counter()
                on_progress(sent)
            if stop.is_set():
                break
        producer.flush()
    except KafkaException as error:
        msg = f"topic {topic!r} at {bootstrap_servers} failed after {sent} bids: {error}"
        raise BrokerError(msg) from error
    failures.check()
    on_progress(sent)
    return FeedReport(sent, time.perf_counter() - started)


def encode(table: pa.Table, sent_us: int) -> list[bytes]:
    """Return each row as a JSON object, with ``sent_us`` as its last member.

    >>> encode(pa.table({"auction_id": [7], "price": [1.5]}), sent_us=9)
    [b'{"auction_id":7,"price":1.5,"sent_us":9}']

    Raises:
        SchemaError: A column holds neither numbers nor text, or its text has to be escaped in JSON.
    """
    return _encode(table, f"{sent_us}}}")


def _encode(table: pa.Table, ending: str) -> list[bytes]:
    parts: list[Any] = []
    for name, column in zip(table.column_names, table.columns, strict=True):
        is_text = pa.types.is_string(column.type)
        if not (is_text or pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
            msg = (
                f"column {name!r} is {column.type}, neither a number nor text: it would not be valid JSON; "
                "remove it or send a numeric code"
            )
            raise SchemaError(msg)
        parts.append(pa.scalar(f'{"," if parts else "{"}"{name}":'))
        parts.append(_quoted(name, column) if is_text else pc.cast(column.combine_chunks(), pa.string()))
    parts.append(pa.scalar(f',"sent_us":{ending}'))
    joined = pc.binary_join_element_wise(
        *parts, pa.scalar(""), null_handling="replace", null_replacement="null"
    )
    return _as_bytes(joined)


def _quoted(name: str, column: Any) -> Any:
    if pc.any(pc.match_substring_regex(column, _ESCAPED)).as_py():
        msg = (
            f"column {name!r} has text with a quote, a backslash or a control character: it would not be "
            "valid JSON; remove these characters"
        )
        raise SchemaError(msg)
    return pc.binary_join_element_wise(pa.scalar('"'), column.combine_chunks(), pa.scalar('"'), pa.scalar(""))


def _keys(table: pa.Table, key: str) -> list[bytes]:
    return _as_bytes(pc.cast(table[key].combine_chunks(), pa.string()))


def _as_bytes(text: Any) -> list[bytes]:
    values: list[bytes] = pc.cast(text, pa.binary()).to_pylist()
    return values


def _require_topic(bootstrap_servers: str, topic: str) -> None:
    if partition_counts(bootstrap_servers, [topic])[topic] is None:
        msg = (
            f"topic {topic!r} does not exist at {bootstrap_servers}: bids would be lost; "
            "create it first, for example with flowcore.kafka.topics.ensure_topics"
        )
        raise BrokerError(msg)


def _connect(bootstrap_servers: str, failures: _Failures, settings: dict[str, Any]) -> Producer:
    return Producer(
        COMMON_SETTINGS
        | settings
        | {
            **client_login(bootstrap_servers),
            "on_delivery": failures,
            "queue.buffering.max.messages": QUEUE_RECORDS,
        }
    )


def _slices(tables: Iterable[pa.Table], rows: int) -> Iterator[pa.Table]:
    for table in tables:
        for start in range(0, table.num_rows, rows):
            yield table.slice(start, rows)


def _send_fast(producer: Producer, topic: str, tables: Iterable[pa.Table], key: str) -> Iterator[int]:
    for table in _slices(tables, BATCH_RECORDS):
        values = _encode(table, f"{_now_us()}}}")
        pairs = zip(_keys(table, key), values, strict=True)
        batch = [{"key": text, "value": value} for text, value in pairs]
        while len(producer) > QUEUE_RECORDS - len(batch):
            producer.poll(0.002)
        # Sending a refused bid later would put it after younger bids of the same auction.
        if producer.produce_batch(topic, batch) < len(batch):
            refused = next(message["_error"] for message in batch if "_error" in message)
            raise KafkaException(refused)
        producer.poll(0)
        yield len(batch)


def _send_paced(
    producer: Producer,
    topic: str,
    tables: Iterable[pa.Table],
    key: str,
    *,
    moments_s: Iterator[float],
    stop: threading.Event,
) -> Iterator[int]:
    started = time.perf_counter()
    # Encoding a small slice causes no noticeable pause.
    for table in _slices(tables, 1_000):
        for text, value in zip(_keys(table, key), _encode(table, ""), strict=True):
            ahead_s = started + next(moments_s) - time.perf_counter()
            if ahead_s > SHORTEST_SLEEP_S and stop.wait(ahead_s):
                return
            while len(producer) >= QUEUE_RECORDS:
                producer.poll(0.002)
            producer.produce(topic, b"%s%d}" % (value, _now_us()), text)
            producer.poll(0)
            yield 1


def _moments_s(rate: float, *, at_random: bool) -> Iterator[float]:
    """The time to send each bid, relative to the first."""
    if not at_random:
        yield from (number / rate for number in itertools.count())
    random, moment_s = Random(SEED), 0.0  # noqa: S311 - not for security
    while True:
        yield moment_s
        moment_s += random.expovariate(rate)


def _now_us() -> int:
    return time.time_ns() // 1_000


class _Failures:
    """Counts failed deliveries; the client calls it only for those."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._count = 0
        self._first: KafkaError | None = None

    def __call__(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._count += 1
            self._first = self._first or error

    def check(self) -> None:
        if self._first is not None:
            msg = (
                f"{self._count} bids did not reach topic {self._topic!r}, the first because: "
                f"{self._first.str()}: what follows would be computed without them; "
                "repair the broker, empty the topic, and feed again"
            )
            raise BrokerError(msg)


@click.command()
@click.option("--bootstrap-servers", required=True, help="Address of the broker, host:port.")
@click.option("--topic", default="bids", show_default=True, help="Created if it does not exist.")
@click.option("--partitions", default=2, show_default=True, help="Partitions of a created topic.")
@click.option("--rate", type=float, help="Bids a second. Default: as fast as possible.")
@click.option("--seconds", type=float, default=60.0, show_default=True, help="Duration, with --rate only.")
@click.option("--count", default=1_000_000, show_default=True, help="Number of bids, without --rate.")
@click.option("--history", default=1_000_000, show_default=True, help="Number of events in the history.")
@click.option("--seed", default=1, show_default=True, help="Seed of the history.")
def main(
    *,
    bootstrap_servers: str,
    topic: str,
    partitions: int,
    rate: float | None,
    seconds: float,
    count: int,
    history: int,
    seed: int,
) -> None:
    """Send live bids to a topic. Login and encryption are those of the settings, FLOWCORE_KAFKA_*.

    Example: python -m pipelines.nexmark.feed --bootstrap-servers 127.0.0.1:9092 --rate 1000
    """
    bootstrap_servers = BrokerAddress(bootstrap_servers, Security.of(Settings.of()))
    total = count if rate is None else max(int(rate * seconds), 1)
    tables = live_batches(NexmarkConfig(seed=seed), history, total)
    ensure_topics(bootstrap_servers, {topic: partitions})
    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns) as progress:
        task = progress.add_task(f"bids to {topic}", total=total)
        report = feed(
            bootstrap_servers,
            topic,
            tables,
            rate,
            on_progress=lambda sent: progress.update(task, completed=sent),
        )
    click.echo(f"{report.sent} bids in {report.seconds:.1f} s: {report.per_second:,.0f} a second")


if __name__ == "__main__":
    main()
