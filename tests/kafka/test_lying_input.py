"""No value stops a stream, and none moves event time where it should not be."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta
from operator import itemgetter
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from flowcore import Flow, KafkaTopic, KeyedProcessFunction, Tumbling, monotonous
from flowcore.errors import RunError
from flowcore.kafka.topics import end_offsets, ensure_topics
from flowcore.planner import plan_flow
from flowcore.spark.run.lost_records import skip_lost_records

pytestmark = pytest.mark.kafka

Live = Any


def test_event_time_far_ahead_is_a_dead_letter_before_it_moves_the_watermark(live: Live) -> None:
    """The record after it is not late; with another limit, the same record is good."""
    now_ms = time.time_ns() // 1_000_000 // 10_000 * 10_000 - 60_000
    bids = live.topic("bids", schema="id BIGINT, at BIGINT", event_time="at", watermark=monotonous())
    out = live.topic("out")
    flow = Flow("f")
    flow.read("bids", bids).window(Tumbling(10)).aggregate(n="count(*)").select("n").write("out", out)
    live.send(bids, {"id": 1, "at": now_ms}, {"id": 2, "at": now_ms + 2 * 86_400_000})
    live.run(flow)
    live.send(bids, {"id": 3, "at": now_ms + 1}, {"id": 4, "at": now_ms + 20_000})

    live.run(flow)

    assert live.values(out) == [{"n": 2}]
    (record,) = live.records(bids.dead_letter)
    assert record.json["id"] == 2
    reason = record.headers["flowcore-reason"].decode()
    assert reason.startswith("has the event time 20")
    assert "over 1 d ahead of the clock when it was written (watermark.max-ahead)" in reason


def test_time_that_python_cannot_hold_does_not_stop_a_function(live: Live) -> None:
    """Milliseconds where seconds are meant are the year 57861."""
    bids, out = live.topic("bids", schema="id BIGINT, at TIMESTAMP"), live.topic("out")
    flow = Flow("f")
    flow.read("bids", bids).map(dict, schema="id BIGINT, at TIMESTAMP").write("out", out)
    live.send(bids, {"id": 1, "at": 1_763_776_800_000}, {"id": 2, "at": "2026-01-01T00:00:00.000001Z"})

    live.run(flow)

    assert live.values(out) == [{"id": 2, "at": "2026-01-01T00:00:00.000001Z"}]
    (record,) = live.records(bids.dead_letter)
    assert b"field 'at' holds +57861-" in record.headers["flowcore-reason"]


class _Shown(KeyedProcessFunction):
    """Emits what it gets."""

    def process(self, record: Any, context: Any) -> Any:
        yield {"id": context.key, "at": record["at"]}


def test_computed_time_that_python_cannot_hold_does_not_stop_functions(live: Live) -> None:
    """A dead letter upstream of `map`, and null for a process function and as a key, as Spark casts."""
    bids = live.topic("bids", schema="id BIGINT, seconds BIGINT")
    out, shown, newest = (live.topic(name) for name in ("out", "shown", "newest"))
    flow = Flow("f")
    timed = flow.read("bids", bids).with_columns(at="timestamp_seconds(seconds)")
    timed.map(dict, schema="id BIGINT, at TIMESTAMP").write("out", out)
    timed.process(_Shown(), by="id", uses="at", schema="id BIGINT, at TIMESTAMP").write("shown", shown)
    timed.latest(by="at").select("id", "at").write("newest", newest)
    far = [{"id": number, "seconds": 1_763_776_800 * 1000**number} for number in (1, 3)]
    live.send(bids, *far, {"id": 2, "seconds": 1_763_776_800})

    live.run(flow)

    good = {"id": 2, "at": "2025-11-22T02:00:00.000000Z"}
    assert live.values(out) == live.values(newest) == [good]
    assert sorted(live.values(shown), key=itemgetter("id")) == [{"id": 1}, good, {"id": 3}]
    of_function, of_sink = [], []
    for record in live.records(bids.dead_letter):
        if record.headers["flowcore-stage"] == b"function":
            assert record.headers["flowcore-reason"] == b"column 'at' is outside the years 1 to 9999"
            of_function.append(record.json)
        else:
            of_sink.append(record.json["id"])
    assert of_function == far
    assert of_sink in ([1], [3])


def test_number_too_large_for_a_time_does_not_stop_an_aggregate(live: Live) -> None:
    """It is the latest time in the arguments of an aggregate, as in other expressions."""
    bids, out = live.topic("bids", schema="id BIGINT, at BIGINT"), live.topic("out")
    flow = Flow("f")
    last = "max(unix_millis(timestamp_millis(at)))"
    flow.read("bids", bids).aggregate(by="id", last=last).write("out", out)
    live.send(bids, {"id": 1, "at": 9_300_000_000_000_000}, {"id": 2, "at": 1_763_776_800_000})

    live.run(flow)

    found = {each["id"]: each["last"] for each in live.values(out)}
    assert found == {1: 9_223_372_036_854_775, 2: 1_763_776_800_000}


def test_texts_of_any_bytes_and_any_length_are_keys(live: Live) -> None:
    """A long key is a digest in ids, and of a map's repeated keys the last counts."""
    bids = live.topic("bids", schema="id BIGINT, hex STRING")
    sums, counts, shown = (live.topic(name) for name in ("sums", "counts", "shown"))
    flow = Flow("f")
    read = flow.read("bids", bids)
    coded = read.with_columns(
        code="CAST(unhex(hex) AS STRING)", last="map_concat(map('n', id), map('n', id + 1))['n']"
    )
    coded.aggregate(by="code", n="count(*)", total="sum(last)").write("sums", sums)
    coded.select("code", "1L AS n").reduce(
        lambda kept, new: {"n": kept["n"] + new["n"]}, by="code", schema="code STRING, n BIGINT"
    ).write("counts", counts)
    coded.map(dict, schema="id BIGINT, hex STRING, code STRING, last BIGINT").write("shown", shown)
    texts = ["61ff", "61fe", "c3a4", "61" * 300]
    live.send(bids, *({"id": number, "hex": text} for number, text in enumerate(texts)))

    live.run(flow)

    codes = ["a\ufffd", "a\ufffd", "ä", "a" * 300]
    wanted = [{"code": code, "last": number + 1} for number, code in enumerate(codes)]
    assert [{"code": each["code"], "last": each["last"]} for each in live.values(shown)] == wanted
    expected = {"a\ufffd": 2, "ä": 1, "a" * 300: 1}
    for records in (live.records(sums), live.records(counts)):
        assert {each.json["code"]: each.json["n"] for each in records} == expected
        assert len({each.id for each in records}) == len(records)
        assert max(len(each.id) for each in records) < 300
    assert live.records(bids.dead_letter) == []


