"""Aggregates over rows that replace each other in a live query, through a kill and a change of modes."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from datetime import timedelta
from fractions import Fraction
from typing import Any

import pytest

from flowcore import Flow, KafkaTopic, Tumbling
from flowcore.spark.run.live_stage import LiveRun
from flowcore.watermarks import bounded_out_of_orderness
from tests.kafka.conftest import Live, Record
from tests.kafka.driver import kill_driver, run_slice

pytestmark = pytest.mark.kafka

SCHEMA = "auction BIGINT, shop STRING, price DOUBLE, at BIGINT"
SECONDS = 40


def changing(*topics: KafkaTopic) -> Flow:
    """Statistics of the newest bids, three aggregates in a row, and one of windows with late records."""
    bids, shops, best, counted = topics
    flow = Flow("changing")
    watermark = bounded_out_of_orderness(timedelta(seconds=1))
    read = flow.read("bids", replace(bids, schema=SCHEMA, event_time="at", watermark=watermark))
    newest = read.latest(by="auction", name="newest")
    newest.aggregate(
        by="shop", n="count(*)", total="sum(price)", mean="avg(price)", least="min(price)",
        most="max(price * 2)", prices="count(distinct price)", name="of_shops",
    ).write("shops", shops)  # fmt: skip
    highest = read.aggregate(by=("auction", "shop"), price="max(price)", name="highest")
    sums = highest.aggregate(by="shop", total="sum(price)", name="sums")
    sums.aggregate(shops="count(*)", most="max(total)", name="of_sums").write("best", best)
    windows = read.window(Tumbling(10), by="shop", allowed_lateness=2 * SECONDS, name="windows")
    each = windows.aggregate(n="count(*)").select("shop", "n", "window_start as since", "window_end")
    per_shop = each.aggregate(by="shop", n="sum(n)", windows="count(since)", name="of_windows")
    per_shop.write("counted", counted)
    return flow


def drive(servers: str, state: str, *topics: str) -> None:
    """Run a slice of small batches until this process is killed."""
    run_slice(changing, servers, state, topics, batch_records=60)


def random_bids(count: int) -> list[dict[str, Any]]:
    """Bids out of order, at different times; the shop of an auction changes, and "e" loses all auctions."""
    chance = random.Random(17)  # noqa: S311 - test data
    times = chance.sample(range(10, SECONDS * 1_000), count)
    bids: list[dict[str, Any]] = [
        {
            "auction": chance.randrange(30),
            "shop": chance.choice("abcd"),
            "price": chance.randrange(90) / 10,
            "at": at,
        }
        for at in times
    ]
    bids[0]["price"] = None
    moved = range(4)
    first = [{"auction": 100 + number, "shop": "e", "price": 1.5, "at": number} for number in moved]
    last = [{**bid, "shop": "a", "at": SECONDS * 1_000 + number} for number, bid in enumerate(first)]
    return [*first, *bids, *last]


def last_values(records: list[Record]) -> dict[bytes | None, dict[str, Any] | None]:
    """What a table of the topic has in the end; each id has one content."""
    content: dict[str, Any] = {}
    for record in records:
        assert content.setdefault(record.id, (record.key, record.value)) == (record.key, record.value)
    return {record.key: record.json for record in records}


def statistics(prices: list[float | None]) -> dict[str, Any]:
    known = [price for price in prices if price is not None]
    total = sum(map(Fraction, known))
    return {
        "n": len(prices), "total": float(total), "mean": float(total / len(known)), "least": min(known),
        "most": 2 * max(known), "prices": len(set(known)),
    }  # fmt: skip


@pytest.mark.thorough
def test_results_are_those_of_the_last_rows_after_a_kill_of_the_driver(live: Live) -> None:
    """A table of each topic has what an aggregate of the final rows gives; a shop without bids is deleted."""
    topics = [live.topic(name) for name in ("bids", "shops", "best", "counted")]
    bids = random_bids(240)
    live.send(topics[0], *bids, partitions=2)
    kill_driver(drive, live, *(topic.name for topic in topics), batches=2, after_s=0.3)
    end = {"auction": 99, "shop": "z", "price": 0.5, "at": 9 * SECONDS * 1_000}
    live.send(topics[0], end, end, partitions=2)
    live.run(changing(*topics))

    newest = {bid["auction"]: bid for bid in sorted([*bids, end], key=lambda bid: bid["at"])}
    shops = {shop: [b["price"] for b in newest.values() if b["shop"] == shop] for shop in "abcdez"}
    assert shops.pop("e") == []
    found = last_values(live.records(topics[1]))
    assert found.pop(b"e") is None
    assert {row.pop("shop"): row for row in found.values() if row} == {
        shop: statistics(prices) for shop, prices in shops.items()
    }
    highest: dict[tuple[str, int], Fraction] = {}
    for bid in [*bids, end]:
        key, price = (bid["shop"], bid["auction"]), Fraction(bid["price"] or 0)
        highest[key] = max(highest.get(key, price), price)
    sums = [float(sum(p for key, p in highest.items() if key[0] == shop)) for shop in "abcdez"]
    (best,) = last_values(live.records(topics[2])).values()
    assert best == {"shops": 6, "most": max(sums)}
    counted = last_values(live.records(topics[3])).values()
    per_shop = {shop: [bid["at"] // 10_000 for bid in bids if bid["shop"] == shop] for shop in "abcde"}
    assert {row["shop"]: (row["n"], row["windows"]) for row in counted if row} == {
        shop: (len(places), len(set(places))) for shop, places in per_shop.items()
    }
    assert len(live.records(topics[3])) > len(counted)  # results of windows were replaced

    kept = {key.key["shop"]: key.states["rows"] for key in live.held_keys(changing(*topics), "of_shops")}
    assert kept == {shop: len(prices) for shop, prices in shops.items()}
    rows = live.held_keys(changing(*topics), "of_shops.changes")
    assert {key.key["auction"] for key in rows} == newest.keys()


@pytest.mark.thorough
def test_rows_that_are_not_replaced_are_taken_back_after_the_time_to_live(live: Live) -> None:
    """Their group is deleted without any input; a change of modes loses nothing."""
    bids, shops = live.topic("bids"), live.topic("shops")
    flow = Flow("expiring")
    newest = flow.read("bids", replace(bids, schema=SCHEMA)).latest(by="auction", name="newest")
    newest.aggregate(by="shop", n="count(*)", ttl=timedelta(seconds=4), name="of_shops").write("shops", shops)
    live.send(bids, *({"auction": number, "shop": "ab"[number % 2]} for number in range(3)))
    live.run(flow)
    assert {row["shop"]: row["n"] for row in live.values(shops)} == {"a": 2, "b": 1}

    def wait_until_all_are_gone(run: LiveRun) -> None:
        end = time.monotonic() + 300
        while any(last_values(live.records(shops)).values()):
            assert time.monotonic() < end
            run.wait(0.2)

    live.run(flow, "micro-batch", wait_until_all_are_gone)
    assert live.held_keys(flow, "of_shops") == []
    live.send(bids, {"auction": 1, "shop": "a"})
    live.run(flow)
    assert [row for row in last_values(live.records(shops)).values() if row] == [{"shop": "a", "n": 1}]


def test_time_that_python_lacks_is_not_compared(live: Live) -> None:
    """A sum of seconds that is a time after the year 9999 is null for min, max and count distinct."""
    bids, out = live.topic("bids", schema="id BIGINT, shop STRING, seconds BIGINT"), live.topic("out")
    seconds = [10**12, 7, 5, 10**13]
    live.send(bids, *({"id": n, "shop": "a", "seconds": each} for n, each in enumerate(seconds)))
    flow = Flow("times")
    newest = flow.read("bids", bids).latest(by="id", name="newest")
    found = newest.aggregate(
        by="shop", n="count(*)", least="min(timestamp_seconds(seconds))",
        most="max(timestamp_seconds(seconds))", times="count(distinct timestamp_seconds(seconds))",
    )  # fmt: skip
    found.write("out", replace(out, key="shop"))

    live.run(flow)

    assert live.values(out)[-1] == {
        "shop": "a", "n": 4, "least": "1970-01-01T00:00:05.000000Z", "most": "1970-01-01T00:00:07.000000Z",
        "times": 2,
    }  # fmt: skip
