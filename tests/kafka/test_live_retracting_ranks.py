"""Running ranks of running counts, and of rows that a topic replaces and deletes, in a live query."""

from __future__ import annotations

import json
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Producer

from flowcore import Flow, KafkaTopic
from flowcore.kafka.topics import ensure_topics
from flowcore.spark.checkpoint.offset_log import has_unfinished_batch
from flowcore.spark.run.live_stage import LiveRun
from tests.kafka.conftest import Live
from tests.kafka.test_live_updating_sources import table

pytestmark = pytest.mark.kafka

Row = dict[str, Any]
Tables = dict[str, list[tuple[Any, ...]]]
"""By topic, the rows that a table of it has."""
COLUMNS = {
    "best": ("category", "rank", "auction", "bids"),
    "ranks": ("rank", "auctions", "bids"),
    "cheapest": ("shop", "rank", "item", "price"),
}


def leading(topics: Mapping[str, KafkaTopic]) -> Flow:
    """The auctions of each category with most bids, what they have together, and the cheapest items."""
    flow = Flow("leading")
    bids = flow.read("bids", replace(topics["bids"], schema="category STRING, auction BIGINT"))
    counts = bids.aggregate(by=["category", "auction"], bids="count(*)", name="counts")
    best = counts.top_n(3, by="category", order="bids desc", name="best")
    best.write("best_out", topics["best"])
    best.aggregate(by="rank", auctions="count(*)", bids="sum(bids)", name="ranks").write(
        "ranks_out", topics["ranks"]
    )
    schema = "item STRING NOT NULL, shop STRING, price BIGINT NOT NULL"
    items = flow.read("items", replace(topics["items"], schema=schema, updating_by="item"))
    items.top_n(2, by="shop", order="price", name="cheapest").write("cheapest_out", topics["cheapest"])
    return flow


def send_items(live: Live, topic: KafkaTopic, items: Mapping[str, tuple[str, int] | None]) -> None:
    """Send the shop and price of items; None deletes an item."""
    ensure_topics(live.servers, {topic.name: 1})
    producer = Producer({"bootstrap.servers": live.servers, "log_level": 0})
    for item, row in items.items():
        value = row and json.dumps({"item": item, "shop": row[0], "price": row[1]})
        producer.produce(topic.name, value, key=item)
    assert producer.flush(300) == 0


def expect(bids: list[Row], items: Mapping[str, tuple[str, int] | None]) -> Tables:
    """What all input gives; of equal rows the one with the smallest key is first."""
    auctions, shops = defaultdict(list), defaultdict(list)
    for (category, auction), count in Counter((bid["category"], bid["auction"]) for bid in bids).items():
        auctions[category].append((-count, auction))
    best = [
        (category, rank, auction, -count)
        for category, counts in auctions.items()
        for rank, (count, auction) in enumerate(sorted(counts)[:3], 1)
    ]
    ranks = defaultdict(list)
    for _, rank, _, count in best:
        ranks[rank].append(count)
    for item, row in items.items():
        if row is not None:
            shops[row[0]].append((row[1], item))
    cheapest = [
        (shop, rank, item, price)
        for shop, prices in shops.items()
        for rank, (price, item) in enumerate(sorted(prices)[:2], 1)
    ]
    summed = [(rank, len(counts), sum(counts)) for rank, counts in ranks.items()]
    return {"best": sorted(best), "ranks": sorted(summed), "cheapest": sorted(cheapest)}


def read_tables(live: Live, topics: Mapping[str, KafkaTopic]) -> Tables:
    """The last row of each key that is not deleted; each record id has one content."""
    return {
        name: sorted(
            tuple(row[column] for column in columns) for row in table(live.records(topics[name])).values()
        )
        for name, columns in COLUMNS.items()
    }


def wait_for(live: Live, topics: Mapping[str, KafkaTopic], wanted: Tables) -> Callable[[LiveRun], None]:
    """Waits until the tables are as wanted, and all batches are committed."""

    def wait(run: LiveRun) -> None:
        end = time.monotonic() + 300
        while (found := read_tables(live, topics)) != wanted:
            assert time.monotonic() < end, (found, wanted)
            run.wait(0.2)
        while any(map(has_unfinished_batch, live.settings.state_dir.glob("*/checkpoints/*"))):
            assert time.monotonic() < end
            run.wait(0.05)

    return wait


def test_ranks_are_those_of_all_input_after_restarts_in_other_modes(live: Live) -> None:
    """A shop that loses all its items loses its ranks, and gets them back; a batch is repeated."""
    topics = {name: live.topic(name) for name in ("bids", "items", *COLUMNS)}
    chance = random.Random(11)  # noqa: S311 - test data
    bids: list[Row] = []
    items: dict[str, tuple[str, int] | None] = {}
    changes: list[dict[str, tuple[str, int] | None]] = [
        {"a": ("x", 5), "b": ("x", 3), "c": ("x", 5), "d": ("y", 1), "e": ("y", 2), "f": ("z", 1)},
        {"d": None, "e": ("x", 1), "b": ("x", 9), "f": ("z", 1)},
        {"d": ("y", 7), "a": None, "c": ("z", 0)},
    ]
    for part, changed in enumerate(changes):
        auctions = range(8) if part < 2 else range(4, 12)
        sent = [{"category": chance.choice("pqr"), "auction": chance.choice(auctions)} for _ in range(60)]
        bids += sent
        items |= changed
        live.send(topics["bids"], *sent, partitions=2)
        send_items(live, topics["items"], changed)
        expected = expect(bids, items)
        if part == 1:
            live.run(leading(topics), "micro-batch", wait_for(live, topics, expected))
            gone = {row.key for row in live.records(topics["cheapest"]) if row.value is None}
            assert {json.loads(key or b"")["shop"] for key in gone} == {"y"}
        else:
            live.run(leading(topics))
        assert read_tables(live, topics) == expected

    before = live.records(topics["best"])
    for query in ("bids-batches", "items-batches"):
        live.forget_last_batch("leading", query)
    live.run(leading(topics))
    assert read_tables(live, topics) == expected
    assert len(live.records(topics["best"])) > len(before)
    kept = {key.key["category"]: key.states["rows"] for key in live.held_keys(leading(topics), "best")}
    counted = {(bid["category"], bid["auction"]) for bid in bids}
    assert kept == Counter(category for category, _ in counted)
