"""Operators with state share a query, with an exchange for each depth."""

from pathlib import Path
from typing import Any

import pytest

from flowcore import Flow, KafkaTopic, Parquet, Tumbling
from flowcore.errors import PlanError
from flowcore.planner import plan_flow
from flowcore.watermarks import periodic
from tests.idle_functions import IdleProcess
from tests.unit.api.windowed import bids_of


def test_operators_with_state_of_a_source_share_a_query_with_an_exchange_for_each_depth() -> None:
    """Windows, late records, a second window and a process function share one query.

    The plan lists the exchanges in order.
    """
    flow = Flow("f")
    bids = bids_of(flow)
    first = bids.window(Tumbling(10), late="side-output", name="first").aggregate(n="count(*)")
    first.window(Tumbling(10), name="second").aggregate(m="sum(n)").write("again", KafkaTopic("again"))
    first.process(IdleProcess(), schema="n BIGINT", name="third").write("odd", KafkaTopic("odd"))
    first.write("results", KafkaTopic("results"))
    first.late.write("late", KafkaTopic("late"))
    bids.window(Tumbling(20), name="longer").aggregate(n="count(*)").write("longer_n", KafkaTopic("longer"))
    bids.filter(bool, name="python").write("function", KafkaTopic("function"))
    bids.write("copy", KafkaTopic("copy"))
    bids_of(flow, "other").window(Tumbling(10)).aggregate(n="count(*)").write(
        "other_n", KafkaTopic("other_n")
    )

    queries = plan_flow(flow).live_queries

    assert {query.name: [sink.name for sink in query.sinks] for query in queries} == {
        "bids": ["copy"],
        "bids-batches": ["again", "odd", "results", "late", "longer_n", "function"],
        "other-batches": ["other_n"],
    }
    _, shared, _ = queries
    assert [[node.name for node in each] for each in shared.exchanges] == [
        ["first", "longer"], ["second", "third"],
    ]  # fmt: skip
    assert shared.split.reasons == (
        "one read serves all branches that need micro-batches",
        "it has two exchanges: first and longer, then second and third",
    )
    assert [query.mode.value for query in queries] == ["realtime", "micro-batch", "micro-batch"]
    assert [len(query.dead_letters) for query in queries] == [0, 1, 1]


def test_a_shared_query_keeps_its_name_when_branches_come_and_go() -> None:
    """Its checkpoint has that name; the mode that was asked for does not change the queries either."""

    def names(*windows: str, mode: Any = None) -> list[str]:
        flow = Flow("f")
        bids = bids_of(flow)
        for name in windows:
            bids.window(Tumbling(10), name=name).aggregate(n="count(*)").write(f"to_{name}", KafkaTopic(name))
        bids.write("copy", KafkaTopic("copy"))
        return [query.name for query in plan_flow(flow, mode).live_queries]

    assert names("one", "two") == names("two") == names("three", "one") == names("one", mode="slice")


def test_an_operator_may_read_two_operators_and_a_topic() -> None:
    """Its depth is that of the longest path."""
    flow = Flow("f")
    bids, other = bids_of(flow), bids_of(flow, "other")
    first, second = (_count_windows(bids, name) for name in ("first", "second"))
    third = _count_windows(first.union(second), "third")
    _count_windows(third.union(first).union(other.select("1L AS n")), "last").write("out", KafkaTopic("out"))

    (query,) = (query for query in plan_flow(flow).live_queries if query.sinks)

    assert [[node.name for node in each] for each in query.exchanges] == [
        ["first", "second"], ["third"], ["last"],
    ]  # fmt: skip
    senders = query.find_senders(query.exchanges[2][0])
    assert {each.name for each in senders} == {"third", "first", "other"}
    assert [source.name for source in query.sources] == ["bids", "other"]


