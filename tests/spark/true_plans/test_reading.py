"""Spark reads no further than the bytes of messages that Python can read."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from flowcore import Flow, KafkaTopic, Stream, Tumbling
from flowcore.watermarks import monotonous
from tests.spark.true_plans.conftest import Compile

pytestmark = pytest.mark.spark

ROW = "shop STRING, price BIGINT, at BIGINT"


def _count(stream: Stream) -> Stream:
    return stream.window(Tumbling(10), by="shop").aggregate(n="count(*)")


OPERATORS: dict[str, tuple[str, Callable[[Stream, Stream], Stream], bool]] = {
    "a window": (ROW, lambda bids, _: _count(bids), True),
    "plain columns": (ROW, lambda bids, _: _count(bids.select("shop", "price AS paid").drop("paid")), True),
    "a join of two sources": (ROW, lambda bids, other: bids.join(other, on="shop", ttl=None), True),
    "two windows": (ROW, lambda bids, _: _count(bids).union(_count(bids)), True),
    "ranks": (ROW, lambda bids, _: bids.top_n(1, by="shop", order="price desc"), True),
    "a filter": (ROW, lambda bids, _: _count(bids.where("price > 0 OR shop = 'x'")), True),
    "a flag": (ROW, lambda bids, _: _count(bids.with_columns(dear="price > 5")), True),
    "a filter of one of two": (
        ROW, lambda bids, other: bids.join(other.where("paid > 0"), on="shop", ttl=None), True,
    ),
    "a filter with a function": (ROW, lambda bids, _: _count(bids.where("abs(price) > 0")), False),
    "an expression": (ROW, lambda bids, _: _count(bids.with_columns(shop="upper(shop)")), False),
    "a filter of a flag": (
        ROW, lambda bids, _: _count(bids.with_columns(dear="price > 5").where("dear")), True,
    ),
    "a sum and a text": (
        ROW, lambda bids, _: _count(bids.with_columns(shop="concat(shop, ':', price + 1)")), True,
    ),
    "another reader": (ROW, lambda bids, _: _count(bids.union(bids)), False),
    "a type that Spark knows": (f"{ROW}, day DATE", lambda bids, _: _count(bids), False),
}  # fmt: skip
"""The schema of the sources, what reads them, and whether Python reads their messages."""


@pytest.mark.parametrize("name", OPERATORS)
def test_python_reads_messages_where_it_computes_all_columns(compiled: Compile, name: str) -> None:
    """Otherwise Spark parses the messages, once, before their records are packed."""
    schema, connect, by_python = OPERATORS[name]
    flow = Flow("f")
    bids, other = (
        flow.read(each, KafkaTopic(each, schema=schema, event_time="at", watermark=monotonous()))
        for each in ("bids", "other")
    )
    connect(bids, other.select("shop", "price AS paid") if "join" in name or "two" in name else other).write(
        "out", KafkaTopic("out")
    )

    (found,) = (each for each in compiled(flow, mode="micro-batch") if each.query.sinks)

    _, before = found.physical.split("TransformWithState", 1)
    assert ("from_json" not in before) == by_python


def test_a_setting_that_changes_what_sql_means_leaves_all_to_spark(compiled: Compile) -> None:
    """Arithmetic wraps in Python, and an error of Spark would be lost."""
    flow = Flow("f")
    bids = flow.read("bids", KafkaTopic("bids", schema=ROW, event_time="at", watermark=monotonous()))
    _count(bids).write("out", KafkaTopic("out"))

    (found,) = compiled(flow, {"spark.sql.ansi.enabled": "true"}, mode="micro-batch")

    assert "from_json" in found.physical.split("TransformWithState", 1)[1]


@pytest.mark.parametrize(("halved", "calls"), [(False, 3), (True, 4)])
def test_spark_makes_no_rows_between_operators_whose_columns_python_computes(
    compiled: Compile, *, halved: bool, calls: int
) -> None:
    """One call of Python packs for each exchange, and one unpacks for the sink; a division needs another."""
    flow = Flow("f")
    bids = flow.read("bids", KafkaTopic("bids", schema=ROW, event_time="at", watermark=monotonous()))
    counts = _count(bids).with_columns(n="n / 2" if halved else "n + 1")
    counts.window(Tumbling(10), uses=["n"]).aggregate(n="sum(n)").write("out", KafkaTopic("out"))

    (found,) = compiled(flow, mode="micro-batch")

    assert found.physical.count("MapInArrow ") == calls, found.physical
