"""The newest row and the first rows of each key in a live query, through a kill and a change of modes."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from flowcore import Flow, KafkaTopic, Tumbling
from flowcore.watermarks import bounded_out_of_orderness
from tests.kafka.conftest import Live, Record
from tests.kafka.driver import kill_driver, run_slice

pytestmark = pytest.mark.kafka

SCHEMA = "item STRING, bidder BIGINT, price DOUBLE, at BIGINT"
SECONDS = 40


def ranked(*topics: KafkaTopic) -> Flow:
    """The newest bid of each bidder, the three best bids for each item, and the busiest item of each 10 s."""
    bids, newest, best, busiest = topics
    flow = Flow("ranked")
    watermark = bounded_out_of_orderness(timedelta(seconds=SECONDS))
    read = flow.read("bids", replace(bids, schema=SCHEMA, event_time="at", watermark=watermark))
    read.latest(by="bidder", name="by_bidder").write("newest", newest)
    top = read.top_n(3, by="item", order=["price desc", "bidder"], name="by_item")
    top.select("item", "rank", "price", "bidder").write("best", best)
    counts = read.window(Tumbling(10), by="item", name="counts").aggregate(n="count(*)")
    first = counts.top_n(1, by="window_end", order=["n desc", "item"], name="by_window")
    first.select("window_end", "rank", "item", "n").write("busiest", busiest)
    return flow


def drive(servers: str, state: str, *topics: str) -> None:
    """Run a slice of small batches until this process is killed."""
    run_slice(ranked, servers, state, topics, batch_records=60)


def random_bids(count: int) -> list[dict[str, Any]]:
    """Bids out of order; no two of a bidder have the same time, or the same price for an item."""
    chance = random.Random(9)  # noqa: S311 - test data
    times = chance.sample(range(SECONDS * 1_000), count)
    return [
        {
            "item": chance.choice("abcd"),
            "bidder": chance.randrange(20),
            "price": None if number % 20 == 0 else round(chance.uniform(1, 50), 3),
            "at": at,
        }
        for number, at in enumerate(times)
    ]


def last_values(records: list[Record]) -> dict[bytes | None, dict[str, Any]]:
    """What a table of the topic has in the end; each id has one content, and one key has one partition."""
    content: dict[str, Any] = {}
    for record in records:
        assert content.setdefault(record.id, record.json) == record.json
    assert len({record.partition for record in records if record.key == records[0].key}) == 1
    return {record.key: record.json for record in records}


def rank(bids: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Best bids first; without a price last."""
    return sorted(bids, key=lambda bid: (-(bid["price"] or 0), bid["bidder"]))


@pytest.mark.thorough
def test_ranks_are_right_after_a_kill_of_the_driver(live: Live) -> None:
    """The last row of each key is what sorting all bids gives; state has nothing else."""
    topics = [live.topic(name) for name in ("bids", "newest", "best", "busiest")]
    bids = random_bids(240)
    live.send(topics[0], *bids, partitions=2)
    kill_driver(drive, live, *(topic.name for topic in topics), batches=2, after_s=0.3)
    end = {"item": "z", "bidder": 99, "price": 0.5, "at": 3 * SECONDS * 1_000}
    live.send(topics[0], end, end, partitions=2)
    live.run(ranked(*topics))
    bids.append(end)

    newest = last_values(live.records(topics[1]))
    expected = {bid["bidder"]: bid for bid in sorted(bids, key=lambda bid: bid["at"])}
    assert {row["bidder"]: {"price": None, **row} for row in newest.values()} == expected
    best = last_values(live.records(topics[2]))
    places = {
        (item, number): (bid["price"], bid["bidder"])
        for item in "abcdz"
        for number, bid in enumerate(rank([bid for bid in [*bids, end] if bid["item"] == item])[:3], 1)
    }
    found = {(row["item"], row["rank"]): (row.get("price"), row["bidder"]) for row in best.values()}
    assert found == places
    busiest = last_values(live.records(topics[3]))
    in_window: dict[int, dict[str, int]] = {}
    for bid in bids[:-1]:
        items = in_window.setdefault(bid["at"] // 10_000, {})
        items[bid["item"]] = items.get(bid["item"], 0) + 1
    most = [min((-n, item) for item, n in items.items()) for _, items in sorted(in_window.items())]
    rows = sorted(busiest.values(), key=lambda row: str(row["window_end"]))
    assert [(-row["n"], row["item"]) for row in rows] == most

    kept = {(key.key["item"], len(key.states["rows"])) for key in live.held_keys(ranked(*topics), "by_item")}
    assert kept == {("a", 3), ("b", 3), ("c", 3), ("d", 3), ("z", 2)}


def test_ranks_go_on_in_micro_batches_and_order_by_arrival(live: Live) -> None:
    """Without event time the last to arrive is the newest; only ranks that change leave again."""
    bids, newest, best = live.topic("bids"), live.topic("newest"), live.topic("best")
    flow = Flow("arriving")
    read = flow.read("bids", replace(bids, schema=SCHEMA))
    read.latest(by="item", name="by_item").select("item", "at").write("newest", newest)
    read.top_n(2, order="price", name="cheapest").select("rank", "price").write("best", best)
    live.send(bids, *({"item": item, "at": at, "price": at} for item, at in (("a", 9), ("b", 5), ("a", 7))))
    live.run(flow, "micro-batch", lambda run: live.wait_for_records(run, best, 2))
    assert [(row["rank"], row["price"]) for row in live.values(best)] == [(1, 5.0), (2, 7.0)]
    live.send(bids, *({"item": "b", "at": at, "price": at} for at in (8, 6)))
    live.run(flow)
    assert [(row["rank"], row["price"]) for row in live.values(best)[2:]] == [(2, 6.0)]
    assert {row["item"]: row["at"] for row in live.values(newest)} == {"a": 7, "b": 6}
