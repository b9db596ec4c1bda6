"""A start names unread records that a topic has removed, and continues after them if it is asked to."""

from __future__ import annotations

import json
import logging

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from flowcore import Flow, KafkaTopic
from flowcore.errors import LostRecordsError
from flowcore.planner import plan_flow
from flowcore.spark.run.lost_records import skip_lost_records, skipped_file
from tests.kafka.conftest import Live

pytestmark = pytest.mark.kafka


def test_lost_records_are_named_and_skipped_on_demand(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    """The list has exactly the offsets that were not read, and not those that were read and removed."""
    sales, out = live.topic("sales", schema="id BIGINT"), live.topic("out")
    flow = Flow("f")
    flow.read("sales", sales).write("out", out)
    live.send(sales, *({"id": n} for n in range(20)), partitions=2)
    live.run(flow)
    live.send(sales, *({"id": n} for n in range(20, 40)), partitions=2)
    _remove(live, sales, {0: 13, 1: 10})

    with pytest.raises(LostRecordsError, match=rf"{sales.name}\[0\] from 10 to 12.*--skip-lost"):
        live.run(flow)
    with caplog.at_level(logging.WARNING):
        skip_lost_records(plan_flow(flow, "slice", live.settings), live.settings)
    live.run(flow)

    lost = {20, 22, 24}
    assert sorted(value["id"] for value in live.values(out)) == [n for n in range(40) if n not in lost]
    lines = [json.loads(line) for line in skipped_file("f", live.settings).read_text().splitlines()]
    expected = {"query": "sales", "topic": sales.name, "partition": 0, "first": 10, "end": 13}
    assert [{name: each for name, each in line.items() if name != "time"} for line in lines] == [expected]
    assert f"query 'sales' skips lost records: {sales.name}[0] from 10 to 12" in caplog.text


def _remove(live: Live, topic: KafkaTopic, before: dict[int, int]) -> None:
    """Remove the records before an offset, by partition."""
    client = AdminClient({"bootstrap.servers": live.servers})
    places = [TopicPartition(topic.name, partition, offset) for partition, offset in before.items()]
    for future in client.delete_records(places).values():
        future.result(20)
