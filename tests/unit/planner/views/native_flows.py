"""Flows whose plans are golden files: native operators and chains of Python functions."""

from collections.abc import Callable, Iterator
from typing import Any

from flowcore import (
    Csv,
    Flow,
    KafkaTopic,
    OperatorAttributes,
    OperatorAttributesBuilder,
    Parquet,
    Stream,
)
from pipelines.auctions.flow import flow as reference
from tests.idle_functions import IdleRich

SALE = "shop STRING, price DOUBLE"


def _bids(flow: Flow, name: str = "bids") -> Stream:
    return flow.read(name, KafkaTopic(name, schema=SALE))


def _shops(flow: Flow) -> Stream:
    return flow.read("shops", Parquet("shops", schema="shop STRING, city STRING"))


def auctions() -> Flow:
    """The bounded stage runs first, then the stream that joins its result."""
    return reference


def all_bounded() -> Flow:
    """No stream at all: two parts that have nothing in common are two stages."""
    flow = Flow("all_bounded")
    sales = flow.read("sales", Csv("sales", schema=SALE))
    sales.aggregate(by="shop", total="sum(price)").write("totals", Parquet("out/totals"))
    _shops(flow).where("city = 'Bern'").write("bern", Parquet("out/bern"))
    return flow


def all_live() -> Flow:
    """No bounded stage: no query waits."""
    flow = Flow("all_live")
    _bids(flow).where("price > 100").with_columns(half="price / 2").write("high", KafkaTopic("high"))
    return flow


def diamond() -> Flow:
    """A table joined with what was computed from it is one stage."""
    flow = Flow("diamond")
    sales = flow.read("sales", Parquet("sales", schema=SALE))
    totals = sales.aggregate(by="shop", total="sum(price)")
    shares = sales.join(totals, on="shop").select("shop", "price", "price / total as share", name="shares")
    _bids(flow).join(shares.select("shop", "share"), on="shop").write("out", KafkaTopic("out"))
    return flow


def shared_result() -> Flow:
    """A result that two queries join is computed once."""
    flow = Flow("shared_result")
    bids = _bids(flow).join(_shops(flow), on="shop", name="placed")
    bids.aggregate(by="city", top="max(price)").write("top", KafkaTopic("top"))
    bids.aggregate(by="shop", number="count(*)").write("number", KafkaTopic("number"))
    return flow


def fan_out() -> Flow:
    """Branches without state share one read."""
    flow = Flow("fan_out")
    bids = _bids(flow)
    bids.where("price > 100").write("high", KafkaTopic("high"))
    bids.where("price <= 100").join(_shops(flow), on="shop", how="left").write("low", KafkaTopic("low"))
    return flow


def stateful_and_stateless() -> Flow:
    """A branch with state is a query of its own; bad records leave with the other."""
    flow = Flow("stateful_and_stateless")
    bids = _bids(flow)
    bids.select("shop", "round(price) as price").write("rounded", KafkaTopic("rounded"))
    bids.aggregate(by="shop", top="max(price)").write("top", KafkaTopic("top"), key="shop")
    return flow


def only_stateful() -> Flow:
    """Where no query can carry bad records, one of its own does."""
    flow = Flow("only_stateful")
    _bids(flow).aggregate(top="max(price)").write("top", KafkaTopic("top"))
    return flow


def united() -> Flow:
    """Two topics in one stream."""
    flow = Flow("united")
    _bids(flow).union(_bids(flow, "asks")).write("all", KafkaTopic("all"))
    return flow


def applied() -> Flow:
    """Nothing is known of a function, so it runs alone and not in real time."""
    flow = Flow("applied")
    _bids(flow).apply(_dearest, schema="shop STRING").write("dear", KafkaTopic("dear"))
    return flow


def live_files() -> Flow:
    """Files are written by a query of their own."""
    flow = Flow("live_files")
    bids = _bids(flow)
    bids.write("copy", KafkaTopic("copy"))
    bids.write("archive", Parquet("archive"))
    return flow


