"""The newest row and the first rows of each key: what is refused, and what the plan says."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from flowcore import Flow, KafkaTopic, Parquet, Stream, Tumbling
from flowcore.api.operators import Ranked
from flowcore.errors import PlanError
from flowcore.planner import Plan, plan_flow
from flowcore.settings import Settings
from flowcore.watermarks import monotonous

SCHEMA = "id BIGINT, price DOUBLE, at TIMESTAMP"


def bids(flow: Flow, **topic: Any) -> Stream:
    return flow.read("bids", KafkaTopic("bids", SCHEMA, **topic))


def old(flow: Flow) -> Stream:
    return flow.read("old", Parquet("old", schema=SCHEMA))


def fired_again(flow: Flow) -> Stream:
    """Windows that late records fire once more."""
    timed = bids(flow, event_time="at", watermark=monotonous())
    windows = timed.window(Tumbling(10), by="id", allowed_lateness=60, name="counts")
    return windows.aggregate(n="count(*)")


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda f: bids(f).latest(by="idd"), "did you mean 'id'"),
        (lambda f: bids(f).latest(by="id", timestamp="at"), "set event_time= there"),
        (lambda f: bids(f).latest(by="id", ttl=timedelta(0)), "ttl="),
        (lambda f: old(f).latest(by="id"), "in no order.*pass timestamp="),
        (lambda f: old(f).latest(by="id", timestamp="at", ttl=timedelta(1)), "ttl= over the bounded"),
        (lambda f: old(f).latest(by="id", timestamp="cast(at as DOUBLE)"), "is DOUBLE: neither BIGINT"),
        (lambda f: bids(f).aggregate(by="id", n="count(*)").latest(by="id"), "replace earlier.*rank the"),
        (
            lambda f: fired_again(f).latest(by="window_end"),
            "'counts' replace earlier.*rank what it is made from, or leave allowed_lateness and trigger of",
        ),
        (lambda f: bids(f).top_n(0, order="price"), "n=0 is not a number of ranks"),
        (lambda f: bids(f).top_n(True, order="price"), "n=True is not a number of ranks"),
        (lambda f: bids(f).top_n(3, order=()), r"order=\(\) orders nothing"),
        (lambda f: bids(f).top_n(3, order="prize desc"), "did you mean 'price'"),
        (lambda f: bids(f).top_n(3, order="price desc nulls first"), "order='price desc nulls first'"),
        (lambda f: bids(f).top_n(3, order="price", rank="id"), "'id'"),
        (lambda f: bids(f).top_n(3, order="price", rank=None), "rank=None is not the name of a column"),  # type: ignore[arg-type]
        (lambda f: old(f).top_n(3, order="price", ttl=timedelta(1)), "ttl= over the bounded"),
    ],
)  # fmt: skip
def test_ranks_that_are_not_known_are_refused(declare: Callable[[Flow], object], message: str) -> None:
    """The error names the operator, and what to do instead."""
    with pytest.raises(PlanError, match=message):
        declare(Flow("f"))


def plan(stream: Stream, settings: dict[str, Any] | None = None) -> Plan:
    stream.write("out", KafkaTopic("out"))
    return plan_flow(stream.graph, settings=Settings.of(settings or {}, environment={}))  # type: ignore[arg-type]


def ranked(stream: Stream) -> Ranked:
    assert isinstance(stream.operator, Ranked)
    return stream.operator


def test_the_order_names_columns_and_directions() -> None:
    """Names are spelled as in the input; without a direction small values come first."""
    top = bids(Flow("f")).top_n(3, by="ID", order=["PRICE Desc", "at", "`id` asc"], rank="place")
    assert ranked(top).order == (("price", True), ("at", False), ("id", False))
    assert top.columns == ("id", "price", "at", "place")
    assert ranked(top).key == ("id", "place")
    assert ranked(top).updating


def test_the_newest_is_by_event_time_where_there_is_some() -> None:
    """With event time each record needs a timestamp."""
    arrival, timed = (
        ranked(bids(Flow("f"), **topic).latest(by="id"))
        for topic in ({}, {"event_time": "at", "watermark": monotonous()})
    )
    assert (arrival.time, arrival.needs_timestamps) == ("arrival", False)
    assert (timed.time, timed.needs_timestamps) == ("event", True)
    assert arrival.key == timed.key == ("id",)


def test_results_over_bounded_input_are_final() -> None:
    """They are native and replace nothing."""
    flow = Flow("f")
    newest = old(flow).latest(by="id", timestamp="at", name="newest")
    assert not ranked(newest).updating
    assert not ranked(newest).needs_timestamps
    explained = plan(newest).explain()
    assert "newest <- old: latest in order of event time by id" in explained
    assert "key-group" not in explained


def test_the_plan_says_that_rows_replace_earlier_ones() -> None:
    """The plan also names the state that grows."""
    found = plan(bids(Flow("f")).top_n(2, by="id", order="price desc", name="top"))
    (query,) = found.live_queries
    assert query.sinks[0].updating
    explained = found.explain(verbose=True)
    assert "top <- bids: top 2 in order of price desc by id" in explained
    assert "it keeps the ranked rows of each key, and removes none" in explained
    assert "out <- top: write KafkaTopic out, key id, rank" in explained
    newest = bids(Flow("g")).latest(by="id", ttl=timedelta(hours=1), name="newest")
    assert "latest in order of arrival by id, kept 1 h after the last record" in plan(newest).explain()
    assert ranked(newest).unbounded_state() is None


def test_ranks_can_be_buffered_and_follow_windows() -> None:
    """A buffer keeps the latest row of each key and rank."""
    flow = Flow("f")
    counts = bids(flow, event_time="at", watermark=monotonous()).window(Tumbling(10), by="id", name="counts")
    top = counts.aggregate(n="count(*)").top_n(3, by="window_end", order="n desc", name="top")
    found = plan(top, {"execution.flush.max-interval": "1 s"})
    (query,) = found.live_queries
    assert [[node.name for node in each] for each in query.exchanges] == [["counts"], ["top"]]
    (flush,) = (each for each in query.flushes if each.operator.name == "top")
    assert (flush.way, flush.key) == ("key-groups", ("window_end", "rank"))


def test_a_sink_of_ranks_needs_a_key() -> None:
    """Without a rank in its key it would have only the last change."""
    flow = Flow("f")
    top = bids(flow).top_n(2, order="price desc")
    with pytest.raises(PlanError, match="key"):
        top.drop("rank").write("out", KafkaTopic("out"))
