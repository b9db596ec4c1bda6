"""Counts of distinct values of a stream: what is refused, and what the plan says."""

from __future__ import annotations

from datetime import timedelta

import pytest

from flowcore import Flow, KafkaTopic, Parquet, Stream
from flowcore.api.keyed_aggregate import KeyedAggregate
from flowcore.api.operators import Aggregate, DistinctAggregate, RetractingAggregate
from flowcore.api.updating_rows import find_deleted, find_replacing
from flowcore.errors import PlanError
from flowcore.planner import plan_flow

VISIT = "page STRING, user BIGINT, seconds DOUBLE, is_deleted BOOLEAN"


def visits(flow: Flow) -> Stream:
    return flow.read("visits", KafkaTopic("visits", schema=VISIT))


def test_plan_says_what_is_counted() -> None:
    """Each value is kept, by key group; the rows replace each other by key, and delete none."""
    flow = Flow("f")
    found = visits(flow).aggregate(
        by=("page", "is_deleted"), users="count(distinct user)", n="count(*)", longest="max(seconds)",
        name="pages",
    )  # fmt: skip
    node = found.operator
    found.write("out", KafkaTopic("out"))
    text = plan_flow(flow).explain(verbose=True)

    assert isinstance(node, DistinctAggregate)
    assert node.columns == ("page", "is_deleted", "users", "n", "longest")
    assert (node.key, node.updating) == (("page", "is_deleted"), True)
    assert (find_replacing(node), find_deleted(node)) == (node, None)
    assert "pages <- visits: aggregate count(distinct user) as users, count(*) as n, max(seconds) as" in text
    assert (
        "key-group because Spark's own aggregate refuses distinct values of a stream; it counts each" in text
    )
    assert "for count(distinct user), max(seconds)" in text
    assert "the state of pages is unbounded because it keeps each distinct value of each key of page" in text


def test_one_group_for_everything_says_so() -> None:
    flow = Flow("f")
    visits(flow).aggregate(users="count(distinct user)").write("out", KafkaTopic("out"))

    assert "it keeps each distinct value, and removes none; to change it" in plan_flow(flow).explain()


def test_other_aggregates_stay_where_they_are() -> None:
    """Of bounded input or without distinct values it is native; with a time to live it is one of windows."""
    flow = Flow("f")
    old = flow.read("old", Parquet("old", schema=VISIT))
    expiring = visits(flow).aggregate(by="page", users="count(distinct user)", ttl=timedelta(days=1))

    assert type(old.aggregate(by="page", users="count(distinct user)").operator) is Aggregate
    assert type(visits(Flow("g")).aggregate(by="page", users="count(user)").operator) is Aggregate
    assert type(expiring.operator) is KeyedAggregate
    best = visits(Flow("h")).latest(by="user").aggregate(by="page", users="count(distinct user)")
    assert type(best.operator) is RetractingAggregate


@pytest.mark.parametrize("text", ["sum(distinct seconds)", "avg(distinct seconds)"])
def test_distinct_values_of_which_more_than_the_number_is_asked_are_refused(text: str) -> None:
    """The error does not speak of another aggregate; ttl= makes it possible."""
    why = r"'agg': x=.* is of distinct values of the unbounded 'visits': only .*; or declare ttl=$"
    with pytest.raises(PlanError, match=why):
        visits(Flow("f")).aggregate(by="page", x=text, name="agg")

    node = visits(Flow("f")).aggregate(by="page", x=text, ttl=timedelta(days=1)).operator
    assert type(node) is KeyedAggregate


@pytest.mark.parametrize("text", ["stddev(seconds)", "collect_list(user)"])
def test_what_cannot_be_computed_beside_distinct_values_is_refused(text: str) -> None:
    """The error names what can, and what to do instead."""
    with pytest.raises(PlanError, match=r"'agg': x=.* beside a distinct .* of the unbounded 'visits'.*ttl="):
        visits(Flow("f")).aggregate(by="page", users="count(distinct user)", x=text, name="agg")


def test_arithmetic_of_aggregates_is_refused() -> None:
    with pytest.raises(PlanError, match="continues with"):
        visits(Flow("f")).aggregate(by="page", share="count(distinct user) / count(*)")
