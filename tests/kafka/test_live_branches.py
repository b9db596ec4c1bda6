"""Branches, unions, functions and aggregates of a stream run in few queries."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flowcore import Flow, Parquet, Stream
from flowcore.planner import plan_flow

pytestmark = pytest.mark.kafka

Live = Any
BID = "id BIGINT NOT NULL, shop STRING, price DOUBLE"


def _bid(number: int, shop: str = "a", price: float | None = 1.0) -> dict[str, Any]:
    return {"id": number, "shop": shop, "price": price}


def test_live_fan_out_runs_as_one_query(live: Live, tmp_path: Path) -> None:
    """Two filtered sinks, a join in one branch and bad records are served by one read of the topic."""
    (tmp_path / "shops").mkdir()
    pq.write_table(pa.table({"shop": ["a"], "city": ["Bern"]}), tmp_path / "shops" / "p.parquet")
    bids, high, low = live.topic("bids", schema=BID), live.topic("high"), live.topic("low")
    live.send(bids, _bid(1, "a", 5.0), _bid(2, "b", 500.0), b"{", _bid(3, "b", 7.0), _bid(4, "a", 600.0))
    flow = Flow("f")
    source = flow.read("bids", bids)
    shops = flow.read("shops", Parquet("shops", schema="shop STRING, city STRING"))
    source.where("price > 100").select("id", "upper(shop) as shop").write("high", high)
    source.where("price <= 100").join(shops, on="shop", how="left").with_columns(price="price * 2").write(
        "low", low
    )
    stage = plan_flow(flow).live
    assert stage
    assert len(stage.queries) == 1

    live.run(flow)

    assert live.values(high) == [{"id": 2, "shop": "B"}, {"id": 4, "shop": "A"}]
    assert live.values(low) == [
        {"id": 1, "shop": "a", "city": "Bern", "price": 10.0}, {"id": 3, "shop": "b", "price": 14.0},
    ]  # fmt: skip
    assert [record.value for record in live.records(bids.dead_letter)] == [b"{"]


def _shops(flow: Flow, folder: Path) -> Stream:
    (folder / "shops").mkdir()
    pq.write_table(pa.table({"shop": ["a"]}), folder / "shops" / "p.parquet")
    return flow.read("shops", Parquet("shops", schema="shop STRING"))


def test_live_branch_does_not_evaluate_records_of_another_branch(live: Live, tmp_path: Path) -> None:
    """A record that a branch filters out does not reach its expressions, even if another branch keeps it."""
    bids, rates, all_ = live.topic("bids", schema=BID), live.topic("rates"), live.topic("all")
    live.send(bids, _bid(1, price=0.0), _bid(2, price=2.0), b"bad")
    flow = Flow("f")
    source = flow.read("bids", bids)
    # Used twice downstream of a join, so that Spark evaluates it for every row.
    rated = source.where("price <> 0").select(
        "id", "shop", "if(price = 0, raise_error('zero'), 1 / price) as rate"
    )
    rated.join(_shops(flow, tmp_path), on="shop").select("id", "rate", "rate * 2 as twice").write(
        "rates", rates
    )
    source.select("id").write("all", all_)

    live.run(flow)

    assert live.values(rates) == [{"id": 2, "rate": 0.5, "twice": 1.0}]
    assert live.values(all_) == [{"id": 1}, {"id": 2}]


def test_live_bad_record_never_reaches_an_expression(live: Live, tmp_path: Path) -> None:
    """A bad record's fields are null or partly read; they do not reach an expression that would fail."""
    bids, out = live.topic("bids", schema="id BIGINT NOT NULL, price BIGINT"), live.topic("out")
    live.send(bids, b"bad", {"id": 1, "price": 4}, {"price": None}, {"id": 2, "price": 0.5})
    flow = Flow("f")
    rated = flow.read("bids", bids).select(
        "id", "1 / coalesce(price, raise_error('null')) as rate", "'a' as shop"
    )
    rated.join(_shops(flow, tmp_path), on="shop").select("id", "rate", "rate * 2 as twice").write("out", out)

    live.run(flow)

    assert live.values(out) == [{"id": 1, "rate": 0.25, "twice": 0.5}]
    assert [record.offset for record in live.records(bids.dead_letter)] == [0, 1, 2]


def test_live_union_of_two_topics(live: Live) -> None:
    """Columns are matched by name; record ids differ between the topics; each topic has its dead letters."""
    bids = live.topic("bids", schema=BID)
    asks = live.topic("asks", schema="price DOUBLE, id BIGINT NOT NULL, shop STRING")
    out, only = live.topic("out"), live.topic("only")
    live.send(bids, _bid(1), b"bad bid")
    live.send(asks, _bid(2, "b", 3.0), b"bad ask")
    flow = Flow("f")
    first, second = flow.read("bids", bids), flow.read("asks", asks)
    first.union(second).where("price > 0").write("out", out)
    second.select("id").write("only", only)

    live.run(flow)

    found = {record.json["id"]: record for record in live.records(out)}
    assert {number: record.json for number, record in found.items()} == {1: _bid(1), 2: _bid(2, "b", 3.0)}
    assert found[1].headers["flowcore-id"] == f"f/out:{live.topic_id(bids)}:0:0:0".encode()
    assert found[2].headers["flowcore-id"] == f"f/out:{live.topic_id(asks)}:0:0:0".encode()
    assert live.values(only) == [{"id": 2}]
    assert [record.value for record in live.records(bids.dead_letter)] == [b"bad bid"]
    assert [record.value for record in live.records(asks.dead_letter)] == [b"bad ask"]


