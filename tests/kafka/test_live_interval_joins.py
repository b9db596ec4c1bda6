"""Joins of two topics in a live query, with windows over their results."""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from flowcore import Flow, KafkaTopic, Tumbling
from flowcore.watermarks import monotonous
from tests.kafka.conftest import Live
from tests.kafka.driver import kill_driver, run_slice

ORDERS = "id BIGINT, item STRING, at BIGINT"
PAYMENTS = "order_id BIGINT, payment BIGINT, paid BIGINT"
END_MS = 60_000
BEFORE_MS, AFTER_MS = 1_000, 5_000
LAST_ORDER = {"id": -1, "item": "last", "at": END_MS + 20_000}
LAST_PAYMENT = {"order_id": -2, "payment": -1, "paid": END_MS + 20_000}


def paid_orders(*topics: KafkaTopic) -> Flow:
    """Orders with their payments, if they have any, and how many there are in each 10 s."""
    orders, payments, out, sums, late_orders, late_payments, unpaid = topics
    flow = Flow("shop")
    left = flow.read("orders", replace(orders, schema=ORDERS, event_time="at", watermark=monotonous()))
    right = flow.read(
        "payments",
        replace(payments, schema=PAYMENTS, event_time="paid", watermark=monotonous(), on_error="fail"),
    )
    joined = left.join_interval(
        right.where("payment <> 11"), on={"id": "order_id"}, how="left", late="side-output",
        before=timedelta(milliseconds=BEFORE_MS), after=timedelta(milliseconds=AFTER_MS), name="paid_orders",
    )  # fmt: skip
    joined.select("id", "at", "payment").write("out", out)
    joined.late_left.write("late_orders", late_orders)
    joined.late_right.write("late_payments", late_payments)
    without = left.join_window(right, Tumbling(10), on={"id": "order_id"}, how="anti", name="without")
    without.select("id", "at", "window_end").write("unpaid", unpaid)
    windows = joined.window(Tumbling(10), by="item", name="by_item")
    windows.aggregate(n="count(*)", paid="count(payment)").write("sums", sums)
    return flow


