"""Labels in record ids depend on nothing that a compatible change of a flow moves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from flowcore import Flow, KafkaTopic, Parquet, Stream, Tumbling, monotonous
from flowcore.api.operators import Join, Operator, Union
from flowcore.kafka.topics import TopicIdentity
from flowcore.planner import plan_flow
from flowcore.planner.model import LiveQuery
from flowcore.planner.rules.record_labels import label_states, label_steps, number_members
from flowcore.spark.frame.record_ids import RecordIds

BID = "id BIGINT, shop STRING, at BIGINT"
Change = Callable[[Stream], Stream]


def _query(build: Callable[[Flow, Stream], Stream]) -> LiveQuery:
    flow = Flow("f")
    topic = KafkaTopic("bids", schema=BID, event_time="at", watermark=monotonous())
    build(flow, flow.read("bids", topic)).write("out", KafkaTopic("out"))
    return next(query for query in plan_flow(flow).live_queries if query.sinks)


def _labels(query: LiveQuery, kind: Any) -> list[str]:
    return [label for node, label in label_steps(query.operators).items() if isinstance(node, kind)]


def _copies(record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield record


def _shops(flow: Flow, name: str = "shops") -> Stream:
    return flow.read(name, Parquet(name, schema="shop STRING, city STRING"))


CHANGES: dict[str, Change] = {
    "none": lambda stream: stream,
    "columns": lambda stream: stream.with_columns(more="id + 1"),
    "filter": lambda stream: stream.where("id > 0"),
    "function": lambda stream: stream.map(dict, schema=BID),
}


@pytest.mark.parametrize("change", CHANGES)
def test_steps_keep_their_labels_when_operators_are_added(change: str) -> None:
    """A join is named by its table; flat maps and unions are counted from the source on."""

    def build(flow: Flow, bids: Stream) -> Stream:
        bids = CHANGES[change](bids)
        joined = bids.join(_shops(flow).select("shop", "city"), on="shop").select("id", "shop", "at")
        both = joined.union(joined.where("id > 1"))
        return both.flat_map(_copies, schema=BID).select("id", "shop", "at")

    query = _query(build)

    assert _labels(query, Join) == ["shops"]
    assert _labels(query, Union) == ["1"]
    (flat_map,) = (node for node in query.operators if node.name == "flat_map_1")
    assert label_steps(query.operators)[flat_map] == "2"


def test_explode_makes_several_records_of_one() -> None:
    """It is counted like a flat map, and the records of the query have ordinals; no key is passed on."""
    query = _query(lambda _, bids: bids.with_columns(shop="explode(split(shop, ','))").select("shop"))

    exploded, selected = query.operators[1:3]
    assert (exploded.repeats_records, selected.repeats_records) == (True, False)
    assert label_steps(query.operators)[exploded] == "1"
    assert query.mode.value == "realtime"


def test_steps_of_one_path_have_different_labels() -> None:
    """The second join with a table has a number; a join with another table changes no label."""

    def build(flow: Flow, bids: Stream) -> Stream:
        shops = _shops(flow).select("shop")
        return (
            bids.join(shops, on="shop")
            .join(_shops(flow, "cities").select("shop"), on="shop")
            .join(shops, on="shop")
        )

    assert _labels(_query(build), Join) == ["shops", "cities", "shops.2"]


def test_states_are_labelled_by_what_they_keep() -> None:
    """A new name, or another operator upstream, keeps the label; another key or function changes it."""

    def label(
        by: str = "shop", name: str | None = None, change: Change = CHANGES["none"], n: str = "count(*)"
    ) -> str:
        query = _query(lambda _, bids: change(bids).window(Tumbling(10), by=by, name=name).aggregate(n=n))
        (found,) = label_states(query.operators).values()
        return found

    same = label()
    assert {label(name="other"), label(change=CHANGES["columns"])} == {same}
    assert len({same, label(by="id"), label(n="max(id)")}) == 3


@pytest.mark.parametrize("read", [("bids",), ("bids", "asks")], ids=["one", "two"])
def test_ids_of_a_recreated_topic_or_another_writer_differ(read: tuple[str, ...]) -> None:
    """Ids name flow, sink and the topics' ids; the order of the topics in the query does not matter."""
    flow = Flow("f")
    nodes: list[Operator] = [flow.read(name, KafkaTopic(name, schema=BID)).operator for name in read]

    def ids(flow: str = "f", bids: str = "B", operators: list[Operator] = nodes) -> RecordIds:
        topics = {"bids": TopicIdentity("c", bids, 1), "asks": TopicIdentity("c", "A", 1)}
        return RecordIds.of(flow, operators, topics, has_ordinals=False)

    assert ids(operators=nodes[::-1]).input == ids().input
    assert len({ids().input, ids(bids="C").input}) == 2
    found = {
        ids().of_result("x"),
        ids("g").of_result("x"),
        ids(bids="C").of_result("x"),
        ids().of_result("y"),
    }
    assert len(found) == 4
    assert len({ids().of_record("x"), ids(bids="C").of_record("x"), ids("g").of_record("x")}) == 3


def _reads(*topics: str) -> list[Operator]:
    flow = Flow("f")
    reads = [flow.read(f"r{n}", KafkaTopic(name, schema=BID)) for n, name in enumerate(topics)]
    return [read.where("id > 0").operator for read in reads]


def test_members_of_a_union_that_may_have_one_record_have_different_numbers() -> None:
    """They share a frame, or a topic that is read twice; other members keep the number of their frame."""
    assert number_members(_reads("bids", "bids", "asks", "bids"), ["a", "b", "c", "d"]) == [0, 1, 0, 2]
    assert number_members(_reads("bids", "asks", "bids", "asks"), ["a", "a", "a", "b"]) == [0, 1, 2, 2]
    assert number_members(_reads("bids", "asks", "calls"), ["a", "b", "a"]) == [0, 0, 1]
