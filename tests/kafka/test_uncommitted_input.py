"""A source that reads committed records starts and ends where its consumers wait for an open transaction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from confluent_kafka import Producer

from flowcore import Flow, KafkaTopic
from flowcore.kafka.topics import end_offsets, offsets_at
from flowcore.spark.topics.offsets import offset_range, start_offsets
from tests.kafka.conftest import Live

pytestmark = pytest.mark.kafka

START = datetime(2026, 1, 1, tzinfo=UTC)
START_MS = int(START.timestamp() * 1000)


@pytest.fixture
def opened(live: Live) -> Iterator[tuple[KafkaTopic, Producer]]:
    """A topic with two records before its start time, and two after it in an open transaction."""
    topic = live.topic("sales", schema="id BIGINT", start=START)
    live.send(topic, {"id": 0}, {"id": 1}, times_ms=[START_MS - 1_000] * 2)
    producer = Producer({"bootstrap.servers": live.servers, "transactional.id": topic.name, "log_level": 0})
    producer.init_transactions(60)
    producer.begin_transaction()
    for number in (2, 3):
        value = f'{{"id": {number}}}'
        producer.produce(topic.name, value, partition=0, timestamp=START_MS + 1_000)
    assert producer.flush(60) == 0
    yield topic, producer
    producer.abort_transaction(60)


def test_offsets_end_at_the_first_open_transaction(live: Live, opened: tuple[KafkaTopic, Producer]) -> None:
    """Two records are before it; a reader of all records also sees those in it."""
    topic, _ = opened
    assert end_offsets(live.servers, topic.name, committed=True) == {0: 2}
    assert offsets_at(live.servers, topic.name, START_MS, committed=True) == {0: 2}
    assert offsets_at(live.servers, topic.name, START_MS + 5_000, committed=True) == {0: 2}
    assert start_offsets(topic, live.servers) == {0: 2}
    assert offset_range(replace(topic, start="earliest", until="latest"), live.servers) == ({0: 0}, {0: 2})
    assert offset_range(replace(topic, until="latest"), live.servers) == ({0: 2}, {0: 2})

    assert end_offsets(live.servers, topic.name) == {0: 4}
    everything = replace(topic, isolation="read_uncommitted", until="latest")
    assert offset_range(everything, live.servers) == ({0: 2}, {0: 4})
    later = replace(everything, start=datetime.fromtimestamp(START_MS / 1000 + 5, UTC))
    assert start_offsets(later, live.servers) == {0: 4}


def test_start_after_an_open_transaction_waits_for_its_end(
    live: Live, opened: tuple[KafkaTopic, Producer]
) -> None:
    """Its records are in the output once it is committed."""
    topic, producer = opened
    topic = replace(topic, start=datetime.fromtimestamp(START_MS / 1000 + 5, UTC))
    out = live.topic("out")
    flow = Flow(out.name)
    flow.read("sales", topic).where("id >= 0").write("out", out)

    live.run(flow)
    assert live.records(out) == []

    producer.commit_transaction(60)
    producer.begin_transaction()
    live.run(flow)
    assert [each["id"] for each in live.values(out)] == [2, 3]
