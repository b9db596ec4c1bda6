"""The feed's report equals the content of a real broker, at the requested rate."""

from __future__ import annotations

import json
import threading
import time
import uuid

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Message, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from flowcore.errors import BrokerError, ConfigurationError, SchemaError
from flowcore.kafka.broker import free_port
from flowcore.kafka.topics import end_offsets, ensure_topics
from pipelines.auctions.verify import rows_from_json
from pipelines.nexmark import feed as feeding
from pipelines.nexmark.feed import encode, feed
from pipelines.nexmark.generator import NexmarkConfig, live_batches, live_bids

pytestmark = pytest.mark.kafka

CONFIG = NexmarkConfig()
HISTORY_EVENTS = 10_000
PACES = pytest.mark.parametrize("rate", [None, 5_000.0], ids=["fast", "paced"])


@pytest.fixture
def topic(kafka: str) -> str:
    name = f"bids-{uuid.uuid4()}"
    ensure_topics(kafka, {name: 2})
    return name


@pytest.mark.parametrize(("count", "rate"), [(120_000, None), (3_000, 5_000.0)], ids=["fast", "paced"])
def test_feed_sends_each_bid_once(
    kafka: str, topic: str, count: int, rate: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every value arrives unchanged and once, although the client's queue is often full."""
    monkeypatch.setattr(feeding, "QUEUE_RECORDS", 12_000)
    tables = live_batches(CONFIG, HISTORY_EVENTS, count)

    report = feed(kafka, topic, tables, rate)

    assert report.sent == count
    sent = live_bids(CONFIG, HISTORY_EVENTS, 0, count)
    received = rows_from_json([value(message) for message in read(kafka, topic)], sent.schema)
    assert received.sort_by("bid_id").equals(sent)


@PACES
def test_feed_keeps_the_order_of_an_auction(kafka: str, topic: str, rate: float | None) -> None:
    """The key is the auction, so the bids of an auction are in one partition in sending order."""
    feed(kafka, topic, live_batches(CONFIG, HISTORY_EVENTS, 2_000), rate)

    last: dict[bytes | None, int] = {}
    partitions: dict[bytes | None, set[int | None]] = {}
    for message in read(kafka, topic):
        bid = json.loads(value(message))
        assert message.key() == str(bid["auction_id"]).encode()
        assert last.get(message.key(), -1) < bid["bid_id"]
        last[message.key()] = bid["bid_id"]
        partitions.setdefault(message.key(), set()).add(message.partition())
    assert all(len(used) == 1 for used in partitions.values())
    assert {partition for used in partitions.values() for partition in used} == {0, 1}


def test_feed_keeps_its_pace(kafka: str, topic: str) -> None:
    """No bid is sent before its time, and its value contains its sending time."""
    before_us = time.time_ns() // 1_000

    report = feed(kafka, topic, live_batches(CONFIG, HISTORY_EVENTS, 200), rate=400)

    assert report.seconds >= 199 / 400 - 0.001
    bids = sorted(
        (json.loads(value(message)) for message in read(kafka, topic)),
        key=lambda bid: bid["bid_id"],
    )
    first_us = bids[0]["sent_us"]
    assert before_us <= first_us <= bids[-1]["sent_us"] <= time.time_ns() // 1_000
    for turn, bid in enumerate(bids):
        # The first may itself be some milliseconds late; the two clocks differ by less.
        assert bid["sent_us"] - before_us >= turn / 400 * 1e6 - 1_000


@PACES
def test_feed_that_is_stopped_has_sent_what_it_reports(kafka: str, topic: str, rate: float | None) -> None:
    """The topic contains exactly the first ``sent`` bids, so they can be verified."""
    stop = threading.Event()
    tables = live_batches(CONFIG, HISTORY_EVENTS, 10_000_000, batch_rows=5_000)

    report = feed(kafka, topic, tables, rate, stop=stop, on_progress=lambda _sent: stop.set())

    assert 0 < report.sent < 10_000_000
    ids = sorted(json.loads(value(message))["bid_id"] for message in read(kafka, topic))
    assert ids == live_bids(CONFIG, HISTORY_EVENTS, 0, report.sent)["bid_id"].to_pylist()


def test_feed_reports_progress_up_to_the_end(kafka: str, topic: str) -> None:
    """The last report contains the number of bids."""
    seen: list[int] = []

    feed(kafka, topic, live_batches(CONFIG, HISTORY_EVENTS, 500), 1_000, on_progress=seen.append)

    assert seen == sorted(seen)
    assert len(seen) > 2
    assert seen[-1] == 500


@PACES
def test_feed_fails_if_the_broker_refuses_a_bid(kafka: str, rate: float | None) -> None:
    """A lost bid raises an error with a count and the broker's reason, instead of a smaller count."""
    name = f"narrow-{uuid.uuid4()}"
    narrow = NewTopic(name, num_partitions=1, config={"max.message.bytes": "20"})
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.create_topics([narrow])[name].result()

    with pytest.raises(BrokerError, match=rf"\d+ bids did not reach topic '{name}'.*too large"):
        feed(kafka, name, live_batches(CONFIG, HISTORY_EVENTS, 100), rate)


def test_feed_refuses_a_topic_that_does_not_exist(kafka: str) -> None:
    """A misspelt topic name does not create a topic."""
    with pytest.raises(BrokerError, match=r"topic 'bidz' does not exist at .*create it first"):
        feed(kafka, "bidz", [])


def test_feed_names_the_broker_that_does_not_answer() -> None:
    """No bid is queued if the broker is unreachable."""
    address = f"127.0.0.1:{free_port()}"

    with pytest.raises(BrokerError, match=address):
        feed(address, "bids", [])


def test_feed_refuses_a_rate_that_never_sends() -> None:
    """A rate of 0 would never finish."""
    with pytest.raises(ConfigurationError, match="rate=0 would never send"):
        feed("127.0.0.1:1", "bids", [], rate=0)


def test_feed_refuses_a_column_that_is_neither_number_nor_text(kafka: str, topic: str) -> None:
    """Its values would not be valid JSON."""
    flagged = pa.table({"auction_id": [1], "open": [True]})

    with pytest.raises(SchemaError, match="column 'open' is bool, neither a number nor text"):
        feed(kafka, topic, [flagged])


@pytest.mark.parametrize("text", ['"', "\\", "\n"], ids=["quote", "backslash", "control"])
def test_text_that_json_escapes_is_refused(text: str) -> None:
    """Other text is quoted."""
    assert encode(pa.table({"name": ["a vase"]}), 9) == [b'{"name":"a vase","sent_us":9}']
    with pytest.raises(SchemaError, match="column 'name' has text with a quote"):
        encode(pa.table({"name": ["a", f"b{text}"]}), 9)


def read(bootstrap_servers: str, topic: str) -> list[Message]:
    """Read a topic from its beginning to its current end, partition by partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    messages: list[Message] = []
    ends = end_offsets(bootstrap_servers, topic)
    consumer.assign([TopicPartition(topic, partition, 0) for partition in ends])
    deadline = time.monotonic() + 300
    while len(messages) < sum(ends.values()) and time.monotonic() < deadline:
        messages += consumer.consume(10_000, timeout=0.1)
    consumer.close()
    errors = [message.error() for message in messages if message.error()]
    assert errors == []
    return messages


def value(message: Message) -> bytes:
    content = message.value()
    assert isinstance(content, bytes)
    return content