def test_lost_latency_markers_do_not_stop_the_data(live: Live) -> None:
    """The companion topic's records have expired while the query was stopped."""
    bids, out = live.topic("bids", schema="id BIGINT"), live.topic("out")
    flow = Flow("f")
    flow.read("bids", bids).write("out", out)
    live.settings = replace(live.settings, latency_interval=timedelta(hours=1))
    live.send(bids, {"id": 1})
    live.run(flow)
    live.send(KafkaTopic(bids.events), b"later", b"latest")
    end = end_offsets(live.servers, bids.events)[0]
    admin = AdminClient({"bootstrap.servers": live.servers})
    lost = TopicPartition(bids.events, 0, end)
    admin.delete_records([lost])[lost].result(30)
    live.send(bids, {"id": 2})

    live.run(flow)

    assert [value["id"] for value in live.values(out)] == [1, 2]


def test_records_of_aborted_transactions_are_not_read(live: Live) -> None:
    """A source may ask for them."""
    bids, out, every = live.topic("bids", schema="id BIGINT"), live.topic("out"), live.topic("every")
    live.send(bids)
    producer = Producer({"bootstrap.servers": live.servers, "transactional.id": f"t-{live.suffix}"})
    producer.init_transactions(30)
    for number, end in enumerate((producer.commit_transaction, producer.abort_transaction) * 2):
        producer.begin_transaction()
        producer.produce(bids.name, b'{"id": %d}' % number)
        producer.flush(30)
        end(30)
    flow = Flow("f")
    flow.read("bids", bids).write("out", out)
    flow.read("all", replace(bids, isolation="read_uncommitted")).write("every", every)

    live.run(flow)

    assert sorted(value["id"] for value in live.values(out)) == [0, 2]
    assert sorted(value["id"] for value in live.values(every)) == [0, 1, 2, 3]


