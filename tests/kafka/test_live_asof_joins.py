"""As-of joins of two topics in a live query, with windows over their results."""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from flowcore import Flow, KafkaTopic, Tumbling
from flowcore.watermarks import monotonous
from tests.kafka.conftest import Live
from tests.kafka.driver import kill_driver, run_slice

TRADES = "id BIGINT, item STRING, at BIGINT"
PRICES = "item STRING, price BIGINT, since BIGINT"
TOLERANCE_MS = 3_000
END_MS = 60_000
FIRST_END_MS, LAST_END_MS = END_MS + 20_000, END_MS + 40_000
Rows = list[dict[str, Any]]


def priced_trades(*topics: KafkaTopic) -> Flow:
    """Trades with the price of their item at their time, and how many there are in each 10 s."""
    trades, prices, out, sums, late_trades, late_prices = topics
    flow = Flow("market")
    left = flow.read("trades", replace(trades, schema=TRADES, event_time="at", watermark=monotonous()))
    right = flow.read("prices", replace(prices, schema=PRICES, event_time="since", watermark=monotonous()))
    joined = left.join_asof(
        right, on="item", tolerance=timedelta(milliseconds=TOLERANCE_MS), how="left", late="side-output",
        name="priced",
    )  # fmt: skip
    joined.select("id", "at", "price").write("out", out)
    joined.late_left.write("late_trades", late_trades)
    joined.late_right.write("late_prices", late_prices)
    windows = joined.window(Tumbling(10), by="item", name="by_item")
    windows.aggregate(n="count(*)", priced="count(price)").write("sums", sums)
    return flow


def random_rows() -> tuple[Rows, Rows]:
    """Prices of some items, and trades at random times and at the bounds; each in order of time."""
    chance = random.Random(11)  # noqa: S311 - test data
    prices: Rows = [
        {"item": "abcd"[number % 4] if number % 15 else None, "price": number, "since": since}
        for number, since in enumerate(sorted(chance.sample(range(END_MS), 60)))
    ]
    trades: Rows = [
        {"item": chance.choice(["a", "b", "c", "d", None]), "at": chance.randrange(END_MS)}
        for _ in range(120)
    ]
    for price in prices[::2]:
        after_ms = chance.choice([-1, 0, TOLERANCE_MS, TOLERANCE_MS + 1])
        trades.append({"item": price["item"], "at": max(price["since"] + after_ms, 0)})
    trades.sort(key=lambda row: row["at"])
    return [{"id": number, **row} for number, row in enumerate(trades)], prices


def closing(time_ms: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """A trade and a price that advance the watermark to just before this time."""
    return {"id": -1, "item": "z", "at": time_ms}, {"item": "z", "price": time_ms, "since": time_ms}


def price_of(trade: dict[str, Any], prices: Rows) -> int | None:
    """The newest price of the item at the time of a trade."""
    found = [
        (price["since"], price["price"])
        for price in prices
        if price["item"] == trade["item"] is not None and 0 <= trade["at"] - price["since"] <= TOLERANCE_MS
    ]
    return max(found)[1] if found else None


def drive(servers: str, state: str, *topics: str) -> None:
    """Run a slice of small batches until this process is killed."""
    run_slice(priced_trades, servers, state, topics, batch_records=40)


@pytest.mark.thorough
def test_each_trade_has_the_price_of_its_time_after_a_kill_of_the_driver(live: Live) -> None:
    """The output is right across a killed slice, a complete slice and micro-batches.

    Late records go to the side outputs.
    """
    topics = [live.topic(name) for name in ("trades", "prices", "out", "sums", "late_trades", "late_prices")]
    trades, prices = random_rows()
    last_trade, last_price = closing(FIRST_END_MS)
    live.send(topics[0], *trades, *[last_trade] * 2, partitions=2)
    live.send(topics[1], *prices, *[last_price] * 3, partitions=3)
    kill_driver(drive, live, *(topic.name for topic in topics), batches=2, after_s=0.3)
    flow = priced_trades(*topics)
    live.run(flow)
    live.forget_last_batch("market", "trades-batches")
    newer, newer_price = (
        {"id": 999, "item": "a", "at": FIRST_END_MS + 9},
        {"item": "a", "price": 9, "since": FIRST_END_MS + 8},
    )
    late_trade, late_price = {"id": 5, "item": "a", "at": 100}, {"item": "a", "price": 1, "since": 100}
    live.send(topics[0], late_trade, newer, *[closing(LAST_END_MS)[0]] * 2, partitions=2)
    live.send(topics[1], late_price, newer_price, newer_price, *[closing(LAST_END_MS)[1]] * 3, partitions=3)

    def newer_arrived(_: object) -> None:
        end = time.monotonic() + 300
        while not any(row["id"] == 999 for row in live.values(topics[2])):
            assert time.monotonic() < end
            time.sleep(0.2)

    live.run(flow, "micro-batch", newer_arrived)

    expected = Counter((row["id"], row["at"], price_of(row, prices)) for row in trades)
    expected.update({(-1, FIRST_END_MS, FIRST_END_MS): 2, (999, FIRST_END_MS + 9, 9): 1})
    found: dict[str, dict[str, Any]] = {}
    for record in live.records(topics[2]):
        assert found.setdefault(record.id, record.json) == record.json
    assert Counter((row["id"], row["at"], row.get("price")) for row in found.values()) == expected
    place = r"[\w-]{22}:\d:\d+"
    assert all(
        re.fullmatch(rf"market/out:[\w-]{{22}}:[\w-]{{8}}:{place}\+({place})?", each) for each in found
    )

    sums: Counter[tuple[Any, ...]] = Counter()
    for row in trades:
        sums[row["item"], row["at"] // 10_000, True] += price_of(row, prices) is not None
        sums[row["item"], row["at"] // 10_000, False] += 1
    counted: Counter[tuple[Any, ...]] = Counter()
    for row in {record.id: record.json for record in live.records(topics[3])}.values():
        window = int(row["window_start"][14:16]) * 6 + int(row["window_start"][17:19]) // 10
        if window < FIRST_END_MS // 10_000:
            counted[row.get("item"), window, True] += row["priced"]
            counted[row.get("item"), window, False] += row["n"]
    assert +counted == +sums

    assert live.values(topics[4]) == [late_trade]
    assert live.values(topics[5]) == [late_price]
    kept = {str(key.key): key.states for key in live.held_keys(flow, "priced")}
    assert kept == {"{'item': 'z'}": {"left_ms": [LAST_END_MS] * 2, "right_ms": [LAST_END_MS]}}
