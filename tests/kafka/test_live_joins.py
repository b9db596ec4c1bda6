"""A live join with a committed table gives SQL's result, and bad records bypass it."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flowcore import Flow, Json, Parquet
from flowcore.errors import PlanError
from tests.sampling import sample

pytestmark = pytest.mark.kafka

Live = Any
BID = "id BIGINT NOT NULL, shop STRING, price DOUBLE"
SHOPS = {
    "shop": ["a", "b", "b", "c", None],
    "city": ["Bern", "Basel", "Brig", None, "Nowhere"],
    "rank": [1, 2, 3, 4, 5],
}
BIDS = [
    {"id": 1, "shop": "a", "price": 10.0},
    b"garbage",
    {"id": 2, "shop": "b", "price": 20.0},
    {"shop": "a"},
    {"id": 3, "shop": "zz", "price": 30.0},
    {"id": 4, "shop": None, "price": 40.0},
    None,
    {"id": 5, "shop": "c"},
]
BAD = [BIDS[1], b'{"shop": "a"}', None]

EXPECTED: dict[str, list[tuple[Any, ...]]] = {
    "inner": [(1, "a", "Bern"), (2, "b", "Basel"), (2, "b", "Brig"), (5, "c", None)],
    "left": [
        (1, "a", "Bern"),
        (2, "b", "Basel"),
        (2, "b", "Brig"),
        (3, "zz", None),
        (4, None, None),
        (5, "c", None),
    ],
    "semi": [(1, "a", None), (2, "b", None), (5, "c", None)],
    "anti": [(3, "zz", None), (4, None, None)],
}


def _shops(folder: Path) -> None:
    (folder / "shops").mkdir()
    pq.write_table(pa.table(SHOPS), folder / "shops" / "p.parquet")


@pytest.mark.parametrize("how", sample(EXPECTED, "left"))
def test_live_join_gives_the_result_of_sql(how: Any, live: Live, tmp_path: Path) -> None:
    """Rows with several partners, none or a null key are joined; a bad record is one complete dead letter."""
    _shops(tmp_path)
    bids, out = live.topic("bids", schema=BID), live.topic("out")
    live.send(bids, *BIDS)
    flow = Flow("f")
    shops = flow.read("shops", Parquet("shops", schema="shop STRING, city STRING, rank BIGINT"))
    flow.read("bids", bids).join(shops, on="shop", how=how).write("out", out)

    live.run(flow)

    found = [(value["id"], value.get("shop"), value.get("city")) for value in live.values(out)]
    assert sorted(found, key=str) == sorted(EXPECTED[how], key=str)
    assert [record.value for record in live.records(bids.dead_letter)] == BAD


def test_live_join_with_repeated_keys_gives_distinct_ids(live: Live, tmp_path: Path) -> None:
    """Each output of a record has its own id; with at most one partner, its ordinal is 0.

    The ids of two flows differ in their writer only, and also if they write to one topic.
    """
    _shops(tmp_path)
    bids, once, again = live.topic("bids", schema=BID), live.topic("once"), live.topic("again")
    live.send(bids, *BIDS)

    ids = []
    for name, out in (("first", once), ("second", again)):
        flow = Flow(name)
        shops = flow.read("shops", Parquet("shops", schema="shop STRING, city STRING, rank BIGINT"))
        flow.read("bids", bids).join(shops, on="shop", how="left").write("out", out)
        live.run(flow)
        ids.append({(r.json["id"], r.json.get("city")): r.id for r in live.records(out)})

    topic = live.topic_id(bids)
    assert {key: each.replace("first/out:", "second/out:") for key, each in ids[0].items()} == ids[1]
    assert len(set(ids[0].values())) == len(ids[0]) == 6
    assert ids[0][1, "Bern"] == f"first/out:{topic}:0:0:0"
    assert ids[0][3, None] == f"first/out:{topic}:0:4:0"
    assert ids[0][2, "Basel"] == f"first/out:{topic}:0:2:0"
    assert ids[0][2, "Brig"] == f"first/out:{topic}:0:2:0.shops-1"


@pytest.mark.parametrize("how", sample(["left", "inner"], "left"))
def test_rows_that_replace_others_refuse_a_table_with_repeated_keys(
    how: Any, live: Live, tmp_path: Path
) -> None:
    """The two partners of a row would replace each other. Rows whose key no column says are not refused."""
    _shops(tmp_path)
    bids, out = live.topic("bids", schema=BID), live.topic("out")
    live.send(bids, {"id": 1, "shop": "b"})

    def flow(*columns: str) -> Flow:
        flow = Flow("f")
        shops = flow.read("shops", Parquet("shops", schema="shop STRING, city STRING, rank BIGINT"))
        latest = flow.read("bids", bids).latest(by="id", name="latest").select(*columns)
        latest.join(shops, on="shop", how=how, name="joined").write("out", out, key="shop")
        return flow

    with pytest.raises(PlanError, match=r"'joined': several rows of 'shops' have the same shop.*'latest'"):
        live.run(flow("id", "shop"))
    live.run(flow("shop"))

    assert sorted(record.json["city"] for record in live.records(out)) == ["Basel", "Brig"]


def test_live_joins_in_a_row_give_distinct_ids(live: Live, tmp_path: Path) -> None:
    """Two joins that both multiply give one id per output; key columns may have other names."""
    _shops(tmp_path)
    bids, out = live.topic("bids", schema=BID), live.topic("out")
    live.send(bids, {"id": 1, "shop": "b"}, {"id": 2, "shop": "a"})
    flow = Flow("f")
    shops = flow.read("shops", Parquet("shops", schema="shop STRING, city STRING, rank BIGINT"))
    first = shops.select("shop as name", "city", name="first")
    second = shops.select("SHOP as place", "rank", name="second")
    joined = flow.read("bids", bids).join(first, on={"shop": "name"}).join(second, on={"Shop": "Place"})
    joined.where("rank > 0").write("out", out, key=["ID", "rank"])

    live.run(flow)

    records = live.records(out)
    assert sorted((r.json["id"], r.json["city"], r.json["rank"]) for r in records) == [
        (1, "Basel", 2), (1, "Basel", 3), (1, "Brig", 2), (1, "Brig", 3), (2, "Bern", 1),
    ]  # fmt: skip
    assert len({record.headers["flowcore-id"] for record in records}) == 5
    assert {record.key for record in records if record.json["id"] == 2} == {b'{"id":2,"rank":1}'}


def test_live_join_with_a_table_of_nested_columns(live: Live, tmp_path: Path) -> None:
    """Structs with odd names and arrays of maps are joined, also with repeated keys of unordered rows."""
    (tmp_path / "shops").mkdir()
    (tmp_path / "shops" / "a.json").write_text(
        '{"shop": "a", "at": {"y z": 1}, "tags": [{"k": 1}]}\n{"shop": "a", "at": {"y z": 2}, "tags": []}'
    )
    schema = "shop STRING, at STRUCT<`y z`: INT>, tags ARRAY<MAP<STRING, INT>>"
    bids, out = live.topic("bids", schema=BID), live.topic("out")
    live.send(bids, {"id": 1, "shop": "a"})
    flow = Flow("f")
    shops = flow.read("shops", Json("shops", schema=schema))
    flow.read("bids", bids).join(shops, on="shop").select("id", "at.`y z` as n", "tags").write("out", out)

    live.run(flow)

    assert sorted(value["n"] for value in live.values(out)) == [1, 2]


def test_live_join_with_an_empty_table(live: Live, tmp_path: Path) -> None:
    """The bounded table may be empty: a left join keeps every record."""
    (tmp_path / "shops").mkdir()
    pq.write_table(
        pa.table({"shop": pa.array([], pa.string()), "city": pa.array([], pa.string())}),
        tmp_path / "shops" / "p",
    )
    bids, out = live.topic("bids", schema=BID), live.topic("out")
    live.send(bids, {"id": 1, "shop": "b"})
    flow = Flow("f")
    shops = flow.read("shops", Parquet("shops", schema="shop STRING, city STRING"))
    flow.read("bids", bids).join(shops, on="shop", how="left").write("out", out)

    live.run(flow)

    assert live.values(out) == [{"id": 1, "shop": "b"}]