def tracked() -> Flow:
    """Latency markers are written to topics only, and pass through no DataFrame function."""
    flow = Flow("tracked")
    bids = _bids(flow)
    bids.write("copy", KafkaTopic("copy"))
    bids.write("archive", Parquet("archive"))
    bids.apply(_dearest, schema="shop STRING").write("dear", KafkaTopic("dear"))
    return flow


def python_chain() -> Flow:
    """Plain functions in a row: one call of a worker, and no copies."""
    flow = Flow("python_chain")
    ends = _bids(flow).map(_same, schema=SALE).filter(_keep).flat_map(_twice, schema=SALE)
    ends.map_batches(_same, schema=SALE).write("out", KafkaTopic("out"))
    return flow


def rich_functions() -> Flow:
    """What may be kept is copied, unless the function says that it keeps nothing."""
    flow = Flow("rich_functions")
    careful = _bids(flow).map(_Lookup(), schema=SALE, name="careful")
    trusted = careful.map(_Trusted(), schema=SALE, name="trusted")
    trusted.map(_same, schema=SALE, name="plain").write("out", KafkaTopic("out"))
    return flow


def kept_objects() -> Flow:
    """The second function keeps its output: it gets the first one's objects, the third gets copies."""
    flow = Flow("kept_objects")
    op1 = _bids(flow).map(_same, schema=SALE, name="op1")
    op2 = op1.map(_same, schema=SALE, name="op2", attributes=_builder().set_output_value_stored(True))
    op2.map(_same, schema=SALE, name="op3").write("out", KafkaTopic("out"))
    return flow


def kept_objects_in_a_fan_out() -> Flow:
    """Two functions get the same objects; the readers of one that keeps them get a copy each."""
    flow = Flow("kept_objects_in_a_fan_out")
    op1 = _bids(flow).map(_same, schema=SALE, name="op1")
    op1.map(_same, schema=SALE, name="op2").write("out2", KafkaTopic("out2"))
    op3 = op1.map(_same, schema=SALE, name="op3", attributes=_builder().set_output_value_stored(True))
    op3.map(_same, schema=SALE, name="op4").write("out4", KafkaTopic("out4"))
    op3.map(_same, schema=SALE, name="op5").write("out5", KafkaTopic("out5"))
    return flow


def nothing_declared() -> Flow:
    """Operators that promise nothing: copies everywhere."""
    flow = Flow("nothing_declared")
    stream = _bids(flow)
    for _ in range(3):
        stream = stream.map(_same, schema=SALE, attributes=OperatorAttributes())
    stream.write("out", KafkaTopic("out"))
    return flow


def object_reuse() -> Flow:
    """The same with ``pipeline.object-reuse``: copies nowhere."""
    return nothing_declared()


def shallow_copies() -> Flow:
    """A receiver that changes its record gets one of its own, with the same values."""
    flow = Flow("shallow_copies")
    bids = _bids(flow).map(_same, schema=SALE, name="made")
    changing = _builder().set_input_record_stored(True)
    bids.map(_same, schema=SALE, name="changing", attributes=changing).write("changed", KafkaTopic("changed"))
    bids.filter(_keep, name="kept").write("kept_out", KafkaTopic("kept"))
    return flow


def python_beside_native() -> Flow:
    """A chain ends where one of the readers is Spark's."""
    flow = Flow("python_beside_native")
    made = _bids(flow).map(_same, schema=SALE, name="made")
    made.filter(_keep, name="kept").write("kept_out", KafkaTopic("kept"))
    made.aggregate(by="shop", top="max(price)").write("top", KafkaTopic("top"))
    made.select("shop").write("shops", KafkaTopic("shops"))
    return flow


def bounded_python() -> Flow:
    """Functions over bounded input; unused columns do not reach them."""
    flow = Flow("bounded_python")
    sales = flow.read("sales", Parquet("sales", schema=f"{SALE}, note STRING, buyer STRING"))
    rounded = sales.map(_same, schema=SALE, uses=["shop", "price"], name="rounded")
    totals = rounded.aggregate(by="shop", total="sum(price)", name="totals")
    _bids(flow).join(totals, on="shop").write("out", KafkaTopic("out"))
    return flow


