"""A record id is the same for the same output of the same input, and for no other."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flowcore import Flow, KafkaTopic, OperatorAttributesBuilder, Parquet, Stream
from flowcore.spark.results.store import ResultStore

pytestmark = pytest.mark.kafka

Live = Any
BID = "id BIGINT, shop STRING, price DOUBLE"
IDEMPOTENT = OperatorAttributesBuilder().set_output_idempotent(True)


def _bid(number: int, shop: str) -> dict[str, Any]:
    return {"id": number, "shop": shop, "price": float(number)}


def test_ids_do_not_depend_on_other_operators(live: Live, tmp_path: Path) -> None:
    """An operator that is added upstream of a join changes no id, nor does a second sink of the topic."""
    (tmp_path / "shops").mkdir()
    pq.write_table(
        pa.table({"shop": ["a", "a", "b"], "city": ["Bern", "Biel", "Basel"]}), tmp_path / "shops/p"
    )
    bids, out = live.topic("bids", schema=BID), live.topic("out")
    live.send(bids, _bid(1, "a"), _bid(2, "b"))

    def ids(*, changed: bool) -> set[str]:
        live.settings = replace(live.settings, state_dir=tmp_path / f"state-{changed}")
        flow = Flow("f")
        shops = flow.read("shops", Parquet("shops", schema="shop STRING, city STRING"))
        read = flow.read("bids", bids)
        if changed:
            read.where("id > 5").write("second", out)
        before: Stream = read.with_columns(more="id + 1") if changed else read
        before.join(shops, on="shop").write("out", out)
        seen = len(live.records(out)) if changed else 0
        live.run(flow)
        return {record.id for record in live.records(out)[seen:]}

    topic = live.topic_id(bids)
    assert ids(changed=False) == {f"f/out:{topic}:0:{place}" for place in ("0:0", "0:0.shops-1", "1:0")}
    assert ids(changed=True) == {f"f/out:{topic}:0:{place}" for place in ("0:0", "0:0.shops-1", "1:0")}


def test_repeated_batch_of_an_aggregate_repeats_its_ids(live: Live) -> None:
    """An id names the key and the batch: a later update of the key has another id."""
    bids, out = live.topic("bids", schema=BID), live.topic("out")
    flow = Flow("f")
    found = flow.read("bids", bids).aggregate(by="shop", n="count(*)").with_columns(twice="n * 2")
    found.write("out", out)
    live.send(bids, _bid(1, "a"), _bid(2, "b"), _bid(3, "a"))
    live.run(flow)
    live.send(bids, _bid(4, "a"))
    live.run(flow)
    first = {record.id: record.json for record in live.records(out)}
    assert sorted(value["n"] for value in first.values()) == [1, 2, 3]

    live.forget_last_batch("f", "out")
    live.run(flow)

    records = live.records(out)
    assert len(records) == 4
    assert {record.id: record.json for record in records} == first
    (id_of_a,) = (key for key, value in first.items() if value["n"] == 2)
    assert id_of_a.startswith(f"f/out:{live.topic_id(bids)}:")
    assert ':{"shop":"a"}:' in id_of_a


def test_bounded_stage_that_runs_again_repeats_its_ids(live: Live, tmp_path: Path) -> None:
    """Equal rows are numbered; other input gives other ids."""
    bids, out = live.topic("bids", schema=BID, until="latest"), live.topic("out")
    live.send(bids, _bid(1, "a"), _bid(1, "a"), _bid(2, "b"))
    flow = Flow("f")
    flow.read("bids", bids).write("out", out)
    live.run(flow)
    first = {record.id: record.json for record in live.records(out)}
    live.settings = replace(live.settings, state_dir=tmp_path / "new")
    live.run(flow)
    again = live.records(out)[3:]
    live.send(bids, _bid(3, "c"))
    live.run(flow)

    assert len(first) == 3
    assert {record.id: record.json for record in again} == first
    assert not {record.id for record in live.records(out)[6:]} & set(first)


def _shops(tmp_path: Path, **columns: list[str]) -> None:
    (tmp_path / "shops").mkdir(exist_ok=True)
    pq.write_table(pa.table(columns), tmp_path / "shops/p")


def _joined(bids: KafkaTopic, out: KafkaTopic, **buffered: Any) -> Flow:
    flow = Flow("f")
    shops = flow.read("shops", Parquet("shops", schema="shop STRING, city STRING"))
    found = flow.read("bids", bids).join(shops, on="shop").select("id", "city")
    if buffered:
        found = found.map(dict, schema="id BIGINT, city STRING", key="id", attributes=IDEMPOTENT, **buffered)
    found.write("out", out)
    return flow


def test_repeated_batch_joins_the_version_that_it_began_with(live: Live, tmp_path: Path) -> None:
    """Values and ids are repeated although a newer version was committed, which new records join."""
    bids, out = live.topic("bids", schema=BID), live.topic("out")
    _shops(tmp_path, shop=["a"], city=["Bern"])
    live.send(bids, _bid(1, "a"))
    live.run(_joined(bids, out))
    live.forget_last_batch("f", "bids")
    _shops(tmp_path, shop=["a", "a"], city=["Basel", "Biel"])

    live.run(_joined(bids, out))

    first, again = live.records(out)
    assert (again.json, again.headers) == (first.json, first.headers)
    live.send(bids, _bid(2, "a"))
    live.run(_joined(bids, out))
    assert sorted(value["city"] for value in live.values(out)[2:]) == ["Basel", "Biel"]


@pytest.mark.thorough
def test_joined_key_that_begins_to_repeat_does_not_stop_a_buffer(live: Live, tmp_path: Path) -> None:
    """The layout of its state is the same whether keys of the joined table repeat or not."""
    bids, out = live.topic("bids", schema=BID), live.topic("out")
    for number, cities in ((1, ["Bern"]), (2, ["Basel", "Biel"])):
        _shops(tmp_path, shop=["a"] * len(cities), city=cities)
        live.send(bids, _bid(number, "a"))
        live.run(_joined(bids, out, flush=timedelta(hours=1)))

    found = {value["id"]: value["city"] for value in live.values(out)}
    assert found.pop(1) == "Bern"
    assert set(found) == {2}


def test_start_continues_with_its_last_version_if_the_newest_cannot_be_joined(
    live: Live, tmp_path: Path
) -> None:
    """A result that lost a column does not stop the query at each start."""
    bids, out = live.topic("bids", schema=BID), live.topic("out")
    _shops(tmp_path, shop=["a"], city=["Bern"])
    live.send(bids, _bid(1, "a"))
    live.run(_joined(bids, out))
    folder = ResultStore(live.settings.state_dir, "f").folder("shops")
    good = folder.manifest()
    assert good is not None
    table = replace(good.tables["shops"], schema=(("shop", "string"), ("town", "string")))
    replace(good, tables={"shops": table}, version="29990101T000000-bad").write(folder.manifest_path)
    live.send(bids, _bid(2, "a"))

    live.run(_joined(bids, out))

    versions = {record.headers["flowcore-bounded-version"].decode() for record in live.records(out)}
    assert versions == {good.version}
    assert [value["city"] for value in live.values(out)] == ["Bern", "Bern"]


def test_union_of_two_reads_of_one_topic_gives_each_copy_its_own_id(live: Live) -> None:
    """Each read has a frame of its own; those of another topic keep their ids."""
    bids, others, out = live.topic("bids", schema=BID), live.topic("others", schema=BID), live.topic("out")
    live.send(bids, _bid(1, "a"), _bid(2, "a"), _bid(3, "a"))
    live.send(others, _bid(4, "b"))
    flow = Flow("f")
    first, second = (flow.read(name, bids).where(f"price > {n}") for n, name in enumerate("xy", 1))
    first.union(second).union(flow.read("z", others)).write("out", out)

    live.run(flow)

    records = live.records(out)
    found = sorted((record.json["id"], record.id) for record in records)
    topic, other = live.topic_id(bids), live.topic_id(others)
    assert found == [
        (2, f"f/out:{topic}:0:1:0"), (3, f"f/out:{topic}:0:2:0"), (3, f"f/out:{topic}:0:2:0.1-1"),
        (4, f"f/out:{other}:0:0:0"),
    ]  # fmt: skip
