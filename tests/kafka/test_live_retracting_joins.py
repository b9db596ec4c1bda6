"""Regular joins in a live query whose sides replace and delete rows, over restarts and repeated batches."""

from __future__ import annotations

import json
import random
import time
from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Producer

from flowcore import Flow, KafkaTopic
from flowcore.kafka.topics import ensure_topics
from flowcore.spark.run.live_stage import LiveRun
from tests.kafka.conftest import Live
from tests.kafka.test_live_updating_sources import table

pytestmark = pytest.mark.kafka

Bid = dict[str, Any]
Prices = dict[Any, float]
Rows = Counter[tuple[Any, ...]]
SINKS = {
    "both": ("auction", "bids", "price"),
    "per_bidder": ("bidder", "auction", "price"),
    "sums": ("auction", "bidders", "paid"),
    "unpriced": ("auction", "bidder"),
}


def market(bids: KafkaTopic, prices: KafkaTopic, sinks: dict[str, KafkaTopic]) -> Flow:
    """Totals and newest bids with the newest prices; a bidder changes the auction, which is joined on."""
    flow = Flow("market")
    bid = flow.read("bids", replace(bids, schema="auction BIGINT, bidder STRING"))
    price = flow.read("prices", replace(prices, schema="auction BIGINT, price DOUBLE", updating_by="auction"))
    totals = bid.aggregate(by="auction", bids="count(*)", name="totals")
    newest = bid.latest(by="bidder", name="newest")
    per_bidder = newest.join(price, on="auction", how="full", ttl=None, name="per_bidder")
    streams = {
        "both": totals.join(price, on="auction", ttl=None, name="both"),
        "per_bidder": per_bidder,
        "sums": per_bidder.aggregate(
            by="auction", bidders="count(bidder)", paid="sum(if(bidder is null, 0, price))", name="sums"
        ),
        "unpriced": bid.join(price, on="auction", how="anti", ttl=None, name="unpriced"),
    }
    for name, stream in streams.items():
        stream.write(f"{name}_out", sinks[name])
    return flow


def expected(bids: list[Bid], prices: Prices) -> dict[str, Rows]:
    """The joins of the last rows by nested loops."""
    newest = {bid["bidder"]: bid.get("auction") for bid in bids}
    counts = Counter(bid.get("auction") for bid in bids)
    held = {*newest.values()}
    full: Rows = Counter((bidder, auction, prices.get(auction)) for bidder, auction in newest.items())
    full += Counter((None, auction, price) for auction, price in prices.items() if auction not in held)
    groups = defaultdict(list)
    for bidder, auction, price in full.elements():
        groups[auction].append((bidder, price))
    return {
        "both": Counter(
            (auction, counts[auction], prices[auction]) for auction in counts.keys() & prices.keys()
        ),
        "per_bidder": full,
        "sums": Counter(
            (auction, sum(bidder is not None for bidder, _ in rows), _sum(rows))
            for auction, rows in groups.items()
        ),
        "unpriced": Counter(
            (bid.get("auction"), bid["bidder"]) for bid in bids if bid.get("auction") not in prices
        ),
    }


def _sum(rows: list[tuple[str | None, float | None]]) -> float | None:
    found = [price if bidder else 0.0 for bidder, price in rows if price is not None or not bidder]
    return sum(each for each in found if each is not None) if found else None


def found(live: Live, sinks: dict[str, KafkaTopic]) -> dict[str, Rows]:
    return {
        name: Counter(
            tuple(row.get(each) for each in columns) for row in table(live.records(sinks[name])).values()
        )
        for name, columns in SINKS.items()
    }


def send_prices(live: Live, topic: KafkaTopic, changes: list[tuple[int, float | None]]) -> None:
    """Send prices with their key; None deletes."""
    ensure_topics(live.servers, {topic.name: 1})
    producer = Producer({"bootstrap.servers": live.servers, "log_level": 0})
    for auction, price in changes:
        value = None if price is None else json.dumps({"auction": auction, "price": price})
        producer.produce(topic.name, value, key=str(auction))
    assert producer.flush(300) == 0


def test_the_topics_are_the_joins_of_the_last_rows(live: Live) -> None:
    """In slices and micro-batches, one after the other; a batch that is repeated changes nothing."""
    bids, prices = live.topic("bids"), live.topic("prices")
    sinks = {name: live.topic(name) for name in SINKS}
    flow = market(bids, prices, sinks)
    chance = random.Random(11)  # noqa: S311 - test data
    all_bids: list[Bid] = []
    last_prices: Prices = {}

    def send(part: int) -> dict[str, Rows]:
        sent = [{"auction": chance.randrange(6), "bidder": chance.choice("abcdefgh")} for _ in range(15)]
        sent += [{"bidder": "n"}] if part != 1 else [{"bidder": "n", "auction": 2}]
        live.send(bids, *sent)
        changes = [(chance.randrange(7), chance.choice([None, 1.5, 2.5, 4.0])) for _ in range(8)]
        send_prices(live, prices, changes)
        all_bids.extend(sent)
        for auction, price in changes:
            last_prices.pop(auction, None)
            last_prices.update({} if price is None else {auction: price})
        return expected(all_bids, last_prices)

    def settle(run: LiveRun) -> None:
        end = time.monotonic() + 300
        while (now := found(live, sinks)) != wanted:
            assert time.monotonic() < end, (now, wanted)
            run.wait(0.2)
        live.wait_for_records(run, sinks["both"], 0)

    for part in range(3):
        wanted = send(part)
        if part == 1:
            live.run(flow, mode="micro-batch", until=settle)
        else:
            live.run(flow)
        assert found(live, sinks) == wanted
    live.forget_last_batch("market", "bids-batches")
    live.run(flow)
    assert found(live, sinks) == wanted

    assert any(record.value is None for record in live.records(sinks["both"]))
    kept = {key.key["auction"]: {*key.states} for key in live.held_keys(flow, "both")}
    assert {auction for auction, sides in kept.items() if len(sides) == 2} == {
        auction for auction, _, _ in wanted["both"]
    }