def random_rows(count: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Orders, some without id, and payments of some of them near in time; each in order of time."""
    chance = random.Random(7)  # noqa: S311 - test data
    orders, payments = [], []
    for number in range(count):
        at = chance.randrange(0, END_MS)
        orders.append({"id": number if number % 10 else None, "item": "ab"[number % 2], "at": at})
        for part in range(chance.randrange(3)):
            paid = at + chance.choice([-BEFORE_MS - 1, -BEFORE_MS, 0, 700, AFTER_MS, AFTER_MS + 1])
            payments.append({"order_id": number, "payment": 10 * number + part, "paid": max(paid, 0)})
    return sorted(orders, key=lambda row: row["at"]), sorted(payments, key=lambda row: row["paid"])


def expected(
    orders: list[dict[str, Any]], payments: list[dict[str, Any]]
) -> tuple[Counter[tuple[Any, ...]], Counter[tuple[Any, ...]]]:
    """The pairs and unmatched orders, and by item and window their number and that of payments."""
    pairs: Counter[tuple[Any, ...]] = Counter()
    sums: Counter[tuple[Any, ...]] = Counter()
    for order in orders:
        mine = [
            payment
            for payment in payments
            if payment["order_id"] == order["id"] and payment["payment"] != 11
            and -BEFORE_MS <= payment["paid"] - order["at"] <= AFTER_MS
        ]  # fmt: skip
        for payment in mine or [{"payment": None, "paid": 0}]:
            pairs[order["id"], order["at"], payment["payment"]] += 1
            time_ms = max(order["at"], payment["paid"])
            sums[order["item"], time_ms // 10_000, payment["payment"] is not None] += 1
    return pairs, sums


def drive(servers: str, state: str, *topics: str) -> None:
    """Run a slice of small batches until this process is killed."""
    run_slice(paid_orders, servers, state, topics, batch_records=60)


@pytest.mark.thorough
def test_pairs_and_unmatched_records_are_right_after_a_kill_of_the_driver(live: Live) -> None:
    """Repeated batches give the same rows under the same ids; windows over the join lose nothing as late."""
    names = ("orders", "payments", "out", "sums", "late_orders", "late_payments", "unpaid")
    topics = [live.topic(name) for name in names]
    orders, payments = random_rows(200)
    live.send(topics[0], *orders, *[LAST_ORDER] * 2, partitions=2)
    live.send(topics[1], *payments, *[LAST_PAYMENT] * 3, partitions=3)
    kill_driver(drive, live, *(topic.name for topic in topics), batches=2, after_s=0.3)
    flow = paid_orders(*topics)
    live.run(flow)
    live.forget_last_batch("shop", "orders-batches")
    live.send(topics[0], {"id": 5, "item": "a", "at": 100}, partitions=2)
    live.send(topics[1], {"order_id": 5, "payment": 1, "paid": 100}, partitions=3)
    live.run(flow)

    pairs, sums = expected(orders, payments)
    found: dict[str, dict[str, Any]] = {}
    records = live.records(topics[2])
    for record in records:
        assert found.setdefault(record.id, record.json) == record.json
    assert Counter((row.get("id"), row["at"], row.get("payment")) for row in found.values()) == pairs
    assert len(records) > len(found)
    place = r"[\w-]{22}:\d:\d+"
    assert all(re.fullmatch(rf"shop/out:[\w-]{{22}}:[\w-]{{8}}:{place}\+({place})?", each) for each in found)
    counted: dict[str, dict[str, Any]] = {record.id: record.json for record in live.records(topics[3])}
    totals = Counter(dict.fromkeys(sums, 0))
    for row in counted.values():
        window = int(row["window_start"][14:16]) * 6 + int(row["window_start"][17:19]) // 10
        totals[row["item"], window, True] += row["paid"]
        totals[row["item"], window, False] += row["n"] - row["paid"]
    assert +totals == sums

    alone = {record.id: record.json for record in live.records(topics[6])}
    paid = {(payment["order_id"], payment["paid"] // 10_000) for payment in payments}
    assert Counter((row.get("id"), row["at"]) for row in alone.values()) == Counter(
        (row["id"], row["at"]) for row in orders if (row["id"], row["at"] // 10_000) not in paid
    )

    assert live.values(topics[4]) == [{"id": 5, "item": "a", "at": 100}]
    assert live.values(topics[5]) == [{"order_id": 5, "payment": 1, "paid": 100}]
    kept = {str(key.key): key.states for key in live.held_keys(flow, "paid_orders")}
    last_ms = END_MS + 20_000
    assert kept == {"{'id': -1}": {"left_ms": [last_ms] * 2}, "{'id': -2}": {"right_ms": [last_ms] * 3}}


def test_a_window_is_joined_with_a_topic(live: Live) -> None:
    """The two sides meet in the second exchange; neither topic has dead letters."""
    bids, limits, over = live.topic("bids"), live.topic("limits"), live.topic("over")
    flow = Flow("limited")
    settings: dict[str, Any] = {"event_time": "at", "watermark": monotonous(), "on_error": "fail"}
    counts = (
        flow.read("bids", replace(bids, schema="item STRING, at BIGINT", **settings))
        .window(Tumbling(10), by="item", name="counts")
        .aggregate(n="count(*)")
    )
    limit = flow.read("limits", replace(limits, schema="item STRING, most BIGINT, at BIGINT", **settings))
    joined = counts.select("item", "n").join_interval(
        limit.drop("at"),
        on="item",
        before=timedelta(seconds=10),
        after=timedelta(0),
        how="full",
        name="limited",
    )
    joined.write("over", over)
    times = [1, 2, 11_000, 12_000, 12_500, 50_000]
    live.send(bids, *({"item": "ab"[at < 10], "at": at} for at in times))
    live.send(
        limits,
        *({"item": item, "most": at, "at": at} for item, at in (("a", 9_999), ("b", 9_998), ("c", 60_000))),
    )
    live.run(flow)

    ids = {record.id: record.json for record in live.records(over)}
    assert sorted(ids.values(), key=str) == [
        {"item": "a", "most": 9_999, "n": 3}, {"item": "b", "most": 9_998, "n": 2},
    ]  # fmt: skip
    origin = r"[\w-]{8}:\{.*\}:\d+:\d+:1\+[\w-]{22}:0:\d"
    assert all(re.fullmatch(rf"limited/over:[\w-]{{22}}:[\w-]{{8}}:{origin}", each) for each in ids)


def test_late_records_are_joined_for_the_lateness_and_not_late_downstream(live: Live) -> None:
    """It may be changed between starts; a longer one brings no window back that has ended."""
    orders, payments, out, late, sums = map(live.topic, ("orders", "payments", "out", "late", "sums"))
    settings: dict[str, Any] = {"watermark": monotonous(), "on_error": "fail"}

    def run(lateness_s: int, *paid: tuple[int, int], ordered: tuple[tuple[int, int], ...] = ()) -> None:
        """A slice over more orders and payments: numbers of orders, and times in seconds."""
        flow = Flow("late_payments")
        left = flow.read("orders", replace(orders, schema=ORDERS, event_time="at", **settings))
        right = flow.read("payments", replace(payments, schema=PAYMENTS, event_time="paid", **settings))
        joined = left.join_window(
            right, Tumbling(10), on={"id": "order_id"}, how="left", allowed_lateness=lateness_s,
            late="side-output", name="in_window",
        )  # fmt: skip
        joined.select("id", "payment").write("out", out)
        joined.late_right.select("order_id").write("late", late)
        windows = joined.window(Tumbling(10), by="item", name="by_item")
        windows.aggregate(n="count(*)", paid="count(payment)").write("sums", sums)
        live.send(orders, *({"id": number, "item": "a", "at": 1_000 * s} for number, s in ordered))
        live.send(payments, *({"order_id": number, "payment": s, "paid": 1_000 * s} for number, s in paid))
        live.run(flow)

    run(5, (9, 12), ordered=((1, 1), (2, 2), (9, 12)))
    assert live.values(out) == [{"id": 9, "payment": 12}]
    run(5, (1, 3), (8, 16), ordered=((3, 4), (8, 16)))
    pairs = [(9, 12), (1, 3), (8, 16)]
    assert Counter((row["id"], row.get("payment")) for row in live.values(out)) == Counter(
        [*pairs, (2, None), (3, None)]
    )
    assert [(row["n"], row["paid"]) for row in live.values(sums)] == [(3, 1)]

    run(3_600, (2, 5), (7, 30), (9, 13), ordered=((7, 30),))
    assert live.values(late) == [{"order_id": 2}]
    assert Counter((row["id"], row.get("payment")) for row in live.values(out)) == Counter(
        [*pairs, (2, None), (3, None), (7, 30), (9, 13)]
    )
