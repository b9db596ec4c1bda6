"""Watermarks are delivered to a topic that does not exist at first."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Consumer, TopicPartition

from flowcore import KafkaTopic
from flowcore.elements import Watermark, WatermarkStatus
from flowcore.kafka import elements
from flowcore.kafka.elements import ElementWriter
from flowcore.kafka.topics import ensure_topics, grow_topic
from flowcore.serializers import TaggedSerializer
from flowcore.serializers.formats import RawFormat

pytestmark = pytest.mark.kafka

SERIALIZER: TaggedSerializer[bytes] = TaggedSerializer(RawFormat())


def test_undelivered_status_is_sent_again(kafka: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the partition exists, it receives the latest watermark and status without another call."""
    monkeypatch.setattr(elements, "_REFRESH_S", 1.0)
    ensure_topics(kafka, {"late-partition": 1})
    topic = KafkaTopic("late-partition", elements="tagged")
    with ElementWriter(kafka, {topic: 2}, "flow/query") as writer:
        writer.write([Watermark(1_000), WatermarkStatus(idle=False), Watermark(2_000)])
        grow_topic(kafka, topic.name, 2)
        end = time.monotonic() + 300
        while not (found := _elements(kafka, topic.name, 1)):
            assert time.monotonic() < end, "partition 1 has no watermark"
            writer.write([])
            time.sleep(0.1)

    assert set(found) <= {Watermark(2_000), WatermarkStatus(idle=False)}


def test_added_partition_gets_the_latest_elements(kafka: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its readers would wait for a watermark of the channel for ever; later elements follow."""
    monkeypatch.setattr(elements, "_REFRESH_S", 0.0)
    ensure_topics(kafka, {"grown": 1})
    topic = KafkaTopic("grown", elements="tagged")
    with ElementWriter(kafka, {topic: 1}, "flow/query") as writer:
        writer.write([Watermark(1_000), WatermarkStatus(idle=False), Watermark(2_000)])
        grow_topic(kafka, topic.name, 2)
        writer.write([])
        writer.write([Watermark(3_000)])

    assert _elements(kafka, topic.name, 1) == [
        WatermarkStatus(idle=False), Watermark(2_000), Watermark(3_000),
    ]  # fmt: skip


def _elements(servers: str, topic: str, partition: int) -> list[object]:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "test", "log_level": 0})
    try:
        place = TopicPartition(topic, partition, 0)
        consumer.assign([place])
        messages = consumer.consume(10, timeout=1.0)
        return [SERIALIZER.decode(each.value() or b"") for each in messages if each.error() is None]
    finally:
        consumer.close()
