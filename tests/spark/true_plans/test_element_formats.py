"""What the plan says about an edge, tagged or value-only, is what its records carry in Spark's plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from flowcore import Flow, KafkaTopic, KeyedProcessFunction, Parquet, Stream, Tumbling
from flowcore.watermarks import monotonous
from tests.spark.true_plans.conftest import Compile, Compiled

pytestmark = pytest.mark.spark

ROW = "shop STRING, price BIGINT, at BIGINT"
VALUES_ONLY = {"pipeline.force-timestamp-support": False, "pipeline.auto-watermark-interval": "0"}
EVENT_TIME = "at + 987654321"
"""Event time that nothing else in Spark's plan looks like."""
MARKS = ("_timestamp_ms", "987654321")

Operator = Callable[[Stream, Stream], Stream]


class Same(KeyedProcessFunction):
    """Emits its records."""

    def process(self, record: Mapping[str, Any], _context: Any) -> Iterator[Mapping[str, Any]]:
        yield record


def _same(record: Any) -> Any:
    return record


def _twice(record: Any) -> list[Any]:
    return [record, record]


def _process(bids: Stream) -> Stream:
    sides = {"dear": ROW}
    return bids.process(Same(), by="shop", uses=["shop", "price", "at"], schema=ROW, side_outputs=sides)


def _apply(bids: Stream, _: Stream) -> Stream:
    return bids.apply(_same)


OPERATORS: dict[str, tuple[Operator, str | None]] = {
    "select": (lambda bids, _: bids.select("shop", "price + 1 as price"), None),
    "with_columns": (lambda bids, _: bids.with_columns(more="price + 1"), None),
    "drop": (lambda bids, _: bids.drop("price"), None),
    "where": (lambda bids, _: bids.where("price > 1"), None),
    "join": (lambda bids, shops: bids.join(shops, on="shop"), "BroadcastHashJoin"),
    "union": (lambda bids, _: bids.where("price > 1").union(bids.where("price < 1")), None),
    "map": (lambda bids, _: bids.map(_same, schema=ROW), "MapInArrow"),
    "filter": (lambda bids, _: bids.filter(_same), "MapInArrow"),
    "flat_map": (lambda bids, _: bids.flat_map(_twice, schema=ROW), "MapInArrow"),
    "map_batches": (lambda bids, _: bids.map_batches(_same, schema=ROW), "MapInArrow"),
    "aggregate": (lambda bids, _: bids.aggregate(by="shop", top="max(price)"), "HashAggregate"),
    "window": (
        lambda bids, _: bids.window(Tumbling(10), by="shop", time="processing").aggregate(n="count(*)"),
        "TransformWithState",
    ),
    "process": (lambda bids, _: _process(bids), "TransformWithState"),
    "side_output": (lambda bids, _: _process(bids).side_output("dear"), "TransformWithState"),
}  # fmt: skip
"""By name: the operator, and the node of Spark's plan whose two sides are compared with its edges."""


def _compile(compiled: Compile, operator: Operator, elements: str, **source: Any) -> Compiled:
    flow = Flow("f")
    bids = flow.read("bids", KafkaTopic("bids", schema=ROW, event_time=EVENT_TIME, **source))
    shops = flow.read("shops", Parquet("shops", schema="shop STRING, city STRING"))
    operator(bids, shops).write("out", KafkaTopic("out", elements=elements))
    (found,) = (each for each in compiled(flow, VALUES_ONLY, "micro-batch") if each.query.sinks)
    return found


def _carried(lines: list[str]) -> bool:
    return any(mark in line for line in lines for mark in MARKS)


@pytest.mark.parametrize("name", [*OPERATORS, "apply"])
def test_value_only_records_have_no_timestamp(compiled: Compile, name: str) -> None:
    """No column of a value-only query is computed from the event time, or has its name."""
    found = _compile(compiled, OPERATORS[name][0] if name in OPERATORS else _apply, "auto")

    inner = {edge.elements.value for edge in found.query.edges if edge.topic is None}
    assert inner == {"value-only"}
    assert not _carried(found.analyzed.splitlines())
    assert "value-only elements because pipeline.force-timestamp-support is false" in found.text


