"""What the plan says about modes, stages, shared reads and copies holds in the query that is compiled."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession

from flowcore import Flow, KafkaTopic, KeyedProcessFunction, Parquet, RichFunction, Stream
from flowcore.chains import Step
from flowcore.spark.operators.chain_specs import make_downstream_chain
from tests.spark.true_plans.conftest import Compile, Compiled

pytestmark = pytest.mark.spark

ROW = "shop STRING, price BIGINT, at BIGINT"
STREAMING = "org.apache.spark.sql.execution.streaming.runtime"
IN_REAL_TIME = {
    "Exchange": "ShuffleExchange",
    "HashAggregate": "StatefulStreamlineAggregate",
    "Scan": "LocalTableScan",
    "StreamingRelation": "RealTimeStreamScan",
}


class Same(KeyedProcessFunction):
    """Emits its records."""

    def process(self, record: Any, _context: Any) -> Any:
        yield record


def _same(record: Any) -> Any:
    return record


def _flow(declare: Callable[[Stream, Stream], Stream]) -> Flow:
    flow = Flow("f")
    bids = flow.read("bids", KafkaTopic("bids", schema=ROW))
    shops = flow.read("shops", Parquet("shops", schema="shop STRING, city STRING"))
    declare(bids, shops).write("out", KafkaTopic("out"))
    return flow


@pytest.mark.parametrize(
    "declare",
    [
        lambda bids, _: bids.select("shop", "price + 1 as price").where("price > 1"),
        lambda bids, shops: bids.join(shops, on="shop"),
        lambda bids, _: bids.select("explode(split(shop, ',')) as shop"),
        lambda bids, _: bids.aggregate(by="shop", most="max(price)"),
        lambda bids, _: bids.map(_same, schema=ROW),
        lambda bids, _: bids.process(Same(), by="shop", schema=ROW, uses=["shop", "price", "at"]),
    ],
    ids=["native", "join", "explode", "aggregate", "function", "process"],
)
def test_real_time_mode_is_planned_where_spark_allows_it(
    spark: SparkSession, compiled: Compile, declare: Callable[[Stream, Stream], Stream]
) -> None:
    """Spark's own list of operators accepts a query that the plan runs in real time, and no other."""
    found = next(each for each in compiled(_flow(declare)) if each.query.sinks)

    planned = found.query.mode.value
    assert f"{planned} because" in found.text
    assert (planned == "realtime") == (_operators(found) <= _allowed(spark))


def _allowed(spark: SparkSession) -> set[str]:
    """Spark's list of operators for real-time mode."""
    jvm: Any = spark._jvm
    loader = jvm.Thread.currentThread().getContextClassLoader()
    field = jvm.java.lang.Class.forName(f"{STREAMING}.RealTimeModeAllowlist$", True, loader).getDeclaredField(
        "allowedOperators"
    )
    field.setAccessible(True)
    classes = field.get(None).mkString(" ").split()
    return {name.rpartition(".")[2].removesuffix("Exec") for name in classes}


def _operators(found: Compiled) -> set[str]:
    """The operators of the physical plan, by the names that they have in real-time mode."""
    lines = filter(None, (re.sub(r"^[ :+*!-]*(\(\d+\) )?", "", line) for line in found.physical.splitlines()))
    names = {re.split(r"[ (]", line)[0] for line in lines}
    return {IN_REAL_TIME.get(name, name) for name in names}


def test_bounded_operators_are_no_part_of_a_live_query(compiled: Compile) -> None:
    """They run in the batch stage that the plan names; the query has a table of its results."""
    schema = "shop STRING, city STRING"
    flow = _flow(lambda bids, shops: bids.join(shops.map(_same, schema=schema, name="known"), on="shop"))
    (found,) = (each for each in compiled(flow) if each.query.sinks)

    assert "stage 1: known (batch, starts at once)" in found.text
    assert "because the edge known -> join_1 is blocking" in found.text
    assert "MapInArrow" not in found.physical
    assert "BroadcastHashJoin" in found.physical


@pytest.mark.parametrize("how", ["inner", "left", "semi", "anti"])
@pytest.mark.parametrize("table_bytes", [128 << 20, (128 << 20) + 1])
def test_tables_are_joined_as_the_plan_says(
    spark: SparkSession, compiled: Compile, how: Any, table_bytes: int
) -> None:
    """A large one by a shuffle, which Spark would refuse in real-time mode."""
    flow = _flow(lambda bids, shops: bids.join(shops, on="shop", how=how, name="placed"))
    (found,) = (each for each in compiled(flow, table_bytes={"shops": table_bytes}) if each.query.sinks)

    is_shuffled = "placed is joined by a shuffle" in found.text
    assert is_shuffled == (table_bytes > 128 << 20)
    assert ("SortMergeJoin" in found.physical) == is_shuffled
    assert ("BroadcastHashJoin" in found.physical) != is_shuffled
    assert (found.query.mode.value == "realtime") == (_operators(found) <= _allowed(spark))


def test_branches_of_a_shared_query_have_one_read(compiled: Compile) -> None:
    """And a query of its own reads the topic again."""
    flow = Flow("f")
    bids = flow.read("bids", KafkaTopic("bids", schema=ROW))
    bids.where("price > 1").write("high", KafkaTopic("high"))
    bids.where("price < 1").write("low", KafkaTopic("low"))
    bids.aggregate(by="shop", most="max(price)").write("tops", KafkaTopic("tops"))
    shared, own = compiled(flow)

    assert "shared query because its branches keep no state, so one read serves them all" in shared.text
    assert "its own query because aggregate_1 is Spark's own aggregate" in own.text
    assert [each.physical.count("StreamingRelation") for each in (shared, own)] == [1, 1]


class Keeps(RichFunction):
    """May use its output again."""

    def __call__(self, record: Any) -> Any:
        return record


def test_records_are_copied_in_a_worker_as_the_plan_says(compiled: Compile) -> None:
    """Each edge of a chain has the copy that its line names."""

    def declare(bids: Stream, _: Stream) -> Stream:
        same = bids.process(Same(), by="shop", schema=ROW, uses=["price", "at"], name="same")
        kept = same.map(_same, schema=ROW, name="plain").map(Keeps(), schema=ROW, name="kept")
        return kept.filter(_same, name="some").map(_same, schema=ROW, name="last")

    query = next(each for each in compiled(_flow(declare)) if each.query.sinks)
    (chain,) = query.query.chains
    downstream, _ = make_downstream_chain(chain, query.query.used_columns)

    found: dict[str, str] = {}
    steps: list[Step] = [downstream.spec.head]
    for step in steps:
        found |= {f"{step.name} -> {each.step.name}": each.copy for each in step.receivers}
        steps += [each.step for each in step.receivers]
    said = re.findall(r"^ +(\w+ -> \w+): (reuse|shallow|deep) because", query.text, re.MULTILINE)
    assert dict(said) == found
    assert set(found.values()) == {"deep", "reuse"}
