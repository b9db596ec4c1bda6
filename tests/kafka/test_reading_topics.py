"""The readers of benchmarks and demos yield each committed message of a topic once."""

from __future__ import annotations

import secrets

from confluent_kafka import Producer

from flowcore.kafka.topics import ensure_topics
from pipelines.auctions.readers import read_messages


def test_committed_messages_are_read_without_waiting_for_markers(kafka: str) -> None:
    """Markers of transactions have offsets and are no messages; what is aborted is not read.

    A reader that waits for a message at each offset fails after ten seconds.
    """
    topic = f"read-{secrets.token_hex(4)}"
    ensure_topics(kafka, {topic: 2})
    producer = Producer({"bootstrap.servers": kafka, "transactional.id": topic, "log_level": 0})
    producer.init_transactions()
    for number, commits in enumerate((True, False, True, False)):
        producer.begin_transaction()
        producer.produce(topic, str(number).encode(), partition=0)
        assert producer.flush(60) == 0
        (producer.commit_transaction if commits else producer.abort_transaction)(60)

    found = list(read_messages(kafka, topic))

    assert [message.value() for messages in found for message in messages] == [b"0", b"2"]
    assert all(found)  # no part is empty


def test_empty_topic_has_no_messages(kafka: str) -> None:
    """Also where it has partitions that are read from their end."""
    topic = f"read-{secrets.token_hex(4)}"
    ensure_topics(kafka, {topic: 2})

    assert list(read_messages(kafka, topic)) == []
