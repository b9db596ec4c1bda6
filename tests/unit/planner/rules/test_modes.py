"""A query runs in real-time mode if it can; otherwise the plan states the reason."""

from collections.abc import Callable

import pytest

from flowcore import Flow, KafkaTopic, Parquet, Stream
from flowcore.api.decisions import Decision
from flowcore.errors import PlanError
from flowcore.planner import plan_flow
from flowcore.watermarks import monotonous


def _mode(build: Callable[[Stream], Stream], requested: str | None = None, sink: object = None) -> Decision:
    flow = Flow("f")
    bids = flow.read("bids", KafkaTopic("bids", schema="shop STRING, price DOUBLE"))
    build(bids).write("out", sink or KafkaTopic("out"))  # type: ignore[arg-type]
    live = plan_flow(flow, requested).live  # type: ignore[arg-type]
    assert live
    return live.queries[0].mode


def _shops(bids: Stream) -> Stream:
    return bids.graph.read("shops", Parquet("shops", schema="shop STRING, city STRING"))


def _asks(bids: Stream) -> Stream:
    return bids.graph.read("asks", KafkaTopic("asks", schema="shop STRING, price DOUBLE"))


def _joined_union(bids: Stream) -> Stream:
    shops = _shops(bids)
    return bids.join(shops, on="shop").union(_asks(bids).join(shops, on="shop"))


def _avro(bids: Stream) -> Stream:
    return bids.graph.read("asks", KafkaTopic("asks", schema="shop STRING, price DOUBLE", format="avro"))


def _raw(bids: Stream) -> Stream:
    shops = bids.graph.read("names", KafkaTopic("names", schema="shop STRING", format="raw"))
    return shops.with_columns(price="0.0D")


NATIVE: dict[str, Callable[[Stream], Stream]] = {
    "project": lambda bids: bids.where("price > 1").select("shop", "price * 2 as p").with_columns(q="p + 1"),
    "drop": lambda bids: bids.drop("price"),
    "join": lambda bids: bids.join(_shops(bids), on="shop"),
    "aggregate": lambda bids: bids.aggregate(by="shop", n="count(*)"),
    "union": lambda bids: bids.union(_asks(bids)),
    "two-branches": lambda bids: bids.where("price > 1").union(bids),
    "joined-union": _joined_union,
    "formats": lambda bids: bids.union(_avro(bids)).union(_raw(bids)),
    "declared-function": lambda bids: bids.apply(lambda frame: frame, realtime=True),
}


@pytest.mark.parametrize("case", NATIVE)
def test_mode_is_realtime_where_everything_is_native(case: str) -> None:
    """A table joined by both sides of a union is read as a result, not as a source."""
    assert _mode(NATIVE[case]).value == "realtime"


def _read_twice(bids: Stream) -> Stream:
    again = bids.graph.read("again", KafkaTopic("bids", schema="shop STRING, price DOUBLE"))
    return bids.union(again, name="both")


def _fixed(bids: Stream) -> Stream:
    asks = KafkaTopic("asks", schema="price DOUBLE NOT NULL", format="fixed")
    return bids.select("price").union(bids.graph.read("asks", asks))


def _watermarked(bids: Stream) -> Stream:
    asks = KafkaTopic("asks", schema="shop STRING, price DOUBLE", watermark=monotonous())
    return bids.union(bids.graph.read("asks", asks))


OBSTACLES: dict[str, tuple[Callable[[Stream], Stream], object, str]] = {
    "function": (lambda bids: bids.apply(lambda f: f, name="model"), None, "model is a DataFrame function"),
    "same-topic": (_read_twice, None, "both unites two reads of one topic"),
    "format": (_fixed, None, "format 'fixed' of asks runs in Python"),
    "sink-format": (
        lambda bids: bids.select("price"),
        KafkaTopic("out", schema="price DOUBLE NOT NULL", format="fixed"),
        "format 'fixed' of out runs in Python",
    ),
    "watermarks": (
        _watermarked,
        KafkaTopic("out", elements="tagged"),
        "out writes watermarks, which leave between two batches",
    ),
    "files": (lambda bids: bids, Parquet("out"), "out is not a Kafka topic"),
    "map": (lambda b: b.map(dict, schema="shop STRING", name="made"), None, "made is a Python function"),
    "filter": (lambda bids: bids.filter(bool, name="kept"), None, "kept is a Python function"),
    "flat-map": (lambda b: b.flat_map(dict, schema="a INT", name="made"), None, "made is a Python function"),
    "batches": (lambda b: b.map_batches(dict, schema="a INT", name="m"), None, "m is a Python function"),
    "chain": (lambda b: b.filter(bool, name="f").filter(bool, name="g"), None, "f, g are Python functions"),
}


@pytest.mark.parametrize("case", OBSTACLES)
def test_mode_has_the_reason_against_real_time(case: str) -> None:
    """Without a requested mode it is micro-batch with the reason; requested real time is refused with it."""
    build, sink, obstacle = OBSTACLES[case]

    decision = _mode(build, sink=sink)

    assert decision.value == "micro-batch"
    assert any(obstacle in reason for reason in decision.reasons)
    assert decision.change
    with pytest.raises(PlanError, match=f"mode 'realtime' is not possible: {obstacle}"):
        _mode(build, "realtime", sink)


@pytest.mark.parametrize("requested", ["micro-batch", "slice"])
def test_mode_is_the_requested_one(requested: str) -> None:
    """The reason states the request."""
    decision = _mode(lambda bids: bids, requested)

    assert decision.value == requested
    assert "asked for" in decision.reasons[0]


def test_mode_of_dead_letters_alone_ends_with_a_slice() -> None:
    """In a slice, a query that only carries bad records stops too."""
    flow = Flow("f")
    bids = flow.read("bids", KafkaTopic("bids", schema="shop STRING"))
    bids.aggregate(n="count(*)").write("n", KafkaTopic("n"))

    live = plan_flow(flow, "slice").live

    assert live
    assert [query.mode.value for query in live.queries] == ["slice", "slice"]
