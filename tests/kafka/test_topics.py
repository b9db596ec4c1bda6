"""Questions about topics get the broker's own answers, and no broker gets a clear one."""

import time
import uuid

import pytest
from confluent_kafka import Producer

from flowcore.errors import BrokerError
from flowcore.kafka.broker import free_port
from flowcore.kafka.topics import (
    begin_offsets,
    end_offsets,
    ensure_topics,
    offsets_at,
    partition_counts,
)

pytestmark = pytest.mark.kafka


@pytest.fixture
def topic() -> str:
    """A name that no other test uses: the broker is shared."""
    return f"topic-{uuid.uuid4()}"


def test_topics_are_created_where_missing_and_left_alone_where_not(kafka: str, topic: str) -> None:
    """The second call asks for another number and changes nothing."""
    assert partition_counts(kafka, [topic]) == {topic: None}

    ensure_topics(kafka, {topic: 3})
    ensure_topics(kafka, {topic: 1, f"{topic}-2": 1})

    assert partition_counts(kafka, [topic, f"{topic}-2"]) == {topic: 3, f"{topic}-2": 1}


def test_topic_name_that_kafka_refuses_is_named(kafka: str) -> None:
    """The broker's reason comes with the topic and the partitions."""
    with pytest.raises(BrokerError, match=r"topic 'no spaces' with 2 partitions cannot be created"):
        ensure_topics(kafka, {"no spaces": 2})


def test_offsets_count_the_records_of_each_partition(kafka: str, topic: str) -> None:
    """Begin and end enclose what is there; a time finds the first record that is not older."""
    ensure_topics(kafka, {topic: 2})
    producer = Producer({"bootstrap.servers": kafka})
    for time_ms in (1000, 2000, 3000):
        producer.produce(topic, b"x", partition=1, timestamp=time_ms)
    assert producer.flush(10) == 0

    assert begin_offsets(kafka, topic) == {0: 0, 1: 0}
    assert end_offsets(kafka, topic) == {0: 0, 1: 3}
    assert offsets_at(kafka, topic, 1500) == {0: 0, 1: 1}
    assert offsets_at(kafka, topic, 3001) == {0: 0, 1: 3}


def test_offsets_of_a_missing_topic_are_refused(kafka: str, topic: str) -> None:
    """Asking for them does not create the topic either."""
    with pytest.raises(BrokerError, match=f"topic '{topic}' does not exist"):
        end_offsets(kafka, topic)

    assert partition_counts(kafka, [topic]) == {topic: None}


def test_topics_without_a_broker_fail_in_seconds() -> None:
    """The message names the address and the command that starts a broker."""
    started = time.monotonic()

    with pytest.raises(BrokerError, match=r"127.0.0.1:\d+' did not answer.*flowcore broker"):
        partition_counts(f"127.0.0.1:{free_port()}", ["bids"])

    assert time.monotonic() - started < 10
