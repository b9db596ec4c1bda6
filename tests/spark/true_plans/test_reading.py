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
        ROW, lambda bids, _: _count(bids.with_columns(dear="price > 5").where("dear")), False,
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
