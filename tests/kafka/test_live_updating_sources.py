"""A flow that writes rows which replace and delete each other, and another one that reads them as such."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Producer

from flowcore import Flow, KafkaTopic, monotonous
from flowcore.kafka.topics import ensure_topics
from tests.kafka.conftest import Live, Record

pytestmark = pytest.mark.kafka

BID = "bidder BIGINT, shop STRING, price BIGINT"
SHOP = "shop STRING NOT NULL, bids BIGINT NOT NULL, total BIGINT NOT NULL"


def of_shops(bids: KafkaTopic, shops: KafkaTopic) -> Flow:
    """The number and sum of the newest bids of each shop, which loses bidders to others."""
    flow = Flow("of_shops")
    newest = flow.read("bids", replace(bids, schema=BID)).latest(by="bidder", name="newest")
    counted = newest.aggregate(by="shop", bids="count(*)", total="sum(price)", name="counted")
    counted.write("shops", shops)
    return flow


def of_sizes(shops: KafkaTopic, orders: KafkaTopic, sizes: KafkaTopic, joined: KafkaTopic) -> Flow:
    """How many shops have how many bids; orders with the sum of their shop."""
    flow = Flow("of_sizes")
    read = flow.read("shops", replace(shops, schema=SHOP, updating_by="shop", watermark=monotonous()))
    read.aggregate(
        by="bids", shops="count(distinct shop)", total="sum(total)", most="max(total)", name="counted"
    ).write("sizes", sizes)
    ordered = flow.read("orders", replace(orders, schema="shop STRING, part INT", watermark=monotonous()))
    newest = ordered.join_latest(read, on="shop", how="left", load=None, name="newest")
    newest.select("shop", "part", "total").write("joined", joined)
    return flow


def table(records: list[Record]) -> dict[bytes | None, dict[str, Any]]:
    """What a table of a topic has in the end; each record id has one content."""
    content: dict[str, Any] = {}
    for record in records:
        assert content.setdefault(record.id, (record.key, record.value)) == (record.key, record.value)
    last = {record.key: record for record in records}
    return {key: record.json for key, record in last.items() if record.value is not None}


def test_a_flow_takes_back_what_another_one_replaces_and_deletes(live: Live) -> None:
    """Its sums are those of the last rows, through a batch that is repeated and a restart of both flows."""
    bids, shops, orders, sizes, joined = map(live.topic, ("bids", "shops", "orders", "sizes", "joined"))
    writer, reader = of_shops(bids, shops), of_sizes(shops, orders, sizes, joined)
    chance = random.Random(5)  # noqa: S311 - test data
    newest: dict[int, dict[str, Any]] = {}
    for part in range(2):
        sent = [
            {"bidder": chance.randrange(12), "shop": chance.choice("abcde"[part:]), "price": number}
            for number in range(30)
        ]
        if part:  # shop "a" loses the bidders that it has
            sent += [{**bid, "shop": "b"} for bid in newest.values() if bid["shop"] == "a"]
        newest |= {bid["bidder"]: bid for bid in sent}
        live.send(bids, *sent)
        if part:
            live.forget_last_batch("of_shops", "bids-batches")  # it is written again
        live.run(writer)
        live.send(orders, *({"shop": shop, "part": part} for shop in "abcde"))
        live.run(reader)

    prices = defaultdict(list)
    for bid in newest.values():
        prices[bid["shop"]].append(bid["price"])
    records = live.records(shops)
    assert b"a" in {record.key for record in records if record.value is None}
    repeated = Counter(record.id for record in records)
    assert max(repeated.values()) == 2
    last = table(records)
    assert {row["shop"]: row["total"] for row in last.values()} == {s: sum(p) for s, p in prices.items()}
    sums = defaultdict(list)
    for each in prices.values():
        sums[len(each)].append(sum(each))
    assert {
        row["bids"]: (row["shops"], row["total"], row["most"]) for row in table(live.records(sizes)).values()
    } == {size: (len(totals), sum(totals), max(totals)) for size, totals in sums.items()}
    found = {row["shop"]: row.get("total") for row in live.values(joined) if row["part"] == 1}
    assert found == {shop: sum(prices[shop]) if prices[shop] else None for shop in "abcde"}
    assert next(row["total"] for row in live.values(joined) if (row["shop"], row["part"]) == ("a", 0))
    assert live.records(f"{shops.name}.dead-letter") == []
    for operator in ("counted.changes", "newest"):
        kept = {key.key["shop"] for key in live.held_keys(reader, operator)}
        assert kept == {shop for shop, each in prices.items() if each}


KEYED = [
    (b"a", b"{"),
    (None, b"{}"),
    (b"\xff", None),
    (b"b", b'{"shop":"a","bids":1,"total":1}'),
    (b"c", b"{}"),
]


@pytest.mark.parametrize("way", ["aggregate", "map", "bounded"])
def test_a_bad_record_of_a_source_whose_rows_replace_others_keeps_its_key(live: Live, way: str) -> None:
    """Without it nobody knows which row was not replaced."""
    shops, out = live.topic("shops"), live.topic("out")
    ensure_topics(live.servers, {shops.name: 1})
    producer = Producer({"bootstrap.servers": live.servers, "log_level": 0})
    for key, value in KEYED:
        producer.produce(shops.name, value, key)
    assert producer.flush(300) == 0
    flow = Flow("f")
    bounds: dict[str, Any] = {"until": "latest"} if way == "bounded" else {}
    read = flow.read("shops", replace(shops, schema=SHOP, updating_by="shop", **bounds))
    if way == "aggregate":
        read.aggregate(by="bids", shops="count(*)").write("out", out)
    elif way == "map":
        mapped = read.map(
            dict, schema="shop STRING, bids BIGINT, total BIGINT, is_deleted BOOLEAN", passes="shop"
        )
        mapped.drop("is_deleted").write("out", out, key="shop")
    else:
        read.write("out", out, key="shop")

    live.run(flow)

    found = live.records(shops.dead_letter)
    assert [(record.key, record.value) for record in found] == KEYED
    assert {record.headers["flowcore-stage"] for record in found} == {b"read"}
