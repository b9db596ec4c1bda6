"""A good record that its sink's topic would refuse is a dead letter, unless on_error is 'fail'."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flowcore import Flow, KafkaTopic, Tumbling, monotonous
from flowcore.errors import RunError
from flowcore.kafka.topics import TopicLimits, ensure_topics, topic_limits

pytestmark = pytest.mark.kafka

Live = Any
BID = "id BIGINT NOT NULL, name STRING"
LIMIT = 4_000


def _sink(live: Live, **configs: str) -> KafkaTopic:
    sink: KafkaTopic = live.topic("out")
    ensure_topics(live.servers, {sink.name: 1}, {name.replace("_", "."): to for name, to in configs.items()})
    return sink


def _lengthened(source: KafkaTopic, sink: KafkaTopic) -> Flow:
    """A flow that makes each name a thousand times as long."""
    flow = Flow("f")
    flow.read("bids", source).select("id", "repeat(name, 1000) as name").write("out", sink)
    return flow


def test_limits_are_read_from_the_topics(live: Live) -> None:
    """If a topic does not set a limit, the broker's default applies."""
    small, compacted = _sink(live, max_message_bytes="2000"), live.topic("latest")
    ensure_topics(live.servers, {compacted.name: 1}, {"cleanup.policy": "compact"})

    found = topic_limits(live.servers, [small.name, compacted.name])

    assert found == {
        small.name: TopicLimits(2_000, needs_key=False),
        compacted.name: TopicLimits(1_048_588, needs_key=True),
    }


def test_oversized_record_is_a_dead_letter_and_the_others_are_written(live: Live) -> None:
    """The dead letter has the unwritten value, the record's coordinates and the reason."""
    bids, out = live.topic("bids", schema=BID), _sink(live, max_message_bytes=str(LIMIT))
    live.send(bids, {"id": 1, "name": "a"}, {"id": 2, "name": "too long"}, b"bad", {"id": 3, "name": "b"})

    live.run(_lengthened(bids, out))

    assert [value["id"] for value in live.values(out)] == [1, 3]
    bad, large = sorted(
        live.records(bids.dead_letter), key=lambda record: record.value == b"bad", reverse=True
    )
    assert bad.headers["flowcore-stage"] == b"read"
    assert large.json == {"id": 2, "name": "too long" * 1_000}
    reason = large.headers.pop("flowcore-reason").decode()
    assert large.headers == {
        "flowcore-id": f"f/out:{live.topic_id(bids)}:0:1:0".encode(),
        "flowcore-topic": bids.name.encode(),
        "flowcore-partition": b"0",
        "flowcore-offset": b"1",
        "flowcore-operator": b"out",
        "flowcore-stage": b"sink",
    }
    assert f"{len(large.value or b'')} bytes" in reason
    assert str(LIMIT) in reason


def test_record_just_below_the_limit_is_written(live: Live) -> None:
    """What the topic takes is written: at most 128 bytes of the limit are lost, for what Kafka adds."""
    bids, out = live.topic("bids", schema=BID), _sink(live, max_message_bytes=str(LIMIT))
    ensure_topics(live.servers, {bids.name: 1})
    record_id = f"f/out:{live.topic_id(bids)}:0:0:0"
    most = LIMIT - 128 - (10 + len("flowcore-id") + len(record_id)) - len(b'{"id":1,"name":""}')
    flow = Flow("f")
    flow.read("bids", bids).write("out", out)
    live.send(bids, *({"id": 1, "name": "x" * size} for size in (most, most + 1)))

    live.run(flow)

    assert [len(value["name"]) for value in live.values(out)] == [most]
    assert [len(record.json["name"]) for record in live.records(bids.dead_letter)] == [most + 1]


def test_headers_count_for_the_size_of_a_message(live: Live) -> None:
    """An id with long names in it makes a message larger than its topic takes."""
    bids, out = live.topic("bids", schema=BID), _sink(live, max_message_bytes=str(LIMIT))
    flow = Flow("f")
    flow.read("bids", bids).write("w" * 1_000, out)
    live.send(bids, *({"id": size, "name": "x" * size} for size in (10, LIMIT - 1_000)))

    live.run(flow)

    assert [value["id"] for value in live.values(out)] == [10]
    assert [record.json["id"] for record in live.records(bids.dead_letter)] == [LIMIT - 1_000]


