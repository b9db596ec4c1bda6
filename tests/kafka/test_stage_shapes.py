"""Results are right for every combination of bounded and unbounded parts."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flowcore import Flow, KafkaTopic, Parquet
from flowcore.planner import plan_flow
from flowcore.spark.topics import sources

pytestmark = pytest.mark.kafka

Live = Any
SALES = {"shop": ["a", "a", "b", "c", "c", "c"], "price": [1.0, 3.0, 10.0, 2.0, 4.0, 6.0]}
BIDS = [{"id": 1, "shop": "a"}, {"id": 2, "shop": "b"}, {"id": 3, "shop": "c"}]


@pytest.fixture(autouse=True)
def _sales(tmp_path: Path) -> None:
    (tmp_path / "sales").mkdir()
    pq.write_table(pa.table(SALES), tmp_path / "sales" / "p.parquet")


def _bids(live: Live) -> KafkaTopic:
    topic: KafkaTopic = live.topic("bids", schema="id BIGINT, shop STRING")
    live.send(topic, *BIDS)
    return topic


def _rows(live: Live, topic: KafkaTopic, *columns: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(value.get(column) for column in columns) for value in live.values(topic))


def test_stream_joins_a_diamond_of_nested_aggregates(live: Live) -> None:
    """Each shop's share is its total joined with the total of totals."""
    out = live.topic("out")
    flow = Flow("f")
    totals = flow.read("sales", Parquet("sales", schema="shop STRING, price DOUBLE")).aggregate(
        by="shop", total="sum(price)"
    )
    whole = totals.aggregate(whole="sum(total)").with_columns(one="1")
    shares = totals.with_columns(one="1").join(whole, on="one").select("shop", "total / whole as share")
    flow.read("bids", _bids(live)).join(shares, on="shop").select("id", "share").write("out", out)

    live.run(flow)

    (stage,) = plan_flow(flow).bounded
    assert len([node for node in stage.operators if node.attributes().output_only_at_end]) == 2
    assert _rows(live, out, "id", "share") == [(1, 4 / 26), (2, 10 / 26), (3, 12 / 26)]


def test_two_streams_join_the_same_result(live: Live) -> None:
    """Of two parallel stages, the first one's table is joined by a stream with state and by one without."""
    bids, asks = _bids(live), live.topic("asks", schema="id BIGINT, shop STRING")
    live.send(asks, {"id": 7, "shop": "b"})
    top, plain = live.topic("top"), live.topic("plain")
    flow = Flow("f")
    dearest = flow.read("sales", Parquet("sales", schema="shop STRING, price DOUBLE")).aggregate(
        by="shop", dearest="max(price)", name="dearest"
    )
    counts = flow.read("again", Parquet("sales", schema="shop STRING, price DOUBLE")).aggregate(
        by="shop", n="count(*)", name="counts"
    )
    flow.read("bids", bids).join(dearest, on="shop").aggregate(by="dearest", n="count(*)").write("top", top)
    both = flow.read("asks", asks).join(dearest, on="shop").join(counts, on="shop")
    both.write("plain", plain)

    live.run(flow)

    assert [stage.name for stage in plan_flow(flow).bounded] == ["dearest", "counts"]
    assert _rows(live, top, "dearest", "n") == [(3.0, 1), (6.0, 1), (10.0, 1)]
    assert _rows(live, plain, "id", "dearest", "n") == [(7, 10.0, 1)]


def test_flow_without_a_bounded_part_starts_at_once(live: Live) -> None:
    """The plan consists of the live stage only."""
    out = live.topic("out")
    flow = Flow("f")
    flow.read("bids", _bids(live)).where("id > 1").write("out", out)

    live.run(flow)

    assert plan_flow(flow).stages == (plan_flow(flow).live,)
    assert _rows(live, out, "id", "shop") == [(2, "b"), (3, "c")]


def test_records_that_arrive_while_a_stage_starts_are_left_to_the_next_run(
    live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run reads what the version of its input says, wherever the topic ends by then."""
    flow, topic = Flow("f"), _bids(live)
    bids = flow.read("bids", KafkaTopic(topic.name, schema=topic.schema, until="latest"))
    bids.write("copy", Parquet("copy"))
    identify = sources.identify_topics

    def late(servers: str, topics: list[str]) -> Any:
        live.send(topic, {"id": 4, "shop": "d"})
        return identify(servers, topics)

    monkeypatch.setattr(sources, "identify_topics", late)

    live.run(flow)

    assert sorted(pq.read_table(tmp_path / "copy").column("id").to_pylist()) == [1, 2, 3]


def test_flow_without_a_stream_runs_its_bounded_stages(live: Live, tmp_path: Path) -> None:
    """The plan has no live stage; a bounded topic is read to its end."""
    flow = Flow("f")
    topic = _bids(live)
    bids = flow.read("bids", KafkaTopic(topic.name, schema=topic.schema, until="latest"))
    bids.aggregate(by="shop", n="count(*)").write("n", Parquet("n"))
    sales = flow.read("sales", Parquet("sales", schema="shop STRING, price DOUBLE"))
    sales.where("price > 5").write("dear", Parquet("dear"))

    live.run(flow)

    assert plan_flow(flow).live is None
    assert sorted(pq.read_table(tmp_path / "n").column("shop").to_pylist()) == ["a", "b", "c"]
    assert sorted(pq.read_table(tmp_path / "dear").column("price").to_pylist()) == [6.0, 10.0]