def _count_windows(stream: Any, name: str, **settings: Any) -> Any:
    return stream.window(Tumbling(10), name=name, **settings).aggregate(n="count(*)").select("n")


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (
            lambda bids, other: _count_windows(
                _count_windows(bids, "first").union(other.select("1L AS n")), "second"
            ),
            "second also reads other, whose watermarks a Python function makes",
        ),
        (
            lambda bids, _: _count_windows(
                _count_windows(bids, "first").apply(lambda frame: frame, schema="n BIGINT", name="frame"),
                "second",
                time="processing",
            ),
            "frame is a DataFrame function",
        ),
        (
            lambda bids, _: _count_windows(
                _count_windows(bids, "first").map_batches(
                    lambda batch: batch, schema="n BIGINT", name="batches"
                ),
                "second",
                time="processing",
            ),
            "batches gets batches",
        ),
    ],
    ids=["watermark function", "DataFrame function", "batches"],
)
def test_operators_with_state_that_cannot_share_a_query_are_refused(build: Any, reason: str) -> None:
    flow = Flow("f")
    other = bids_of(flow, "other", watermark=periodic(len))
    build(bids_of(flow), other).write("out", KafkaTopic("out", key="n"))

    with pytest.raises(PlanError, match="first' and 'second', each with state") as refused:
        plan_flow(flow)

    assert reason in str(refused.value)
    assert "cut the flow between them with .through('topic')" in str(refused.value)


def test_aggregates_share_a_query_with_the_operators_with_state_around_them() -> None:
    """Aggregates upstream and downstream of them join the query, up to a cut.

    Without such neighbours an aggregate runs as Spark's own.
    """
    flow = Flow("f")
    bids = bids_of(flow)
    bids.aggregate(by="category", n="count(*)", name="alone").write("alone_out", KafkaTopic("alone"))
    downstream = _count_windows(bids, "first").aggregate(n="sum(n)", name="downstream")
    downstream.write("downstream_out", KafkaTopic("downstream"))
    total = bids.aggregate(by="category", n="count(*)", name="front")
    _count_windows(total, "second", time="processing").write("second_out", KafkaTopic("second"))
    cut = _count_windows(bids, "third").through("cut", schema="n BIGINT")
    cut.aggregate(n="sum(n)", name="cut_off").write("cut_out", KafkaTopic("cut_out"))

    queries = {query.name: query for query in plan_flow(flow).live_queries if query.sinks}

    assert {name: [node.name for node in query.keyed] for name, query in queries.items()} == {
        "alone_out": [], "bids-batches": ["first", "downstream", "front", "second", "third"], "cut_out": [],
    }  # fmt: skip
    assert [[node.name for node in each] for each in queries["bids-batches"].exchanges] == [
        ["first", "front", "third"], ["downstream", "second"],
    ]  # fmt: skip


@pytest.mark.parametrize("downstream", [True, False])
def test_an_aggregate_that_does_not_run_by_key_group_is_refused_next_to_state(downstream: bool) -> None:
    """The message names the function and the way out; without neighbours with state Spark computes it."""
    flow = Flow("f")
    bids = bids_of(flow)
    if downstream:
        _count_windows(bids, "first").aggregate(m="median(n)", name="half").write("out", KafkaTopic("out"))
    else:
        half = bids.aggregate(by="category", m="median(price)", name="half")
        half.write("halves", KafkaTopic("halves"))
        assert plan_flow(flow).live_queries
        ones = half.select("1L AS n").process(IdleProcess(), by="n", schema="n BIGINT")
        ones.write("out", KafkaTopic("out"))

    with pytest.raises(
        PlanError, match=r"or cut the flow between them with \.through\('topic'\)$"
    ) as refused:
        plan_flow(flow)

    assert "operator 'half': m='median" in str(refused.value)
    assert "is not a built-in aggregate of groups upstream or downstream of other operators" in str(
        refused.value
    )


def test_bad_records_leave_through_a_shared_query(tmp_path: Path) -> None:
    """One query writes them. It is a separate query only if no shared query reads their source."""

    def count(*, shift: bool = False, files: bool = False, copy: bool = False) -> dict[str, int]:
        flow = Flow("f")
        bids = bids_of(flow)
        if copy:
            bids.write("copy", KafkaTopic("copy"))
        if shift:
            bids = bids.filter(bool, name="shift")
        sink = Parquet(str(tmp_path / "out")) if files else KafkaTopic("one")
        bids.window(Tumbling(10), name="windows").aggregate(n="count(*)").write("one", sink)
        return {query.name: len(query.dead_letters) for query in plan_flow(flow).live_queries}

    assert count() == count(shift=True) == {"bids-batches": 1}
    assert count(copy=True) == {"bids": 1, "bids-batches": 0}
    assert count(copy=True, shift=True) == {"bids": 0, "bids-batches": 1}
    assert count(files=True) == {"one": 0, "bids": 1}
