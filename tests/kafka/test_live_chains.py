"""Python operators in live queries: bad records and markers bypass them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from flowcore import Flow, KafkaTopic
from flowcore.elements import LatencyMarkerEvent
from flowcore.errors import RunError
from flowcore.kafka.markers import ensure_companion
from flowcore.planner import plan_flow
from flowcore.serializers import LatencyMarkerEventSerializer
from tests.sampling import sample

pytestmark = pytest.mark.kafka

Live = Any
Record = dict[str, Any]
BID = "id BIGINT NOT NULL, shop STRING, price DOUBLE"
EVENTS = LatencyMarkerEventSerializer()


def _bid(number: int, shop: str = "a", price: float | None = 1.0) -> Record:
    return {"id": number, "shop": shop, "price": price}


def _event(number: int) -> bytes:
    return EVENTS.encode(LatencyMarkerEvent(1_000 + number, "test/source", 0))


def _twice(record: Record) -> Record:
    return {"id": record["id"], "twice": record["price"] * 2}


def _copies(record: Record) -> Iterator[Record]:
    for number in range(record["id"]):
        yield {**record, "number": number}


def _ids(live: Live, topic: KafkaTopic) -> dict[str, Record]:
    """Values of a topic by record id."""
    records = live.records(topic)
    found = {record.headers["flowcore-id"].decode(): record.json for record in records}
    assert len(found) == len(records)
    return found


@pytest.mark.parametrize("mode", sample(["slice", "micro-batch"], "slice"))
def test_live_chain_between_native_operators(live: Live, mode: Any) -> None:
    """Bad records and markers bypass a chain; a record keeps its id, and further outputs get their own."""
    bids, out = live.topic("bids", schema=BID), live.topic("out")
    live.send(bids, _bid(1), b"bad", _bid(2, price=500.0), _bid(3), b"{")
    ensure_companion(live.servers, bids.name)
    live.send(KafkaTopic(bids.events), _event(1), b"no event", _event(2))
    live.settings = replace(live.settings, latency_interval=timedelta(hours=1))
    flow = Flow("f")
    cheap = flow.read("bids", bids).where("price < 100")
    doubled = cheap.map(_twice, schema="id BIGINT, twice DOUBLE").filter(lambda r: r["id"] > 0)
    copies = doubled.flat_map(_copies, schema="number INT, id BIGINT, twice DOUBLE", name="copies")
    copies.with_columns(more="twice + 1").write("out", out)
    (query,) = plan_flow(flow, mode, live.settings).live.queries  # type: ignore[union-attr]
    (chain,) = query.chains
    assert [node.name for node in chain.operators] == ["map_1", "filter_1", "copies"]

    if mode == "slice":
        live.run(flow)
    else:
        live.run(flow, mode, until=lambda run: live.wait_for_records(run, out, 4))

    found = _ids(live, out)
    place = f"f/out:{live.topic_id(bids)}:0"
    assert {key: value["number"] for key, value in found.items() if value["id"] == 1} == {f"{place}:0:0": 0}
    third = {key: value["number"] for key, value in found.items() if value["id"] == 3}
    assert sorted(third.values()) == [0, 1, 2]
    assert third[f"{place}:3:0"] == 0
    assert all(key.startswith(f"{place}:3:0") for key in third)
    assert all(value["twice"] == 2.0 and value["more"] == 3.0 for value in found.values())
    dead_letters = live.records(bids.dead_letter)
    # Data and companion topic are two partitions: their bad messages may arrive in any order.
    found = {(record.value, int(record.headers["flowcore-offset"])) for record in dead_letters}
    assert found == {(b"bad", 1), (b"{", 4), (b"no event", 1)}
    assert len(dead_letters) == len(found)
    markers = [record.value for record in live.records(out.events)]
    assert [m for m in markers if EVENTS.decode(m).operator_id == "test/source"] == [_event(1), _event(2)]


def test_live_record_ids_are_the_same_in_a_second_run(live: Live) -> None:
    """A reader can drop records that a restart repeats."""
    bids, out = live.topic("bids", schema=BID), live.topic("out")
    live.send(bids, _bid(3), _bid(2))
    flow = Flow("f")
    flow.read("bids", bids).flat_map(_copies, schema=f"{BID}, number INT").write("out", out)
    live.run(flow)
    first = _ids(live, out)
    live.settings = replace(live.settings, state_dir=live.settings.state_dir / "new")

    live.run(flow)

    records = live.records(out)
    assert len(first) == 5
    assert len(records) == 10
    assert {record.headers["flowcore-id"].decode(): record.json for record in records} == first


def test_live_fan_out_within_a_chain(live: Live, tmp_path: Any) -> None:
    """Two sinks after a Python function call it once; a native branch of the source has its own query."""
    bids = live.topic("bids", schema=BID)
    small, large, all_ = live.topic("small"), live.topic("large"), live.topic("all")
    live.send(bids, _bid(1, price=5.0), b"bad", _bid(2, price=50.0), _bid(3, "b", 7.0))
    calls = tmp_path / "calls"

    def note(record: Record) -> Record:
        with calls.open("a") as file:
            file.write("x")
        return record

    flow = Flow("f")
    source = flow.read("bids", bids)
    noted = source.map(note, schema=BID)
    noted.filter(lambda r: r["price"] < 10).write("small", small)
    noted.map(_twice, schema="id BIGINT, twice DOUBLE").where("twice > 50").write("large", large)
    source.select("id", "upper(shop) as shop").write("all", all_)
    stage = plan_flow(flow, "slice", live.settings).live
    assert stage
    assert [len(query.chains) for query in stage.queries] == [0, 1]

    live.run(flow)

    assert live.values(small) == [_bid(1, price=5.0), _bid(3, "b", 7.0)]
    assert live.values(large) == [{"id": 2, "twice": 100.0}]
    assert live.values(all_) == [{"id": 1, "shop": "A"}, {"id": 2, "shop": "A"}, {"id": 3, "shop": "B"}]
    assert calls.read_text() == "xxx"
    topic = live.topic_id(bids)
    assert set(_ids(live, small)) == {f"f/small:{topic}:0:0:0", f"f/small:{topic}:0:3:0"}
    assert set(_ids(live, all_)) == {f"f/all:{topic}:0:{offset}:0" for offset in (0, 2, 3)}
    assert [record.value for record in live.records(bids.dead_letter)] == [b"bad"]


def test_live_batch_function_numbers_its_outputs_by_the_first_record(live: Live) -> None:
    """Its rows have the id of the first record of their batch, and a number after the first row."""
    bids, summed, all_ = live.topic("bids", schema=BID), live.topic("summed"), live.topic("all")
    live.send(bids, _bid(1, price=5.0), b"bad", _bid(2, price=50.0))

    def total(batch: pa.RecordBatch) -> pa.RecordBatch:
        prices: list[Any] = batch["price"].to_pylist()
        return pa.RecordBatch.from_pydict({"total": [sum(prices), 0.0], "rows": [len(prices), 0]})

    flow = Flow("f")
    source = flow.read("bids", bids)
    source.map_batches(total, schema="total DOUBLE, rows BIGINT", uses=["price"]).write("summed", summed)
    source.filter(lambda r: r["id"] > 1).write("all", all_)

    live.run(flow)

    topic = live.topic_id(bids)
    assert _ids(live, summed) == {
        f"f/summed:{topic}:0:0:0": {"total": 55.0, "rows": 2},
        f"f/summed:{topic}:0:0:0.0-1": {"total": 0.0, "rows": 0},
    }
    assert _ids(live, all_) == {f"f/all:{topic}:0:2:0": _bid(2, price=50.0)}
    assert [record.value for record in live.records(bids.dead_letter)] == [b"bad"]


def test_live_batch_function_that_fails_for_a_record(live: Live) -> None:
    """That record is a dead letter with the bytes of its message, and the function gets the others again."""
    bids, roots = live.topic("bids", schema=BID), live.topic("roots")
    prices = [4.0, 9.0, -1.0, 25.0]
    live.send(bids, *(_bid(number, price=price) for number, price in enumerate(prices)))

    def root(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"root": [math.sqrt(price.as_py()) for price in batch["price"]]})

    flow = Flow("f")
    source = flow.read("bids", bids)
    source.map_batches(root, schema="root DOUBLE", name="root").write("roots", roots)

    live.run(flow)

    assert sorted(value["root"] for value in live.values(roots)) == [2.0, 3.0, 5.0]
    assert len(_ids(live, roots)) == 3
    (dead,) = live.records(bids.dead_letter)
    assert json.loads(dead.value) == _bid(2, price=-1.0)
    assert dead.headers["flowcore-offset"] == b"2"
    assert b"operator 'root'" in dead.headers["flowcore-reason"]
    assert b"ValueError" in dead.headers["flowcore-reason"]


def test_live_chain_before_state(live: Live) -> None:
    """A chain runs after a union of two topics and before an aggregate."""
    bids, asks, out = live.topic("bids", schema=BID), live.topic("asks", schema=BID), live.topic("out")
    live.send(bids, _bid(1), _bid(2, "b"))
    live.send(asks, _bid(3, price=7.0), b"bad")
    flow = Flow("f")
    both = flow.read("bids", bids).union(flow.read("asks", asks))
    doubled = both.map(lambda r: {**r, "price": r["price"] * 2}, schema=BID)
    doubled.aggregate(by="shop", best="max(price)").write("out", out)

    live.run(flow)

    assert {value["shop"]: value["best"] for value in live.values(out)} == {"a": 14.0, "b": 2.0}
    assert [record.value for record in live.records(asks.dead_letter)] == [b"bad"]


def test_live_tagged_elements_keep_their_timestamps(live: Live) -> None:
    """An output has the timestamp of its record, whatever a function returns."""
    bids, out = live.topic("bids", schema=BID), live.topic("out", elements="tagged", headers=True)
    live.send(bids, _bid(1), _bid(2), times_ms=[1_700_000_000_001, 1_700_000_000_002])
    flow = Flow("f")
    flow.read("bids", bids).flat_map(_copies, schema=f"{BID}, number INT").write("out", out)

    live.run(flow)

    times = [
        (r.json["id"], int.from_bytes(r.headers["flowcore-element"][1:9], "big")) for r in live.records(out)
    ]
    assert times == [(1, 1_700_000_000_001), (2, 1_700_000_000_002), (2, 1_700_000_000_002)]


def _picky(record: Record) -> Record:
    if record["price"] is None:
        raise LookupError(record["id"])
    return {**record, "price": "much" if record["price"] > 1000 else record["price"]}


def _dead_letters(live: Live, topic: KafkaTopic) -> dict[int, tuple[bytes | None, str, str, str]]:
    """Bytes, operator, stage and reason of each dead letter, by offset."""
    names = ("flowcore-operator", "flowcore-stage", "flowcore-reason")
    dead_letters = live.records(topic.dead_letter)
    found = {
        int(record.headers["flowcore-offset"]): (record.value, *(record.headers[n].decode() for n in names))
        for record in dead_letters
    }
    assert len(found) == len(dead_letters)
    assert all(int(record.headers["flowcore-timestamp"]) > 0 for record in dead_letters)
    return found  # type: ignore[return-value]


def test_live_record_whose_function_raises_is_a_dead_letter(live: Live) -> None:
    """A dead letter has the message's bytes, the operator and the reason; other records and markers pass."""
    bids, out, copies = live.topic("bids", schema=BID), live.topic("out"), live.topic("copies")
    odd = b' { "price":null, "id":3,"shop" : "a"} '
    live.send(
        bids, _bid(1), b"bad", _bid(2), odd, _bid(4, price=5e3), _bid(5, price=60.0), _bid(6, price=5e3)
    )
    ensure_companion(live.servers, bids.name)
    live.send(KafkaTopic(bids.events), _event(1))
    live.settings = replace(live.settings, latency_interval=timedelta(hours=1))
    flow = Flow("f")
    checked = flow.read("bids", bids).map(_picky, schema=BID, name="picky")
    checked.write("out", out)
    checked.flat_map(lambda r: [r, r], schema=BID, name="twice").write("copies", copies)

    live.run(flow)

    assert [value["id"] for value in live.values(out)] == [1, 2, 5]
    assert sorted(value["id"] for value in live.values(copies)) == [1, 1, 2, 2, 5, 5]
    found = _dead_letters(live, bids)
    assert set(found) == {1, 3, 4, 6}
    assert found[1][:3] == (b"bad", "bids", "read")
    assert found[3][:3] == (odd, "picky", "function")
    assert "LookupError: 3" in found[3][3]
    assert f"{bids.name}[0]@3" in found[3][3]
    assert found[4][1:3] == ("picky", "function")
    assert "emits price='much'" in found[4][3]
    markers = [record.value for record in live.records(out.events)]
    assert [m for m in markers if EVENTS.decode(m).operator_id == "test/source"] == [_event(1)]