def test_dead_letter_that_its_topic_does_not_take_is_cut(live: Live) -> None:
    """Its topic was there before the flow. Cut are what could not be read and what could not be written."""
    bids, out = live.topic("bids", schema=BID), _sink(live, max_message_bytes=str(LIMIT))
    ensure_topics(live.servers, {bids.dead_letter: 1}, {"max.message.bytes": "8000"})
    live.send(bids, b"short", b"long" * 2_000, {"id": 2, "name": "too long"})

    live.run(_lengthened(bids, out))

    values = {record.value for record in live.records(bids.dead_letter)}
    assert values == {b"short", b"long" * 1_000, (b'{"id":2,"name":"' + b"too long" * 500)[:4_000]}


@pytest.mark.parametrize("mode", ["slice", "table"])
def test_small_records_do_not_exceed_the_limit_together(live: Live, mode: str) -> None:
    """The client does not put small records into one batch that the broker would refuse."""
    bids, out = live.topic("bids", schema=BID), _sink(live, max_message_bytes=str(LIMIT))
    if mode == "table":
        bids = replace(bids, until="latest")
    flow = Flow("f")
    flow.read("bids", bids).write("out", out)
    live.send(bids, *({"id": number, "name": "x" * (LIMIT // 4)} for number in range(20)))

    live.run(flow)

    assert sorted(value["id"] for value in live.values(out)) == list(range(20))


def test_oversized_aggregate_is_a_dead_letter_with_its_key(live: Live) -> None:
    """A result of several records has no coordinates, so its dead letter has its key."""
    bids, out = live.topic("bids", schema=BID), _sink(live, max_message_bytes=str(LIMIT))
    flow = Flow("f")
    flow.read("bids", bids).aggregate(by="id", longest="repeat(max(name), 1000)").write("out", out)
    live.send(bids, {"id": 1, "name": "a"}, {"id": 2, "name": "too long"})

    live.run(flow)

    assert [value["id"] for value in live.values(out)] == [1]
    (record,) = live.records(bids.dead_letter)
    assert (record.key, record.json["id"]) == (b"2", 2)
    assert record.headers["flowcore-stage"] == b"sink"
    assert record.headers["flowcore-offset"] == b""


def test_oversized_window_result_reaches_the_dead_letters_of_its_source(live: Live) -> None:
    """A result of several records has no coordinates; its dead letter has its id and the source's topic."""
    bids = live.topic("bids", schema=f"{BID}, at BIGINT", event_time="at", watermark=monotonous())
    out = _sink(live, max_message_bytes=str(LIMIT))
    flow = Flow("f")
    counted = flow.read("bids", bids).window(Tumbling(10), by="name").aggregate(n="count(*)")
    counted.select("repeat(name, n * 1000) as name").write("out", out)
    live.send(
        bids, *({"id": 1, "name": name, "at": at} for name, at in (("a", 1), ("too long", 2), ("c", 10_000)))
    )

    live.run(flow)

    assert [len(value["name"]) for value in live.values(out)] == [1_000]
    (record,) = live.records(bids.dead_letter)
    assert record.json == {"name": "too long" * 1_000}
    assert record.headers["flowcore-stage"] == b"sink"
    assert (record.headers["flowcore-topic"], record.headers["flowcore-offset"]) == (b"", b"")
    assert record.id.startswith(f"f/out:{live.topic_id(bids)}:")
    assert ':{"name":"too long"}:0:10000:1' in record.id


def test_record_without_a_required_key_is_a_dead_letter(live: Live) -> None:
    """A compacted topic refuses records without a key."""
    bids, out = live.topic("bids", schema=BID), _sink(live, cleanup_policy="compact")
    flow = Flow("f")
    flow.read("bids", bids).write("out", out, key="name")
    live.send(bids, {"id": 1, "name": "a"}, {"id": 2}, {"id": 3, "name": "b"})

    live.run(flow)

    assert [value["id"] for value in live.values(out)] == [1, 3]
    (record,) = live.records(bids.dead_letter)
    assert record.json == {"id": 2}
    assert b"key" in record.headers["flowcore-reason"]


def test_oversized_record_stops_the_query_with_on_error_fail(live: Live) -> None:
    """The one-line error has the record id, the message's size and the topic's limit."""
    bids = live.topic("bids", schema=BID, on_error="fail")
    out = _sink(live, max_message_bytes=str(LIMIT))
    live.send(bids, {"id": 1, "name": "a"}, {"id": 2, "name": "too long"})

    with pytest.raises(
        RunError, match=rf"{out.name} becomes a message of \d+ bytes.*f/out:{live.topic_id(bids)}:0:1:0"
    ):
        live.run(_lengthened(bids, out))