def co_grouped() -> Flow:
    """Both sides end before a key is complete, and the stream starts after that."""
    flow = Flow("co_grouped")
    sales = flow.read("sales", Parquet("sales", schema=f"{SALE}, note STRING"))
    shops = _shops(flow).co_group(
        sales, on="shop", city="max(left.city)", sold="count(right)", total="sum(right.price)", name="summed"
    )
    _bids(flow).join(shops, on="shop").write("out", KafkaTopic("out"))
    return flow


def co_grouped_by_a_function() -> Flow:
    """Spark makes the groups for the first function of a chain."""
    flow = Flow("co_grouped_by_a_function")
    sales = flow.read("sales", Parquet("sales", schema=SALE))
    best = _shops(flow).co_group(sales, _best, on="shop", schema=SALE, name="best")
    best.filter(_keep, name="kept").write("out", Parquet("out"))
    return flow


def early_filters() -> Flow:
    """A filter goes before the functions that hand its columns on; the other says what is missing."""
    flow = Flow("early_filters")
    made = _bids(flow).map(_same, schema=SALE, passes=["shop"], name="made").filter(_keep, name="kept")
    made.where("shop <> 'x'", name="early").where("price > 1", name="late").write("out", KafkaTopic("out"))
    return flow


def declared_attributes() -> Flow:
    """Promises that nobody could guess."""
    flow = Flow("declared_attributes")
    at_checkpoint = _builder().set_output_on_checkpoint(True)
    latest = _builder().set_output_idempotent(True)
    sales = flow.read("sales", Parquet("sales", schema=SALE))
    at_end = _builder().set_output_only_at_end(True)
    best = sales.map_batches(_same, schema=SALE, name="best", attributes=at_end)
    bids = _bids(flow).select("shop", "price", attributes=at_checkpoint)
    bids.join(best.select("shop", "price as best"), on="shop").aggregate(
        by="shop", top="max(price - best)", attributes=latest
    ).write("out", KafkaTopic("out"))
    return flow


def python_formats() -> Flow:
    """A format that Spark does not have runs in Python; values travel alone."""
    flow = Flow("python_formats")
    bids = flow.read(
        "bids", KafkaTopic("bids", schema="id BIGINT NOT NULL, price DOUBLE NOT NULL", format="fixed")
    )
    bids.where("price > 1").write("out", KafkaTopic("out", elements="auto"))
    return flow


def _dearest(frame: object) -> object:
    return frame


def _same(record: Any, *_others: Any) -> Any:
    return record


def _keep(record: Any) -> bool:
    return bool(record["price"])


def _twice(record: Any) -> Iterator[Any]:
    yield from (record, record)


def _best(key: Any, left: Any, right: Any) -> Iterator[Any]:
    del key, left
    yield from right


class _Lookup(IdleRich):
    """Keeps what it likes."""


class _Latest(IdleRich):
    """Its output replaces earlier output of the same shop."""

    def is_output_idempotent(self) -> bool:
        return True


class _Trusted(IdleRich):
    """Keeps none of its output records."""

    def is_output_value_stored(self) -> bool:
        return False


def _builder() -> OperatorAttributesBuilder:
    return OperatorAttributesBuilder()


NATIVE_FLOWS: list[Callable[[], Flow]] = [
    auctions, all_bounded, all_live, diamond, shared_result, fan_out, stateful_and_stateless, only_stateful,
    united, applied, live_files, python_chain, rich_functions, kept_objects, kept_objects_in_a_fan_out,
    nothing_declared, object_reuse, shallow_copies, python_beside_native, bounded_python, early_filters,
    declared_attributes, python_formats, tracked, co_grouped, co_grouped_by_a_function,
]  # fmt: skip