def test_event_time_is_compared_with_the_time_of_its_message(live: Live) -> None:
    """Queries that read a record at different times find the same of it, and so does one after days."""
    now_ms = time.time_ns() // 1_000_000
    bids = live.topic("bids", schema="id BIGINT, at BIGINT", event_time="at", watermark=monotonous())
    out = live.topic("out")
    flow = Flow("f")
    flow.read("bids", bids).write("out", out)
    written_ms = [now_ms - 2 * 86_400_000, now_ms - 3_600_000]
    live.send(bids, {"id": 1, "at": now_ms}, {"id": 2, "at": now_ms}, times_ms=written_ms)

    live.run(flow)

    assert [value["id"] for value in live.values(out)] == [2]
    assert [record.json["id"] for record in live.records(bids.dead_letter)] == [1]


def _produce_at(live: Live, topic: KafkaTopic, time_ms: int) -> str | None:
    """Send a record with a Kafka timestamp; return why the broker refuses it."""
    refusals: list[Any] = []
    producer = Producer({"bootstrap.servers": live.servers, "log_level": 0})
    producer.produce(
        topic.name, b"{}", timestamp=time_ms, on_delivery=lambda error, _: refusals.append(error)
    )
    assert producer.flush(300) == 0
    return refusals[0] and refusals[0].name()


def test_a_topic_that_flowcore_creates_takes_no_timestamp_that_spark_cannot_hold(live: Live) -> None:
    """It takes any other that its broker takes, of years before Christ too."""
    bids = live.topic("bids")
    ensure_topics(live.servers, {bids.name: 1})

    found = {time_ms: _produce_at(live, bids, time_ms) for time_ms in (-9 * 10**18, -(10**16), -(10**15), 1)}

    assert found == {
        -9 * 10**18: "INVALID_TIMESTAMP",
        -(10**16): "INVALID_TIMESTAMP",
        -(10**15): None,
        1: None,
    }


@pytest.mark.parametrize("bounded", [False, True])
def test_a_timestamp_that_spark_cannot_hold_is_named_with_the_way_out(live: Live, bounded: bool) -> None:
    """In a topic of others, whose broker takes it."""
    bids, out = live.topic("bids", schema="id BIGINT"), live.topic("out")
    client = AdminClient({"bootstrap.servers": live.servers})
    client.create_topics([NewTopic(bids.name, 1, 1)])[bids.name].result(60)
    assert _produce_at(live, bids, -9 * 10**18) is None
    live.send(bids, {"id": 2})
    flow = Flow("f")
    flow.read("bids", replace(bids, until="latest") if bounded else bids).write("out", out)

    message = (
        rf"{bids.name}\[0\]@0 has the Kafka timestamp -9000000000000000000, .*before offset 1 .*--skip-lost"
    )
    for _ in range(2):
        with pytest.raises(RunError, match=message):
            live.run(flow)
    lost = TopicPartition(bids.name, 0, 1)
    client.delete_records([lost])[lost].result(30)
    skip_lost_records(plan_flow(flow, "slice", live.settings), live.settings)
    live.run(flow)

    assert live.values(out) == [{"id": 2}]