@pytest.mark.parametrize("elements", ["tagged", "plain"])
@pytest.mark.parametrize("name", OPERATORS)
def test_records_have_a_timestamp_where_the_plan_says_tagged(
    compiled: Compile, name: str, elements: str
) -> None:
    """On both sides of an operator the timestamp is there if the edge is tagged, and only then."""
    operator, boundary = OPERATORS[name]
    found = _compile(compiled, operator, elements, watermark=monotonous())

    sink = found.query.sinks[0]
    before = found.query.sources[0] in found.query.timestamped
    after = sink.inputs[0] in found.query.timestamped
    lines = found.physical.splitlines()
    nodes = [number for number, line in enumerate(lines) if boundary and boundary in line]
    last, first = (nodes[-1], nodes[0]) if nodes else (0, len(lines))
    assert bool(nodes) == (boundary is not None)
    assert (_carried(lines[last + 1 :]), _carried(lines[:first])) == (before, after)
    assert after == (elements == "tagged" and name != "map_batches")  # whose function receives no timestamps
    stateful = name in ("window", "process", "side_output")
    assert before == (stateful or elements == "tagged")


def test_dataframe_function_loses_the_timestamps_that_its_query_observes(compiled: Compile) -> None:
    """Watermarks are observed upstream of it, and its records are written without a timestamp."""
    found = _compile(compiled, _apply, "tagged", watermark=monotonous())

    lines = found.physical.splitlines()
    counted, observed = (number for number, line in enumerate(lines) if "CollectMetrics" in line)
    assert "bad:" in lines[counted]
    assert [edge.elements.value for edge in found.query.edges if edge.topic is None] == [
        "tagged", "value-only",
    ]  # fmt: skip
    assert (_carried(lines[observed + 1 :]), _carried(lines[:observed])) == (True, False)


def test_branches_share_the_column_of_timestamps(compiled: Compile) -> None:
    """A branch without a reader is tagged while another one has a reader, as the plan says."""
    flow = Flow("f")
    bids = flow.read("bids", KafkaTopic("bids", schema=ROW, event_time=EVENT_TIME, watermark=monotonous()))
    bids.map(_same, schema=ROW, name="same").write("copy", KafkaTopic("copy"))
    bids.write("timed", KafkaTopic("timed", elements="tagged"))
    (found,) = compiled(flow, VALUES_ONLY)

    assert {edge.elements.value for edge in found.query.edges if edge.topic is None} == {"tagged"}
    (python,) = (line for line in found.physical.splitlines() if "MapInArrow" in line)
    assert "_timestamp_ms" in python


@pytest.mark.parametrize(
    ("source", "observed"),
    [
        ({}, []),
        ({"watermark": monotonous()}, ["newest"]),
        ({"elements": "tagged"}, ["watermarks", "others"]),
        ({"elements": "tagged", "watermark": monotonous()}, ["watermarks", "others", "newest"]),
    ],
    ids=["plain", "with-watermarks", "tagged", "tagged-with-watermarks"],
)
def test_sinks_get_what_their_sources_bring(
    compiled: Compile, source: dict[str, Any], observed: list[str]
) -> None:
    """A topic is observed for its control elements if it is tagged, for its times if it has a strategy."""
    flow = Flow("f")
    bids = flow.read("bids", KafkaTopic("bids", schema=ROW, **source))
    tagged = flow.read("more", KafkaTopic("more", schema=ROW, elements="tagged"))
    bids.union(tagged).write("out", KafkaTopic("out", elements="tagged"))

    (found,) = compiled(flow, None, "micro-batch")

    metrics = [line for line in found.analyzed.splitlines() if "flowcore-watermarks-bids" in line]
    assert [
        name for name in ("watermarks", "others", "newest") if any(f" AS {name}" in line for line in metrics)
    ] == observed


def test_no_timestamp_travels_to_where_event_time_is_assigned(compiled: Compile) -> None:
    """The column begins there, as the plan says; nothing is computed from the event time of the source."""
    flow = Flow("f")
    bids = flow.read("bids", KafkaTopic("bids", schema=ROW, event_time=EVENT_TIME, watermark=monotonous()))
    timed = bids.map(_same, schema=ROW, name="same").with_event_time(
        "at + 777", watermark=monotonous(), name="timed"
    )
    counts = timed.window(Tumbling(10), by="shop", name="counts").aggregate(n="count(*)")
    counts.write("out", KafkaTopic("out"))
    (found,) = (each for each in compiled(flow, {}) if each.query.sinks)

    lines = found.physical.splitlines()
    function = max(number for number, line in enumerate(lines) if "MapInArrow" in line)
    assert not _carried(lines[function:])
    assert any("777" in line for line in lines[:function])
    assert "987654321" not in found.physical
    assert "value-only elements on bids -> same, same -> timed because timed assigns event time anew" in (
        found.text
    )
