"""Sorting by event time: what is refused, and what the plan says."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from flowcore import Flow, KafkaTopic, Parquet, Stream, Tumbling, bounded_out_of_orderness, monotonous
from flowcore.api.operators import EventTimeSort
from flowcore.errors import PlanError
from flowcore.planner import Plan, plan_flow
from flowcore.planner.rules.compatibility import derive_needs

SCHEMA = "id BIGINT, user STRING, at BIGINT"
IDLE = bounded_out_of_orderness(timedelta(seconds=1)).with_idleness(timedelta(seconds=9))


def events(flow: Flow, watermark: Any = IDLE) -> Stream:
    topic = KafkaTopic("events", SCHEMA, event_time="at", watermark=watermark)
    return flow.read("events", topic)


def plan(stream: Stream) -> Plan:
    stream.write("out", KafkaTopic("out"))
    return plan_flow(stream.graph)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda f: events(f).sort_by_event_time(by="usr"), "did you mean 'user'"),
        (lambda f: events(f).sort_by_event_time(by=("user", "user")), "'user' twice"),
        (lambda f: f.read("plain", KafkaTopic("p", SCHEMA)).sort_by_event_time(), "sets no watermarks"),
        (
            lambda f: f.read("old", Parquet("old", schema=SCHEMA)).sort_by_event_time(name="s"),
            "'s': sort of the bounded 'old'.*orderBy",
        ),
        (
            lambda f: events(f).aggregate(by="user", n="count(*)").sort_by_event_time(),
            "records of 'aggregate_1' replace earlier ones",
        ),
        (lambda f: events(f).sort_by_event_time().late, "no side output 'late'.*late='side-output'"),
    ],
)
def test_sorts_that_have_no_order_are_refused(declare: Callable[[Flow], object], message: str) -> None:
    """The error names the operator, and what to do instead."""
    with pytest.raises(PlanError, match=message):
        declare(Flow("f"))


def test_plan_says_when_records_leave() -> None:
    """The plan also says where the state is: a sort without key is not in one key group."""
    flow = Flow("f")
    found = events(flow, monotonous()).sort_by_event_time(by="user", late="side-output", name="ordered")
    found.late.write("late", KafkaTopic("late"))
    text = plan(found.sort_by_event_time(name="again")).explain(verbose=True)

    assert "ordered <- events: sort by event time by user, late records to a side output" in text
    assert "again <- ordered: sort by event time in each partition" in text
    assert (
        "micro-batch because each of ordered and again keeps its state by key group, in Python workers"
        in text
    )
    assert "it has two exchanges: ordered, then again" in text
    assert "when the watermark reaches a record because no earlier record can come after that; " in text
    assert "a partition of events without records holds them" in text
    assert "to change it, give the watermark of events .with_idleness(...)" in text
    assert "late: side output because late='side-output' is declared" in text
    assert "state: 16 key groups because state.key-groups is 16" in text
    assert "it has no key, so that a partition is one" in text
    assert "without records holds them" not in plan(events(Flow("f")).sort_by_event_time()).explain(
        verbose=True
    )


def test_a_sort_keeps_its_records_as_they_are() -> None:
    """Columns, timestamps and tags go on; windows can follow, and only what is used is kept."""
    flow = Flow("f")
    found = events(flow).sort_by_event_time(by="user", name="ordered")
    node = found.operator
    assert isinstance(node, EventTimeSort)
    assert node.columns == ("id", "user", "at")
    windows = found.window(Tumbling(10)).aggregate(n="count(*)")

    (query,) = (each for each in plan(windows.select("n")).live_queries if each.sinks)

    assert query.used_columns[query.operators[0]] == {"user"}
    assert node in query.timestamped
    assert [state.kind for state in derive_needs(query).states][:1] == ["sort"]
