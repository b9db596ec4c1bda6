"""In real-time mode a record passes at once, with the same operators and dead letters."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flowcore import Flow, Parquet
from flowcore.planner import plan_flow
from tests.sampling import sample
from tests.waiting import run_until

pytestmark = pytest.mark.kafka

Live = Any
BID = "id BIGINT NOT NULL, shop STRING, price DOUBLE"


def test_realtime_gives_the_results_of_micro_batch_at_once(live: Live, tmp_path: Path) -> None:
    """Join, fan-out, union of branches, running aggregate and dead letters all run within one batch."""
    (tmp_path / "shops").mkdir()
    pq.write_table(pa.table({"shop": ["a", "a"], "city": ["Bern", "Biel"]}), tmp_path / "shops" / "p.parquet")
    bids, out, united, best = (
        live.topic("bids", schema=BID), live.topic("out"), live.topic("united"), live.topic("best"),
    )  # fmt: skip
    flow = Flow("f")
    source = flow.read("bids", bids)
    shops = flow.read("shops", Parquet("shops", schema="shop STRING, city STRING"))
    source.join(shops, on="shop", how="left").drop("price").write("out", out)
    source.where("price > 5").union(source.select("id", "lower(shop) as shop", "price")).write(
        "united", united
    )
    source.aggregate(by="shop", best="max(price)").write("best", best)
    stage = plan_flow(flow).live
    assert stage
    assert {query.mode.value for query in stage.queries} == {"realtime"}
    live.send(bids, {"id": 1, "shop": "a", "price": 1.0}, b"bad")

    def follow(run: Any) -> None:
        for number in (2, 3):
            # The second record is sent after the first has arrived, within one batch.
            run_until(run, lambda number=number: len(live.records(out)) >= number)
            live.send(bids, {"id": number, "shop": "b", "price": 10.0 * number})
        run_until(run, lambda: len(live.records(out)) == 4 and len(live.records(united)) == 5)
        run_until(run, lambda: len(live.records(best)) == 3 and len(live.records(bids.dead_letter)) == 1)

    live.run(flow, None, follow)

    found = {(r.json["id"], r.json.get("city")): r.headers["flowcore-id"] for r in live.records(out)}
    assert set(found) == {(1, "Bern"), (1, "Biel"), (2, None), (3, None)}
    assert len(set(found.values())) == 4
    assert [value["id"] for value in live.values(united)].count(1) == 1
    assert {r.key: r.json["best"] for r in live.records(best)} == {b"a": 1.0, b"b": 30.0}
    counts = sorted((r.key, int(r.id.rpartition(":")[2])) for r in live.records(best))
    assert counts == [(b"a", 1), (b"b", 1), (b"b", 2)]
    assert [record.value for record in live.records(bids.dead_letter)] == [b"bad"]


@pytest.mark.parametrize("mode", sample(["slice", "micro-batch", "realtime"], "micro-batch"))
def test_aggregate_that_was_stopped_in_its_first_realtime_batch_continues_in_any_mode(
    live: Live, mode: Any
) -> None:
    """Its state was not committed. Spark refuses it for ever if the next batch is a micro-batch."""
    sales, totals = live.topic("sales", schema="id BIGINT NOT NULL, amount BIGINT"), live.topic("totals")
    flow = Flow("sums")
    flow.read("sales", sales).aggregate(by="id", total="sum(amount)").write("totals", totals)
    live.send(sales, *({"id": number % 3, "amount": number} for number in range(30)))

    def has_totals(last: int) -> bool:
        found = {row["id"]: row["total"] for row in live.values(totals)}
        return found == {key: sum(range(key, last, 3)) for key in range(3)}

    live.run(flow, "realtime", lambda run: run_until(run, lambda: has_totals(30)))
    live.send(sales, *({"id": number % 3, "amount": number} for number in range(30, 60)))
    live.run(flow, mode, None if mode == "slice" else lambda run: run_until(run, lambda: has_totals(60)))

    assert has_totals(60)
