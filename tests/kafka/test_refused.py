"""A good record that its sink's topic would refuse: it stops no stream, unless it shall."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flowcore import Flow, KafkaTopic
from flowcore.errors import RunError
from flowcore.kafka.topics import TopicLimits, ensure_topics, topic_limits

pytestmark = pytest.mark.kafka

Live = Any
BID = "id BIGINT NOT NULL, name STRING"
LIMIT = 2_000


def _sink(live: Live, **configs: str) -> KafkaTopic:
    sink: KafkaTopic = live.topic("out")
    ensure_topics(live.servers, {sink.name: 1}, {name.replace("_", "."): to for name, to in configs.items()})
    return sink


def _grown(source: KafkaTopic, sink: KafkaTopic) -> Flow:
    """A name grows by a thousand."""
    flow = Flow("f")
    flow.read("bids", source).select("id", "repeat(name, 1000) as name").write("out", sink)
    return flow


def test_limits_are_those_of_the_topics(live: Live) -> None:
    """The broker's defaults where nothing else is set."""
    small, compacted = _sink(live, max_message_bytes="2000"), live.topic("latest")
    ensure_topics(live.servers, {compacted.name: 1}, {"cleanup.policy": "compact"})

    found = topic_limits(live.servers, [small.name, compacted.name])

    assert found == {
        small.name: TopicLimits(2_000, needs_key=False),
        compacted.name: TopicLimits(1_048_588, needs_key=True),
    }


def test_record_that_grew_too_large_is_a_dead_letter_and_the_others_go_on(live: Live) -> None:
    """With what would have been written, where it came from, and why it could not be."""
    bids, out = live.topic("bids", schema=BID), _sink(live, max_message_bytes=str(LIMIT))
    live.send(bids, {"id": 1, "name": "a"}, {"id": 2, "name": "too long"}, b"bad", {"id": 3, "name": "b"})

    live.run(_grown(bids, out))

    assert [value["id"] for value in live.values(out)] == [1, 3]
    bad, large = sorted(
        live.records(bids.dead_letter), key=lambda letter: letter.value == b"bad", reverse=True
    )
    assert bad.headers["flowcore-stage"] == b"read"
    assert large.json == {"id": 2, "name": "too long" * 1_000}
    reason = large.headers.pop("flowcore-reason").decode()
    assert large.headers == {
        "flowcore-topic": bids.name.encode(),
        "flowcore-partition": b"0",
        "flowcore-offset": b"1",
        "flowcore-operator": b"out",
        "flowcore-stage": b"sink",
    }
    assert f"{len(large.value or b'')} bytes" in reason
    assert str(LIMIT) in reason


def test_record_nearly_as_large_as_its_topic_takes_is_written(live: Live) -> None:
    """Nothing is held back that has room, and what is let through the broker takes."""
    bids, out = live.topic("bids", schema=BID), _sink(live, max_message_bytes=str(LIMIT))
    empty = len(b'{"id":1,"name":""}')
    flow = Flow("f")
    flow.read("bids", bids).write("out", out)
    live.send(bids, *({"id": 1, "name": "x" * (LIMIT - 512 - empty + more)} for more in (0, 1)))

    live.run(flow)

    assert [len(record.value or b"") for record in live.records(out)] == [LIMIT - 512]
    assert len(live.records(bids.dead_letter)) == 1


@pytest.mark.parametrize("mode", ["slice", "table"])
def test_records_that_are_small_alone_are_not_too_large_together(live: Live, mode: str) -> None:
    """A client that sent them in one batch would have it refused, again and again."""
    bids, out = live.topic("bids", schema=BID), _sink(live, max_message_bytes=str(LIMIT))
    if mode == "table":
        bids = replace(bids, until="latest")
    flow = Flow("f")
    flow.read("bids", bids).write("out", out)
    live.send(bids, *({"id": number, "name": "x" * (LIMIT // 4)} for number in range(20)))

    live.run(flow)

    assert sorted(value["id"] for value in live.values(out)) == list(range(20))


def test_aggregate_that_grew_too_large_is_a_dead_letter_with_its_key(live: Live) -> None:
    """It was made of no single record, so its key tells which it is."""
    bids, out = live.topic("bids", schema=BID), _sink(live, max_message_bytes=str(LIMIT))
    flow = Flow("f")
    flow.read("bids", bids).aggregate(by="id", longest="repeat(max(name), 1000)").write("out", out)
    live.send(bids, {"id": 1, "name": "a"}, {"id": 2, "name": "too long"})

    live.run(flow)

    assert [value["id"] for value in live.values(out)] == [1]
    (letter,) = live.records(bids.dead_letter)
    assert (letter.key, letter.json["id"]) == (b"2", 2)
    assert letter.headers["flowcore-stage"] == b"sink"
    assert letter.headers["flowcore-offset"] == b""


def test_record_without_the_key_that_its_topic_needs_is_a_dead_letter(live: Live) -> None:
    """A compacted topic refuses it, as the key tells what it replaces."""
    bids, out = live.topic("bids", schema=BID), _sink(live, cleanup_policy="compact")
    flow = Flow("f")
    flow.read("bids", bids).write("out", out, key="name")
    live.send(bids, {"id": 1, "name": "a"}, {"id": 2}, {"id": 3, "name": "b"})

    live.run(flow)

    assert [value["id"] for value in live.values(out)] == [1, 3]
    (letter,) = live.records(bids.dead_letter)
    assert letter.json == {"id": 2}
    assert b"key" in letter.headers["flowcore-reason"]


def test_record_that_grew_too_large_stops_the_query_where_it_shall(live: Live) -> None:
    """One line says which record it was, how large it is, and what the topic takes."""
    bids = live.topic("bids", schema=BID, on_error="fail")
    out = _sink(live, max_message_bytes=str(LIMIT))
    live.send(bids, {"id": 1, "name": "a"}, {"id": 2, "name": "too long"})

    with pytest.raises(RunError, match=rf"{out.name} becomes a message of \d+ bytes.*{bids.name}:0:1:0"):
        live.run(_grown(bids, out))