def test_live_record_keeps_its_bytes_for_a_later_chain(live: Live) -> None:
    """The dead letter of a later chain has the source record's bytes, not an earlier function's output."""
    bids, out = live.topic("bids", schema=BID), live.topic("out")
    live.send(bids, _bid(0), _bid(1), _bid(2))
    flow = Flow("f")
    some = flow.read("bids", bids).filter(lambda r: r["id"] < 2)
    inverse = some.select("id * 10 as id", "shop").map(
        lambda r: {"id": r["id"], "inverse": 1 / r["id"]}, schema="id BIGINT, inverse DOUBLE", name="inverse"
    )
    inverse.write("out", out)

    live.run(flow)

    assert live.values(out) == [{"id": 10, "inverse": 0.1}]
    assert {offset: record[:3] for offset, record in _dead_letters(live, bids).items()} == {
        0: (live.records(bids)[0].value, "inverse", "function")
    }


@pytest.mark.thorough
def test_live_failure_stops_the_query_with_on_error_fail(live: Live) -> None:
    """on_error='fail' of one topic also applies downstream of a union with a topic of dead letters."""
    bids = live.topic("bids", schema=BID, on_error="fail")
    asks, out = live.topic("asks", schema=BID), live.topic("out")
    live.send(asks, _bid(7, price=None), _bid(8))
    live.send(bids, _bid(1), _bid(2, price=None))
    flow = Flow("f")
    both = flow.read("bids", bids).union(flow.read("asks", asks))
    both.map(_twice, schema="id BIGINT, twice DOUBLE", name="double").write("out", out)

    with pytest.raises(RunError, match=rf"operator 'double': .*TypeError.*{bids.name}\[0\]@1"):
        live.run(flow)


def test_live_failure_before_state_stops_the_query(live: Live) -> None:
    """A query with state can write only groups, so a failing record upstream of state stops it."""
    bids, out = live.topic("bids", schema=BID), live.topic("out")
    live.send(bids, _bid(1), _bid(2, price=None))
    flow = Flow("f")
    doubled = flow.read("bids", bids).map(_twice, schema="id BIGINT, twice DOUBLE", name="double")
    doubled.aggregate(by="id", top="max(twice)").write("out", out)

    with pytest.raises(RunError, match=rf"operator 'double': .*TypeError.*{bids.name}\[0\]@1"):
        live.run(flow)
