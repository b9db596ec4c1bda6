"""The picture of a plan holds every operator once, apart from the others, and every blocking edge."""

import re
from itertools import combinations
from xml.etree import ElementTree as ET

import pytest

from flowcore import Flow, KafkaTopic, Parquet
from flowcore.planner import plan_flow
from flowcore.planner.plan import Plan
from flowcore.planner.views.details import collect_details
from pipelines.auctions.flow import flow as reference

SVG = "{http://www.w3.org/2000/svg}"
SALE = "shop STRING, price DOUBLE"


def _wide() -> Flow:
    """Two stages, three queries, branches, a Python function, and text with XML's special characters."""
    flow = Flow("wide")
    past = flow.read("past", Parquet("past", schema=SALE))
    shops = past.aggregate(by="shop", usual="avg(price)", name="usual")
    past.where("price < 1 AND shop <> '&'", name="cheap").write("report", Parquet("report"))
    other = flow.read("other", Parquet("other", schema="shop STRING, city STRING"))
    bids = flow.read("bids", KafkaTopic("bids", schema=SALE)).join(shops, on="shop", how="left")
    bids.join(other, on="shop").map(lambda bid: bid, schema="shop STRING").write("out", KafkaTopic("out"))
    bids.aggregate(by="shop", top="max(price)").write("top", KafkaTopic("top"))
    return flow


def _rectangles(root: ET.Element, *kinds: str) -> list[tuple[int, int, int, int]]:
    found = [each for each in root.iter(f"{SVG}rect") if each.get("class") in kinds]
    return [
        (x, y, x + int(each.attrib["width"]), y + int(each.attrib["height"]))
        for each in found
        for x, y in [(int(each.attrib["x"]), int(each.attrib["y"]))]
    ]


@pytest.mark.parametrize("flow", [reference, _wide()], ids=["auctions", "wide"])
def test_drawing_shows_each_operator_and_blocking_edge(flow: Flow) -> None:
    """As many boxes as there are operators in stages and queries, as many thick arrows as blocking edges."""
    plan = plan_flow(flow)

    root = ET.fromstring(plan.to_svg())  # noqa: S314 - it is our own

    names = [title.text.partition(": ")[0] for title in root.iter(f"{SVG}title") if title.text]
    assert sorted(names) == sorted(
        node.name for part in collect_details(plan) for node in part.runs.operators
    )
    thick = [each for each in root.iter(f"{SVG}path") if each.get("class") == "edge blocking"]
    assert len(thick) == _blocking(plan)


def _blocking(plan: Plan) -> int:
    return sum(edge.kind.value == "blocking" for part in collect_details(plan) for edge in part.edges)


@pytest.mark.parametrize("flow", [reference, _wide()], ids=["auctions", "wide"])
def test_drawing_keeps_boxes_apart(flow: Flow) -> None:
    """No operator covers another, no stage another stage, and all are inside of the picture."""
    root = ET.fromstring(plan_flow(flow).to_svg())  # noqa: S314 - it is our own

    for kinds in (("node", "end", "python"), ("batch", "live")):
        for (left, top, right, bottom), other in combinations(_rectangles(root, *kinds), 2):
            assert right <= other[0] or other[2] <= left or bottom <= other[1] or other[3] <= top
    width, height = int(root.attrib["width"]), int(root.attrib["height"])
    assert all(
        right <= width and bottom <= height for _, _, right, bottom in _rectangles(root, "batch", "live")
    )


def test_drawing_joins_the_queries_of_a_cut() -> None:
    """An arrow leads from the sink that writes the topic to the source that reads it."""
    flow = Flow("cut")
    bids = flow.read("bids", KafkaTopic("bids", schema=SALE)).through(KafkaTopic("cut", on_error="fail"))
    bids.aggregate(by="shop", top="max(price)").write("top", KafkaTopic("top"))
    root = ET.fromstring(plan_flow(flow).to_svg())  # noqa: S314 - it is our own
    places = {
        title.text.partition(": ")[0]: (int(box.attrib["x"]), int(box.attrib["y"]))
        for group in root.iter(f"{SVG}g")
        if (title := group.find(f"{SVG}title")) is not None and title.text
        if (box := group.find(f"{SVG}rect")) is not None
    }

    (arrow,) = (each for each in root.iter(f"{SVG}path") if each.get("class") == "edge cut")

    start, *_, end = re.findall(r"-?\d+,-?\d+", arrow.attrib["d"])
    (from_x, from_y), (to_x, to_y) = (map(int, point.split(",")) for point in (start, end))
    sink, source = places["to_cut"], places["cut"]
    assert sink[0] < from_x < to_x == source[0]
    assert sink[1] < from_y < sink[1] + 46
    assert source[1] < to_y < source[1] + 46
