"""Operators that change what others downstream may rely on: timestamps, keys of replaced rows, buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from flowcore import (
    Flow,
    Global,
    KafkaTopic,
    KeyedProcessFunction,
    Parquet,
    Stream,
    Tumbling,
    bounded_out_of_orderness,
)
from flowcore.errors import PlanError
from flowcore.planner import plan_flow
from flowcore.windows.triggers import Count, Purging

BID = "id BIGINT, category STRING, bidder STRING, price DOUBLE, at TIMESTAMP"
TIMED = {"event_time": "at", "watermark": bounded_out_of_orderness(timedelta(seconds=4))}


class Batches(KeyedProcessFunction):
    """Returns each batch."""

    def process_batch(self, keys: Sequence[Any], batch: pa.RecordBatch, context: Any) -> Any:  # noqa: ARG002
        return [batch]


class Each(KeyedProcessFunction):
    """Returns each record."""

    def process(self, record: Any, context: Any) -> Iterator[Any]:  # noqa: ARG002
        yield record


def bids(flow: Flow, name: str = "bids") -> Stream:
    return flow.read(name, KafkaTopic(name, BID, **TIMED))  # type: ignore[arg-type]


def refiring(flow: Flow) -> Stream:
    """Windows that fire again for late records."""
    late = bids(flow).window(Tumbling(10), by="category", allowed_lateness=30, name="w")
    return late.aggregate(n="count(*)")


UNTIMED: dict[str, Callable[[Flow], Stream]] = {
    "batches of a process function": lambda f: bids(f).process(
        Batches(), by="category", schema=BID, name="x"
    ),
    "rows that get another rank": lambda f: bids(f).top_n(2, by="category", order="price desc", name="x"),
    "windows of all time": lambda f: (
        bids(f).window(Global(), by="bidder", trigger=Purging(Count(3)), name="x").aggregate(n="count(*)")
    ),
}


@pytest.mark.parametrize("name", UNTIMED)
def test_rows_without_a_place_in_event_time_are_in_no_window(name: str) -> None:
    """They would be late, or fail the query; across a cut too."""
    message = "downstream of 'x' a record has no timestamp of its own"
    with pytest.raises(PlanError, match=message):
        UNTIMED[name](Flow("f")).window(Tumbling(10), name="w").aggregate(n="count(*)")
    stream = UNTIMED[name](Flow("f"))
    ddl = stream.operator.types()
    columns = ", ".join(f"{column} {ddl.get(column.lower(), 'BIGINT')}" for column in stream.columns)
    with pytest.raises(PlanError, match=message):
        stream.through("cut", schema=columns).window(Tumbling(10), name="w").aggregate(n="count(*)")


@pytest.mark.parametrize(
    "options", [{"n": "count(*)"}, {"n": "count(*)", "ttl": timedelta(days=1)}, {"n": "count(distinct id)"}]
)
def test_aggregates_downstream_of_a_cut_have_the_time_of_their_newest_record(options: dict[str, Any]) -> None:
    """Whatever way they are computed."""
    totals = bids(Flow("f")).aggregate(by="bidder", name="totals", **options)
    downstream = totals.through("cut", schema="bidder STRING, n BIGINT")

    assert downstream.window(Tumbling(10), name="w").aggregate(most="max(n)")


def test_windows_that_fire_again_are_not_sorted() -> None:
    """A later firing has the time of the first one, which has left."""
    with pytest.raises(PlanError, match="'sorted': records of 'w' replace earlier ones"):
        refiring(Flow("f")).sort_by_event_time(by="category", name="sorted")


def test_join_with_a_table_keeps_the_key_of_windows_that_fire_again() -> None:
    """So an aggregate takes them back, and a sink writes them by it."""
    flow = Flow("f")
    cities = flow.read("old", Parquet("old", schema="category STRING, city STRING")).aggregate(
        by="category", city="max(city)"
    )
    joined = refiring(flow).join(cities, on="category", how="left", name="j")

    assert joined.operator.key == ("category", "window_start", "window_end")
    assert type(joined.aggregate(by="city", total="sum(n)").operator).__name__ == "RetractingAggregate"


def test_rows_of_a_regular_join_have_no_timestamps() -> None:
    """A function downstream gets none: the plan says so, and no record is bad because of it."""
    flow = Flow("f")
    asks = bids(flow, "asks").select("bidder as seller", "price as asked")
    joined = bids(flow).join(asks, on={"bidder": "seller"}, ttl=timedelta(days=1), name="j")
    joined.process(Each(), by="bidder", schema="bidder STRING", name="p").write("o", KafkaTopic("o"))

    assert "rows of j have no timestamps" in plan_flow(flow).explain(verbose=True)


def test_windows_over_rows_without_timestamps_have_their_own() -> None:
    """Of processing time: a result has the end of its window."""
    flow = Flow("f")
    rows = bids(flow).map_batches(lambda batch: batch, schema=BID, name="m")
    windows = rows.window(Tumbling(10), by="bidder", time="processing", name="w").aggregate(n="count(*)")
    windows.write("o", KafkaTopic("o", elements="tagged"))

    (query,) = plan_flow(flow).live_queries
    assert [each.elements.value for each in query.edges if each.sender is windows.operator] == ["tagged"]


def test_union_has_the_timestamps_of_the_rows_that_have_some() -> None:
    """One side of it has lost them."""
    flow = Flow("f")
    rows = bids(flow).map_batches(lambda batch: batch, schema=BID, name="m")
    both = rows.union(bids(flow, "asks"), name="both")
    both.write("o", KafkaTopic("o", elements="tagged"))

    (query,) = plan_flow(flow).live_queries
    assert [each.elements.value for each in query.edges if each.sender is both.operator] == ["tagged"]


def test_condition_stays_downstream_of_a_buffer_of_rows_that_replace() -> None:
    """It sees what the buffer emits: what was replaced there does not pass."""

    def same(record: Any) -> Any:
        return record

    same.is_output_idempotent = True  # type: ignore[attr-defined]
    flow = Flow("f")
    newest = bids(flow).latest(by="bidder", name="newest")
    passed = ["bidder", "price"]
    mapped = newest.map(
        same, schema="bidder STRING, price DOUBLE", passes=passed, flush=timedelta(seconds=9), name="m"
    )
    mapped.where("price > 10", name="dear").write("o", KafkaTopic("o"))

    assert "dear is done before m" not in plan_flow(flow).explain(verbose=True)
