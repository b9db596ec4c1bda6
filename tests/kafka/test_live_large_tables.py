"""A stream is joined by a shuffle with a table that does not fit in memory, and gives the same results."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flowcore import Flow, KafkaTopic, Parquet, Tumbling
from flowcore.elements import Record, StreamElement, Watermark
from flowcore.planner import plan_flow
from flowcore.serializers import TaggedSerializer
from flowcore.serializers.formats import RawFormat
from flowcore.spark.context import Context
from flowcore.spark.results.store import ResultStore
from flowcore.spark.run.flow import run_plan
from tests.sampling import sample
from tests.waiting import run_until

pytestmark = pytest.mark.kafka

Live = Any
TAGGED: TaggedSerializer[bytes] = TaggedSerializer(RawFormat())
BID = "id BIGINT NOT NULL, shop STRING"
KINDS: tuple[Any, ...] = ("inner", "left", "semi", "anti")


def _write_shops(tmp_path: Path, cities: dict[str, list[str]], copies: int = 1) -> None:
    (tmp_path / "shops").mkdir(exist_ok=True)
    rows = [
        {"shop": f"{shop}{copy or ''}", "city": city}
        for copy in range(copies)
        for shop, found in cities.items()
        for city in found
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "shops" / "p.parquet")


def _flow(bids: KafkaTopic, outs: dict[str, KafkaTopic]) -> Flow:
    flow = Flow("large")
    shops = flow.read("shops", Parquet("shops", schema="shop STRING, city STRING"))
    source = flow.read("bids", bids)
    for how, out in outs.items():
        source.join(shops, on="shop", how=how).write(how, out)  # type: ignore[arg-type]
    return flow


def test_shuffled_tables_give_the_results_of_broadcast_ones(live: Live, tmp_path: Path) -> None:
    """Keys that repeat, are null or have no partner, and bad records: values and ids are the same."""
    _write_shops(tmp_path, {"a": ["Bern"], "b": ["Basel", "Brig"], "c": ["Chur"]})
    bids = live.topic("bids", schema=BID)
    rows = [{"id": n, "shop": shop} for n, shop in enumerate(["a", "b", "zz", None, "c", "b"] * 3)]
    live.send(bids, *rows, b"garbage", partitions=2)
    found = []
    for limit in (1 << 20, 1):
        state = tmp_path / f"state-{limit}"
        live.settings = replace(live.settings, state_dir=state, max_broadcast_bytes=limit)
        outs = {how: live.topic(f"{how}-{limit}") for how in KINDS}
        live.run(_flow(bids, outs))
        found.append({how: sorted((r.id, r.value) for r in live.records(out)) for how, out in outs.items()})

    broadcast, shuffled = found
    assert {how: len(records) for how, records in broadcast.items()} == {
        "inner": 18, "left": 24, "semi": 12, "anti": 6,
    }  # fmt: skip
    assert shuffled == broadcast
    assert [record.value for record in live.records(bids.dead_letter)] == [b"garbage"] * 2


def test_a_table_that_outgrows_its_limit_is_shuffled_from_then_on(live: Live, tmp_path: Path) -> None:
    """The query leaves real-time mode with it. The table is distributed once, not in each batch."""
    _write_shops(tmp_path, {"a": ["Bern"]})
    bids, out = live.topic("bids", schema=BID), live.topic("out")
    live.send(bids, {"id": 0, "shop": "a"}, partitions=2)
    flow = _flow(bids, {"left": out})
    store = ResultStore(live.settings.state_dir, "large")
    _commit(live, flow)
    limit = store.table_bytes(["shops"])["shops"]
    quick = {"realtime_batch": timedelta(seconds=5), "metrics_interval": timedelta(milliseconds=500)}
    live.settings = replace(live.settings, max_broadcast_bytes=limit, **quick)

    def follow(run: Any) -> None:
        live.wait_for_records(run, out, 1)
        assert run.modes == {"bids": "realtime"}
        _write_shops(tmp_path, {"a": ["Biel"], "b": ["Basel", "Brig"]}, copies=1_000)
        _commit(live, flow)
        run_until(run, lambda: run.modes == {"bids": "micro-batch"})
        for number, shop in enumerate(("a", "b", "b999", "zz"), 1):
            live.send(bids, {"id": number, "shop": shop}, partitions=2)
            live.wait_for_records(run, out, {1: 2, 2: 4, 3: 6, 4: 7}[number])
        physical = run.running["bids"]._jsq.explainInternal(False)
        batch, _, table = physical.partition("InMemoryRelation")
        assert "SortMergeJoin" in batch
        assert batch.count("Exchange hashpartitioning") == 1
        assert "Exchange hashpartitioning" in table
        (switch,) = run.health().switches
        assert (switch.before, switch.after) == ("realtime", "micro-batch")
        assert re.search(r"of stage 'shops' was committed; shops has [\d,]+ bytes, more than", switch.reason)
        assert "so it is joined by a shuffle" in switch.reason

    live.run(flow, None, follow)

    found = [(value["id"], value.get("city")) for value in live.values(out)]
    assert sorted(found, key=str) == [
        (0, "Bern"), (1, "Biel"), (2, "Basel"), (2, "Brig"), (3, "Basel"), (3, "Brig"), (4, None),
    ]  # fmt: skip


@pytest.mark.parametrize("upstream", sample(["topic", "window"], "window"))
def test_records_are_on_time_downstream_of_a_shuffled_table(
    live: Live, tmp_path: Path, upstream: str
) -> None:
    """The join scatters a partition over tasks: records and watermarks are in order again downstream.

    The first records have one shop, so that the task of the others begins far behind.
    """
    live.settings = replace(live.settings, max_broadcast_bytes=1)
    shops = ["s0"] * 4 + [f"s{number}" for number in range(4, 20)]
    _write_shops(tmp_path, {shop: ["Bern"] for shop in shops})
    source = live.topic("bids", schema=BID, elements="tagged")
    counts, late = (live.topic(name, elements="plain") for name in ("counts", "late"))
    elements: list[StreamElement[bytes]] = []
    for number, shop in enumerate(shops):
        content = json.dumps({"id": number, "shop": shop}).encode()
        elements += [Record(content, number * 1000), Watermark(number * 1000)]
    live.send(source, *map(TAGGED.encode, [*elements, Watermark(60_000)]))
    flow = Flow("large")
    table = flow.read("shops", Parquet("shops", schema="shop STRING, city STRING"))
    bids = flow.read("bids", source)
    if upstream == "window":
        bids = bids.window(Tumbling(1), by="shop", name="first").aggregate(id="max(id)").select("shop", "id")
    seconds = bids.join(table, on="shop", how="left").window(
        Tumbling(1), by="city", late="side-output", name="per_city"
    )
    found = seconds.aggregate(n="count(*)", last="max(id)")
    found.select("city", "n", "last").write("counts", counts)
    found.late.select("id").write("late", late)

    live.run(flow)

    assert live.values(late) == []
    rows = sorted((row["last"], row["n"], row["city"]) for row in live.values(counts))
    assert rows == [(number, 1, "Bern") for number in range(len(shops))]


def test_order_of_arrival_is_kept_downstream_of_a_shuffled_table(live: Live, tmp_path: Path) -> None:
    """The records of a key arrive with different keys of the join, and so from different tasks."""
    live.settings = replace(live.settings, max_broadcast_bytes=1)
    _write_shops(tmp_path, {f"s{number}": ["Bern"] for number in range(20)})
    source, out = live.topic("bids", schema=BID), live.topic("out")
    shops = [f"s{number * 7 % 20}" for number in range(60)]
    live.send(source, *({"id": 1, "shop": shop} for shop in shops))
    flow = Flow("large")
    table = flow.read("shops", Parquet("shops", schema="shop STRING, city STRING"))
    joined = flow.read("bids", source).join(table, on="shop", how="left")
    joined.reduce(_follow, by="id", schema=f"{BID}, city STRING", name="seen").write(
        "out", replace(out, key="id")
    )

    live.run(flow)

    last = live.values(out)[-1]
    assert (last["shop"], last["city"]) == (" ".join(shops), "Bern")


def _follow(kept: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    return {**new, "shop": f"{kept['shop']} {new['shop']}"}


def _commit(live: Live, flow: Flow) -> None:
    context = Context(live.spark, live.settings, flow.name)
    run_plan(replace(plan_flow(flow, None, live.settings), live=None), context)
