"""A flow that reads what another one wrote at least once counts each record once."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Producer

from flowcore import Flow, KafkaTopic, Tumbling
from flowcore.kafka.topics import ensure_topics
from flowcore.planner import plan_flow
from flowcore.watermarks import monotonous
from tests.kafka.conftest import Live
from tests.kafka.driver import driver_settings, kill_driver, run_plan

pytestmark = pytest.mark.kafka

SALE = "id BIGINT, shop BIGINT, at BIGINT"


def _fail(row: dict[str, Any]) -> dict[str, Any]:
    if row["id"] == 3:
        raise ValueError(row)
    return row


def test_repeats_are_dropped_and_records_pass_as_they_are(live: Live) -> None:
    """Repeated batches of the writer, records without an id, failing functions, and windows downstream."""
    sales = live.topic("sales", schema=SALE)
    middle = live.topic("middle", schema=SALE)
    passed, counts = live.topic("passed"), live.topic("counts")
    writer = Flow("writer")
    writer.read("sales", sales).where("id >= 0").write("middle", middle)
    live.send(sales, *({"id": n, "shop": n % 2, "at": n} for n in range(10)), partitions=2)
    live.run(writer)
    live.forget_last_batch("writer", "sales")
    live.run(writer)
    written = live.records(middle)
    assert Counter(Counter(record.id for record in written).values()) == {2: 10}
    live.send(middle, *[{"id": -1, "shop": 7, "at": 11}] * 2)
    producer = Producer({"bootstrap.servers": live.servers})
    for forged in (b"\xff", b"\xff", b"e" * 100_000, b"e" * 100_000):
        producer.produce(
            middle.name, b'{"id": -1, "shop": 7, "at": 12}', partition=0, headers={"flowcore-id": forged}
        )
    assert producer.flush(30) == 0

    reader = Flow("reader")
    read = replace(middle, deduplicate=True, event_time="at", watermark=monotonous())
    once = reader.read("middle", read)
    once.map(_fail, schema=SALE).write("passed", passed)
    once.window(Tumbling(1), by="shop", name="counted").aggregate(n="count(*)").write("counts", counts)
    live.run(reader)
    live.run(writer)
    live.send(middle, *[{"id": -1, "shop": 7, "at": 5_000}] * 2, partitions=2)
    live.run(reader)

    found = [value["id"] for value in live.values(passed)]
    assert sorted(found) == sorted([*{*range(10)} - {3}, *[-1] * 7])
    places = {(record.partition, record.offset): record for record in written}
    for record in live.records(passed):
        _, topic_id, partition, offset, _ = record.id.split(":")
        assert topic_id == live.topic_id(middle)
        if record.json["id"] >= 0:
            assert places[int(partition), int(offset)].json == record.json
    assert [record.json["id"] for record in live.records(middle.dead_letter)] == [3]
    assert {value["shop"]: value["n"] for value in live.values(counts)} == {0: 5, 1: 5, 7: 5}

    bounded, table = Flow("bounded"), live.topic("table")
    bounded.read("middle", replace(middle, deduplicate=True, until="latest")).write("table", table)
    live.run(bounded)
    assert sorted(value["id"] for value in live.values(table)) == sorted([*range(10), *[-1] * 7])


def writer_of(sales: str, middle: str) -> Flow:
    """A flow that can run in real time, which writes at least once."""
    flow = Flow("writer")
    source = flow.read("sales", KafkaTopic(sales, schema=SALE))
    source.where("id >= 0").write("middle", KafkaTopic(middle, partitions=2))
    return flow


def reader_of(middle: str, counts: str) -> Flow:
    """A flow that counts sales and adds up their numbers by shop, and emits the sums after each record."""
    flow = Flow("reader")
    source = flow.read("middle", KafkaTopic(middle, schema=SALE, deduplicate=True))
    rows = source.select("shop", "1L as n", "id as total", name="rows")
    sums = rows.reduce(
        lambda kept, new: {"n": kept["n"] + new["n"], "total": kept["total"] + new["total"]},
        by="shop", schema="shop BIGINT, n BIGINT, total BIGINT", name="sums",
    )  # fmt: skip
    sums.write("counts", KafkaTopic(counts))
    return flow


def drive_writer(servers: str, state: str, sales: str, middle: str) -> None:
    """Write in real time until this process is killed, before its first commit."""
    settings = driver_settings(servers, state)
    run_plan(plan_flow(writer_of(sales, middle), "realtime", settings), settings)


def drive_reader(servers: str, state: str, middle: str, counts: str) -> None:
    """Count in small batches until this process is killed."""
    settings = driver_settings(servers, state)
    run_plan(plan_flow(reader_of(middle, counts), "micro-batch", settings), settings)


@pytest.mark.thorough
def test_sums_are_exact_when_writer_and_reader_are_killed(live: Live) -> None:
    """The writer repeats all that it wrote before kill -9, and the reader is killed in its batches."""
    names = [live.topic(name).name for name in ("sales", "middle", "counts")]
    sales, middle, counts = names
    live.send(KafkaTopic(sales), *({"id": n, "shop": n % 5, "at": n} for n in range(300)))
    ensure_topics(live.servers, {middle: 2, counts: 2})
    with ThreadPoolExecutor() as pool:
        killed = [
            pool.submit(
                kill_driver, drive_writer, live, sales, middle, when=lambda: len(live.records(middle)) >= 300
            ),
            pool.submit(
                kill_driver, drive_reader, live, middle, counts, when=lambda: len(live.records(counts)) >= 60
            ),
        ]
        for each in killed:
            each.result()

    live.run(writer_of(sales, middle))
    live.run(reader_of(middle, counts))

    ids = Counter(record.id for record in live.records(middle))
    assert len(ids) == 300
    assert sum(times > 1 for times in ids.values()) >= 200
    last = {record.json["shop"]: record.json for record in live.records(counts)}
    expected = {shop: (60, sum(range(shop, 300, 5))) for shop in range(5)}
    assert {shop: (each["n"], each["total"]) for shop, each in last.items()} == expected
