"""Regular joins of two topics in a live query."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from flowcore import Flow, KafkaTopic, Tumbling, monotonous

pytestmark = pytest.mark.kafka

Live = Any


def _paid(
    orders: KafkaTopic, payments: KafkaTopic, out: KafkaTopic, first: KafkaTopic, ttl: timedelta
) -> Flow:
    flow = Flow("shop")
    left, right = flow.read("orders", orders), flow.read("payments", payments)
    left.join(right, on="id", ttl=ttl, name="paid").write("out", out)
    left.join(right, on="id", how="semi", ttl=None, name="known").write("first", first)
    return flow


@pytest.mark.thorough
def test_records_meet_those_that_arrive_while_they_are_kept(live: Live) -> None:
    """Over restarts, in batches and slices, in either order of arrival; a repeated batch has the same ids."""
    orders = live.topic("orders", schema="id BIGINT, item STRING")
    payments = live.topic("payments", schema="id BIGINT, amount BIGINT")
    out, first = live.topic("out"), live.topic("first")
    flow = _paid(orders, payments, out, first, timedelta(hours=1))
    live.send(orders, {"id": 1, "item": "a"}, {"item": "b"}, {"id": 2, "item": "c"}, partitions=2)
    live.send(payments, {"id": 3, "amount": 30}, {"amount": 9})
    live.run(flow)
    assert live.values(out) == []

    live.send(payments, {"id": 1, "amount": 10}, {"id": 1, "amount": 11})
    live.send(orders, {"id": 3, "item": "d"}, partitions=2)
    live.run(flow, mode="micro-batch", until=lambda run: live.wait_for_records(run, out, 3))
    pairs = [(1, "a", 10), (1, "a", 11), (3, "d", 30)]
    records = live.records(out)
    assert sorted((row["id"], row["item"], row["amount"]) for row in live.values(out)) == pairs
    assert sorted(row["item"] for row in live.values(first)) == ["a", "d"]

    live.forget_last_batch("shop", "orders-batches")
    live.run(flow)
    assert {record.id: record.json for record in live.records(out)} == {
        record.id: record.json for record in records
    }
    assert len(live.records(out)) > len(records)

    held = {str(key.key): sorted(key.states) for key in live.held_keys(flow, "paid")}
    both = ["left_ms", "right_ms"]
    assert held == {"{'id': 1}": both, "{'id': 2}": ["left_ms"], "{'id': 3}": both}


@pytest.mark.thorough
def test_records_expire_by_processing_time(live: Live) -> None:
    """A time to live may be declared anew: it counts for what is kept already."""
    orders = live.topic("orders", schema="id BIGINT, item STRING")
    payments = live.topic("payments", schema="id BIGINT, amount BIGINT")
    out, first = live.topic("out"), live.topic("first")
    live.send(orders, {"id": 1, "item": "a"})
    live.send(payments, {"id": 2, "amount": 5})
    live.run(_paid(orders, payments, out, first, timedelta(hours=1)))
    live.send(payments, {"id": 1, "amount": 10})
    live.run(_paid(orders, payments, out, first, timedelta(milliseconds=1)))

    assert live.values(out) == []
    assert [row["item"] for row in live.values(first)] == ["a"]


def test_outer_rows_are_deleted_when_a_partner_arrives(live: Live) -> None:
    """The topic is the join of what has arrived, an aggregate counts it, and a repeat changes neither."""
    orders = live.topic("orders", schema="id BIGINT, item STRING")
    payments = live.topic("payments", schema="id BIGINT, amount BIGINT")
    out, counts, unpaid = live.topic("out"), live.topic("counts"), live.topic("unpaid")
    flow = Flow("shop")
    left, right = flow.read("orders", orders), flow.read("payments", payments)
    rows = left.join(right, on="id", how="full", ttl=None, name="rows")
    rows.write("out", out)
    rows.aggregate(by="item", n="count(*)", amount="sum(amount)", name="per_item").write("counts", counts)
    anti = left.join(right, on="id", how="anti", ttl=timedelta(hours=1), name="none")
    anti.select("id", "is_deleted").write("unpaid", unpaid, key="id", deleted="is_deleted")
    live.send(orders, {"id": 1, "item": "a"}, {"item": "b"}, {"id": 2, "item": "a"}, partitions=2)
    live.send(payments, {"id": 3, "amount": 30}, {"id": 1, "amount": 10})
    live.run(flow)
    live.send(payments, {"id": 1, "amount": 11}, {"id": 2, "amount": 20})
    live.send(orders, {"id": 3, "item": "c"}, partitions=2)
    live.run(flow)

    for _ in range(2):
        table = [(row.get("id"), row.get("item"), row.get("amount")) for row in _table(live, out)]
        pairs = [(1, "a", 10), (1, "a", 11), (2, "a", 20), (3, "c", 30)]
        assert sorted(table, key=str) == sorted([*pairs, (None, "b", None)], key=str)
        sums = {(row["item"], row["n"], row.get("amount")) for row in _table(live, counts)}
        assert sums == {("a", 3, 41), ("b", 1, None), ("c", 1, 30)}
        assert _table(live, unpaid) == [{}]  # the order without id
        live.forget_last_batch("shop", "orders-batches")
        live.run(flow)
    ids = {(record.id, record.value) for record in live.records(out)}
    assert len(ids) == len({name for name, _ in ids}) == len(pairs) + 1 + 2 * 2


def test_stored_rows_are_deleted_under_their_name_after_an_operator_was_added(live: Live) -> None:
    """A column of the left side has the name of the right one joined on, and keeps its own value."""
    orders = live.topic("orders", schema="id BIGINT, customer BIGINT, at BIGINT", watermark=monotonous())
    customers = live.topic("customers", schema="id BIGINT, name STRING", watermark=monotonous())
    out, totals = live.topic("out"), live.topic("totals")

    def named(*, counts: bool) -> Flow:
        flow = Flow("shop")
        timed = flow.read("orders", orders).with_event_time("at", watermark=monotonous(), name="timed")
        on = {"customer": "id"}
        rows = timed.join(flow.read("customers", customers), on=on, how="left", ttl=None, name="rows")
        rows.write("out", out)
        if counts:
            timed.window(Tumbling(10), by="customer", name="a").aggregate(n="count(*)").write("n", totals)
        return flow

    live.send(orders, {"id": 17, "customer": 3, "at": 1}, {"id": 18, "customer": 3, "at": 2})
    live.send(customers, {"id": 9, "name": "Bo"})
    live.run(named(counts=False))
    assert sorted((row["id"], row["customer"]) for row in live.values(out)) == [(17, 3), (18, 3)]
    live.send(customers, {"id": 3, "name": "Ann"})
    live.run(named(counts=True))

    found = sorted((row["id"], row["customer"], row["name"]) for row in _table(live, out))
    assert found == [(17, 3, "Ann"), (18, 3, "Ann")]


def _table(live: Live, topic: KafkaTopic) -> list[dict[str, Any]]:
    """The last row of each key that is not deleted."""
    last = {record.key: record for record in live.records(topic)}
    return [record.json for record in last.values() if record.value is not None]
