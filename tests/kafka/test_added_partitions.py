"""Partitions that are added to a source while a flow runs, and between two runs."""

from __future__ import annotations

from typing import Any

import pytest

from flowcore import Flow, KafkaTopic, Tumbling, monotonous
from flowcore.elements import Record, Watermark
from flowcore.kafka.topics import grow_topic
from flowcore.metrics.history import history_folder, last_progress
from flowcore.serializers import TaggedSerializer
from flowcore.serializers.formats import JsonFormat
from flowcore.spark.run.live_stage import LiveRun
from tests.kafka.conftest import Live
from tests.waiting import run_until

pytestmark = pytest.mark.kafka

SALE = "id BIGINT, at BIGINT"
TAGGED = TaggedSerializer(JsonFormat.of([("id", "BIGINT"), ("at", "BIGINT")]))


def _run_id(run: LiveRun) -> str:
    (query,) = run.running.values()
    return str(query.runId)


def _elements(live: Live, topic: KafkaTopic) -> list[Any]:
    return [TAGGED.decode(record.value or b"") for record in live.records(topic)]


def _records(live: Live, topic: KafkaTopic) -> set[int]:
    return {each.value["id"] for each in _elements(live, topic) if isinstance(each, Record)}


def _watermarks_ms(live: Live, topic: KafkaTopic) -> list[int]:
    return [each.timestamp_ms for each in _elements(live, topic) if isinstance(each, Watermark)]


@pytest.mark.thorough
def test_watermarks_wait_for_partitions_that_are_added_while_a_flow_runs(live: Live) -> None:
    """Nobody restarts the flow; without it the watermark would pass the records of the new partition."""
    sales = live.topic("sales", schema=SALE, event_time="at", watermark=monotonous())
    out = live.topic("out", elements="tagged", partitions=1)
    flow = Flow("f")
    flow.read("sales", sales).write("out", out)
    live.send(sales, {"id": 1, "at": 1_000})

    def follow(run: LiveRun) -> None:
        first = _run_id(run)
        run_until(run, lambda: _watermarks_ms(live, out) == [999])
        grow_topic(live.servers, sales.name, 2)
        run_until(run, lambda: _run_id(run) != first)
        live.send(sales, {"id": 2, "at": 9_000})
        run_until(run, lambda: {1, 2} <= _records(live, out))
        live.send(sales, {"id": 3, "at": 9_500}, {"id": 4, "at": 5_000}, partitions=2)
        run_until(run, lambda: max(_watermarks_ms(live, out)) > 999)

    live.run(flow, "micro-batch", follow)

    assert set(_watermarks_ms(live, out)) == {999, 4_999}
    last = last_progress(history_folder(live.settings.state_dir, "f"))
    assert last is not None
    assert [one.reason for one in last.switches] == [f"topic {sales.name!r} has 2 partitions now"]


@pytest.mark.thorough
def test_windows_wait_for_partitions_that_were_added_between_two_runs(live: Live) -> None:
    """The state of the windows knows one partition; the next run has two."""
    sales = live.topic("sales", schema=SALE, event_time="at", watermark=monotonous())
    out = live.topic("out")
    flow = Flow("f")
    counted = flow.read("sales", sales).window(Tumbling(1), by="id", name="counted").aggregate(n="count(*)")
    counted.write("out", out)
    live.send(sales, {"id": 1, "at": 100}, {"id": 1, "at": 5_000})
    live.run(flow)
    assert [value["n"] for value in live.values(out)] == [1]

    grow_topic(live.servers, sales.name, 2)
    live.send(sales, {"id": 1, "at": 9_000})
    live.run(flow)
    assert [value["n"] for value in live.values(out)] == [1]
    live.send(sales, {"id": 1, "at": 20_000}, {"id": 1, "at": 5_500}, {"id": 1, "at": 20_000}, partitions=2)
    live.send(sales, {"id": 1, "at": 20_000}, {"id": 1, "at": 20_000}, partitions=2)
    live.run(flow)

    assert [value["n"] for value in live.values(out)] == [1, 2, 1]
