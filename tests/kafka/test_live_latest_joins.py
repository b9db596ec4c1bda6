"""Joins of a topic with the newest records of another one in a live query, with windows over results."""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from flowcore import Flow, KafkaTopic, Tumbling
from flowcore.spark.run.live_stage import LiveRun
from flowcore.watermarks import monotonous
from tests.kafka.conftest import Live
from tests.kafka.driver import kill_driver, run_slice

TRADES = "id BIGINT, item STRING, at BIGINT"
PRICES = "item STRING, price BIGINT"
END_MS = 60_000
Rows = list[dict[str, Any]]


def priced_trades(*topics: KafkaTopic) -> Flow:
    """Trades with the price of their item that came last, and how many there are in each 10 s."""
    trades, prices, out, sums = topics
    flow = Flow("market")
    idle = monotonous().with_idleness(timedelta(seconds=2))
    left = flow.read("trades", replace(trades, schema=TRADES, event_time="at", watermark=idle))
    right = flow.read("prices", replace(prices, schema=PRICES, watermark=idle))
    joined = left.join_latest(right, on="item", how="left", name="priced")
    joined.select("id", "at", "price").write("out", out)
    windows = joined.window(Tumbling(10), by="item", name="by_item")
    windows.aggregate(n="count(*)", priced="count(price)").write("sums", sums)
    return flow


def drive(servers: str, state: str, *topics: str) -> None:
    """Run a slice of small batches until this process is killed."""
    run_slice(priced_trades, servers, state, topics, batch_records=40)


@pytest.mark.thorough
def test_trades_wait_until_all_prices_are_loaded_also_through_a_kill_of_the_driver(live: Live) -> None:
    """Small batches read trades long before the last prices, which are the ones that count."""
    topics = [live.topic(name) for name in ("trades", "prices", "out", "sums")]
    chance = random.Random(5)  # noqa: S311 - test data
    items = ["a", "b", "c", None]
    trades: Rows = [
        {"id": number, "item": chance.choice([*items, "never priced"]), "at": number * END_MS // 100}
        for number in range(100)
    ]
    prices: Rows = [{"item": items[number % 4], "price": number} for number in range(400)]
    live.send(topics[0], *trades)
    live.send(topics[1], *prices, partitions=1)
    flow = priced_trades(*topics)
    kill_driver(drive, live, *(topic.name for topic in topics), batches=3, after_s=0.3)
    without_key = {row["id"] for row in trades if row["item"] is None}
    assert {row["id"] for row in live.values(topics[2])} <= without_key
    states = {key.key["item"]: key.states for key in live.held_keys(flow, "priced")}
    assert len(states["a"]["left_ms"]) > len(states["a"]["right_ms"]) == 1

    def finish(run: LiveRun) -> None:
        live.wait_for_records(run, topics[2], len(trades))
        live.send(topics[1], {"item": "a", "price": 1_000})

    live.run(flow, "micro-batch", finish)
    last = {"id": 999, "item": "a", "at": END_MS + 30_000}
    live.send(topics[0], last)
    live.run(flow)

    newest = {"a": 396, "b": 397, "c": 398}
    expected = Counter((row["id"], row["at"], newest.get(row["item"])) for row in trades)
    expected[999, END_MS + 30_000, 1_000] += 1
    found: dict[str, dict[str, Any]] = {}
    for record in live.records(topics[2]):
        assert found.setdefault(record.id, record.json) == record.json
    assert Counter((row["id"], row["at"], row.get("price")) for row in found.values()) == expected
    place = r"[\w-]{22}:\d:\d+"
    assert all(
        re.fullmatch(rf"market/out:[\w-]{{22}}:[\w-]{{8}}:{place}\+({place})?", each) for each in found
    )

    sums = {record.id: record.json for record in live.records(topics[3])}.values()
    assert sum(row["n"] for row in sums) == len(trades)
    assert sum(row["priced"] for row in sums) == sum(row["item"] in newest for row in trades)