def test_live_union_of_two_branches(live: Live) -> None:
    """A record of both branches is emitted twice, with two record ids."""
    bids, out = live.topic("bids", schema=BID), live.topic("out")
    live.send(bids, _bid(1, price=5.0), b"bad", _bid(2, price=50.0))
    flow = Flow("f")
    source = flow.read("bids", bids)
    small, all_ = (
        source.where("price < 10").select("id", "'small' as kind"),
        source.select("id", "'all' as kind"),
    )
    small.union(all_).write("out", out)

    live.run(flow)

    records = live.records(out)
    assert sorted((record.json["id"], record.json["kind"]) for record in records) == [
        (1, "all"), (1, "small"), (2, "all"),
    ]  # fmt: skip
    assert len({record.headers["flowcore-id"] for record in records}) == 3
    assert [record.value for record in live.records(bids.dead_letter)] == [b"bad"]


def test_live_branches_write_to_one_topic(live: Live) -> None:
    """Two sinks may write to one topic; the copies of a record have different record ids."""
    bids, out = live.topic("bids", schema=BID), live.topic("out")
    live.send(bids, _bid(1, price=5.0))
    flow = Flow("f")
    source = flow.read("bids", bids)
    source.select("id", "'one' as kind").write("one", out)
    source.select("id", "'two' as kind").write("two", out)

    live.run(flow)

    records = live.records(out)
    assert sorted(record.json["kind"] for record in records) == ["one", "two"]
    assert len({record.headers["flowcore-id"] for record in records}) == 2


def test_live_apply_accepts_any_function(live: Live) -> None:
    """A function that calls Python sees only the good records, with their column names."""
    bids, out = live.topic("bids", schema=BID), live.topic("out")
    live.send(bids, _bid(1, price=5.0), b"bad", _bid(2, price=50.0))

    def keep_expensive(frame: Any) -> Any:
        return frame.mapInPandas(_expensive, "id BIGINT, price DOUBLE")

    flow = Flow("f")
    source = flow.read("bids", bids).select("id", "price * 2 as price")
    source.apply(keep_expensive, schema="id BIGINT, price DOUBLE").where("id > 0").write("out", out)

    live.run(flow)

    assert live.values(out) == [{"id": 2, "price": 100.0}]
    assert [record.value for record in live.records(bids.dead_letter)] == [b"bad"]


def _expensive(frames: Any) -> Any:
    for frame in frames:
        yield frame[frame.price > 20]


def test_live_aggregate_updates_each_key(live: Live) -> None:
    """A key's last value covers all slices; a key without a change emits nothing."""
    bids, best, total = live.topic("bids", schema=BID), live.topic("best"), live.topic("total")
    flow = Flow("f")
    source = flow.read("bids", bids)
    by_shop = source.where("price > 0").aggregate(
        by="shop", best="max(price)", number="count(*)", mean="mean(price)"
    )
    by_shop.select("best", "number", "mean", "shop as place").write("best", best)
    source.aggregate(total="sum(price)").write("total", total)
    slices = [
        [_bid(1, "a", 5.0), _bid(2, "b", 7.0), b"bad", _bid(3, "a", 3.0)],
        [_bid(4, "a", 10.0)],
        [_bid(5, "c", 1.0), _bid(6, "a", -1.0)],
    ]

    seen = []
    for values in slices:
        live.send(bids, *values)
        live.run(flow)
        seen.append(len(live.records(best)))

    assert seen == [2, 3, 4]
    last = {record.key: record.json for record in live.records(best)}
    assert last == {
        b"a": {"best": 10.0, "number": 3, "mean": 6.0, "place": "a"},
        b"b": {"best": 7.0, "number": 1, "mean": 7.0, "place": "b"},
        b"c": {"best": 1.0, "number": 1, "mean": 1.0, "place": "c"},
    }
    assert [(record.key, record.json) for record in live.records(total)][-1] == (b"{}", {"total": 25.0})
    assert [record.value for record in live.records(bids.dead_letter)] == [b"bad"]


def test_live_columns_may_have_names_that_flowcore_uses(live: Live) -> None:
    """A user's columns may have the names of Kafka's columns or of flowcore's internal columns."""
    schema = (
        "topic STRING, `partition` INT, `offset` BIGINT, value STRING, key STRING, record STRING, "
        "_branch INT, _c1 INT"
    )
    names, out, counted = live.topic("names", schema=schema), live.topic("out"), live.topic("counted")
    value = {
        "topic": "t",
        "partition": 5,
        "offset": 6,
        "value": "v",
        "key": "k",
        "record": "r",
        "_branch": 0,
        "_c1": 9,
    }
    live.send(names, value, b"bad")
    flow = Flow("f")
    source = flow.read("names", names)
    source.with_columns(headers="'h'").write("out", out, key="key")
    source.aggregate(by=["topic", "_branch"], _c1="max(_c1)").with_columns(_c2="_c1 + 1").write(
        "counted", counted
    )

    live.run(flow)

    (record,) = live.records(out)
    assert record.json == {**value, "headers": "h"}
    assert record.key == b"k"
    assert record.headers["flowcore-id"] == f"f/out:{live.topic_id(names)}:0:0:0".encode()
    assert live.values(counted) == [{"topic": "t", "_branch": 0, "_c1": 9, "_c2": 10}]
    assert [record.value for record in live.records(names.dead_letter)] == [b"bad"]
