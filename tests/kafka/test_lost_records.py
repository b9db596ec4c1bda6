"""A start names unread records that a topic has removed, and continues after them if it is asked to."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from flowcore import Flow, KafkaTopic
from flowcore.errors import LostRecordsError, RunError, StateError
from flowcore.kafka.topics import end_offsets, grow_topic
from flowcore.planner import plan_flow
from flowcore.spark.checkpoint.offset_log import replace_file
from flowcore.spark.checkpoint.plan_file import plan_file_of
from flowcore.spark.run.live_stage import LiveRun
from flowcore.spark.run.lost_records import skip_lost_records, skipped_file
from tests.kafka.conftest import Live
from tests.waiting import run_until

pytestmark = pytest.mark.kafka


def test_lost_records_are_named_and_skipped_on_demand(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    """The list has exactly the offsets that were not read, and not those that were read and removed."""
    sales, out, flow = _copying(live)
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


def test_added_partition_that_has_lost_its_first_records_is_named_and_skipped(live: Live) -> None:
    """No log of the query has the partition, of which all records are unread."""
    sales, out, flow = _copying(live)
    live.send(sales, {"id": 0})
    live.run(flow)
    grow_topic(live.servers, sales.name, 2)
    live.send(sales, *({"id": n} for n in range(1, 11)), partitions=2)
    _remove(live, sales, {1: 2})

    with pytest.raises(LostRecordsError, match=rf"{sales.name}\[1\] from 0 to 1:"):
        live.run(flow)
    skip_lost_records(plan_flow(flow, "slice", live.settings), live.settings)
    live.run(flow)

    assert sorted(value["id"] for value in live.values(out)) == [0, 1, 3, *range(5, 11)]


def test_records_that_the_first_batch_has_not_read_are_named_and_skipped(live: Live) -> None:
    """A batch that no start can commit reads bad messages until these are removed from the topic."""
    sales, out, flow = _copying(live, on_error="fail")
    live.send(sales, b"bad", *({"id": n} for n in range(5)))
    for _ in range(2):
        with pytest.raises(RunError, match="bad"):
            live.run(flow)
    _remove(live, sales, {0: 1})

    with pytest.raises(LostRecordsError, match=rf"{sales.name}\[0\] from 0 to 0:"):
        live.run(flow)
    skip_lost_records(plan_flow(flow, "slice", live.settings), live.settings)
    live.run(flow)

    assert sorted(value["id"] for value in live.values(out)) == [*range(5)]


def test_topic_that_ends_before_what_was_read_is_named_and_read_on(live: Live) -> None:
    """As if its only broker had lost the newest records with its machine."""
    sales, out, flow = _copying(live)
    live.send(sales, *({"id": n} for n in range(5)))
    live.run(flow)
    (offsets,) = (live.settings.state_dir / "f" / "checkpoints" / "sales" / "offsets").glob("[0-9]*")
    replace_file(offsets, offsets.read_text().replace('"0":5', '"0":8'))

    with pytest.raises(LostRecordsError, match=rf"{sales.name}\[0\] from 5 to 7 \(read before\)"):
        live.run(flow)
    skip_lost_records(plan_flow(flow, "slice", live.settings), live.settings)
    live.send(sales, {"id": 5})
    live.run(flow)

    assert [value["id"] for value in live.values(out)] == [*range(6)]


def test_topic_of_another_cluster_is_refused_before_offsets_are_changed(live: Live) -> None:
    """With the right address again nothing is skipped."""
    sales, _, flow = _copying(live)
    live.send(sales, {"id": 0})
    live.run(flow)
    live.send(sales, *({"id": n} for n in range(1, 5)))
    _remove(live, sales, {0: 3})
    plan_file = plan_file_of(live.settings.state_dir / "f" / "checkpoints" / "sales")
    known = plan_file.read_text()
    plan_file.write_text(known.replace(live.topic_id(sales), "AAAAAAAAAAAAAAAAAAAAAA"))

    with pytest.raises(StateError, match="created again"):
        skip_lost_records(plan_flow(flow, "slice", live.settings), live.settings)

    plan_file.write_text(known)
    with pytest.raises(LostRecordsError, match=rf"{sales.name}\[0\] from 1 to 2:"):
        live.run(flow)


def test_query_whose_latency_is_tracked_later_skips_the_markers_before(live: Live) -> None:
    """Another flow has sent markers for hours, so that the companion topic begins above 0."""
    sales, out, flow = _copying(live)
    live.send(sales, {"id": 0})
    live.run(flow)
    events = KafkaTopic(sales.events)
    live.send(events, *(b"expired" for _ in range(3)))
    _remove(live, events, {0: 2})
    live.send(sales, {"id": 1})

    live.settings = replace(live.settings, latency_interval=timedelta(hours=1))
    live.run(flow)

    assert [value["id"] for value in live.values(out)] == [0, 1]
    assert [record.value for record in live.records(sales.dead_letter)] == [b"expired"]


def test_markers_that_expire_while_the_query_runs_are_skipped(live: Live) -> None:
    """As in a catch-up that takes longer than markers are kept. Lost records still end the run."""
    sales, out, flow = _copying(live)
    events = KafkaTopic(sales.events)
    live.send(sales, {"id": 0})
    live.settings = replace(
        live.settings, latency_interval=timedelta(hours=1), trigger_interval=timedelta(seconds=15)
    )

    def lose(lost: KafkaTopic, number: int) -> Callable[[LiveRun], None]:
        def follow(run: LiveRun) -> None:
            live.send(sales, {"id": number})
            run_until(run, lambda: {"id": number} in live.values(out))
            kept = end_offsets(live.servers, lost.name)[0] + 2
            live.send(lost, *(b"expired" for _ in range(3)))
            _remove(live, lost, {0: kept})
            live.send(sales, {"id": number + 1})
            run_until(run, lambda: {"id": number + 1} in live.values(out))
            run_until(run, lambda: live.records(sales.dead_letter))

        return follow

    live.run(flow, "micro-batch", lose(events, 1))
    assert {value["id"] for value in live.values(out)} == {0, 1, 2}  # the batch that failed may be repeated
    assert [record.value for record in live.records(sales.dead_letter)] == [b"expired"]

    with pytest.raises(RunError, match=r"query 'sales.*' of flow 'f' failed: Some data may have been lost"):
        live.run(flow, "micro-batch", lose(sales, 3))


def _copying(live: Live, **settings: Any) -> tuple[KafkaTopic, KafkaTopic, Flow]:
    """A flow that copies a topic, after the topic and its copy."""
    sales, out = live.topic("sales", schema="id BIGINT", **settings), live.topic("out")
    flow = Flow("f")
    flow.read("sales", sales).write("out", out)
    return sales, out, flow


def _remove(live: Live, topic: KafkaTopic, before: dict[int, int]) -> None:
    """Remove the records before an offset, by partition."""
    client = AdminClient({"bootstrap.servers": live.servers})
    places = [TopicPartition(topic.name, partition, offset) for partition, offset in before.items()]
    for future in client.delete_records(places).values():
        future.result(20)
