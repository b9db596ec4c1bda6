"""Windows with contradictions are refused; the others have attributes."""

from collections.abc import Callable
from typing import Any

import pytest

from flowcore import (
    EndOfStream,
    Flow,
    Global,
    KafkaTopic,
    OperatorAttributesBuilder,
    Parquet,
    Session,
    Sliding,
    Stream,
    Tumbling,
    monotonous,
    no_watermarks,
)
from flowcore.errors import ConfigurationError, PlanError
from flowcore.planner.rules.columns import find_used_columns
from flowcore.testing.window_functions import CollectList, Sum
from flowcore.windows import CountEvictor
from flowcore.windows.triggers import ContinuousEventTime, Count, EventTimeTrigger, Never, Purging
from tests.unit.api.windowed import BID, WINDOW_COLUMNS, bids_of, window_of


def _history(flow: Flow | None = None) -> Stream:
    return (flow or Flow("f")).read("history", Parquet("history", schema=BID))


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda: bids_of().window(Tumbling(10), by="shop"), "by='shop' names the column 'shop'"),
        (lambda: bids_of().window(Tumbling(10), by=["price", "PRICE"]), "twice"),
        (lambda: bids_of().window(Tumbling(10), uses=["shop"]), "names the column 'shop'"),
        (lambda: bids_of().window(Session(gap="gap")), "names the column 'gap'"),
        (lambda: bids_of().window(EndOfStream()), r"EndOfStream\(\) over the unbounded 'bids'"),
        (lambda: bids_of().window(Global()), r"Global\(\) without a trigger never emits"),
        (lambda: _history().window(Tumbling(10), time="processing"), "would depend on how fast it is read"),
        (
            lambda: bids_of().window(Tumbling(10), time="processing", late="side-output"),
            "nothing is late in processing time",
        ),
        (
            lambda: bids_of().window(Global(), trigger=Count(2), allowed_lateness=1),
            "a window that never ends is never",
        ),
        (lambda: bids_of().window(Tumbling(10), timestamp="at"), "set event_time= there"),
        (lambda: _history().window(Tumbling(10)), "rows of the bounded 'history' have no timestamp"),
        (
            lambda: bids_of(watermark=None).window(Tumbling(10)),
            "'bids' sets no watermarks: .* pass watermark=",
        ),
        (lambda: bids_of(watermark=no_watermarks()).window(Session(5)), "'bids' sets no watermarks"),
        (lambda: bids_of(watermark=None).window(Tumbling(10), trigger=Count(5)), "'bids' sets no watermarks"),
        (
            lambda: bids_of(watermark=None).window(Global(), trigger=EventTimeTrigger()),
            "'bids' sets no watermarks",
        ),
        (
            lambda: bids_of(watermark=None).window(Global(), trigger=Purging(ContinuousEventTime(5))),
            "no watermarks",
        ),
        (
            lambda: bids_of().map_batches(max, schema=BID, name="m").window(Tumbling(10)),
            "downstream of 'm' a record has no",
        ),
        (
            lambda: bids_of().apply(max, name="m").window(Tumbling(10)),
            "downstream of 'm' a record has no timestamp",
        ),
    ],
    ids=[
        "unknown key",
        "key twice",
        "unknown use",
        "unknown gap",
        "no end",
        "never",
        "bounded in processing time",
        "late in processing time",
        "late without end",
        "stream with timestamp",
        "table without",
        "no strategy",
        "no watermarks",
        "counted",
        "event trigger",
        "inner trigger",
        "after batches",
        "after a frame",
    ],
)
def test_windows_that_cannot_be_right_are_refused(declare: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        declare()


def test_every_source_of_a_union_needs_watermarks() -> None:
    flow = Flow("f")
    united = bids_of(flow).union(bids_of(flow, "asks", watermark=None))

    with pytest.raises(PlanError, match="the source 'asks' sets no watermarks"):
        united.window(Tumbling(10))


@pytest.mark.parametrize(
    "declare",
    [
        lambda: bids_of(watermark=monotonous()).window(Tumbling(10)),
        lambda: bids_of(watermark=None, elements="tagged").window(Tumbling(10)),
        lambda: bids_of(watermark=None).window(Tumbling(10), time="processing"),
        lambda: bids_of(watermark=None).window(Global(), trigger=Count(5)),
        lambda: bids_of().map(max, schema=BID).where("price > 1").window(Tumbling(10)),
        lambda: _history().window(Tumbling(10), timestamp="unix_millis(at)"),
        lambda: _history().window(EndOfStream(), by="category"),
    ],
    ids=[
        "monotonous",
        "tagged",
        "in processing time",
        "by number",
        "after a map",
        "table with time",
        "to the end",
    ],
)
def test_windows_that_can_emit_are_taken(declare: Callable[[], Any]) -> None:
    assert declare().aggregate(n="count(*)").columns[-4:] == WINDOW_COLUMNS


def test_join_with_a_table_keeps_timestamps() -> None:
    flow = Flow("f")
    shops = flow.read("shops", Parquet("shops", schema="category STRING, city STRING"))
    cities = shops.aggregate(by=["category", "city"], shops="count(*)")
    windows = bids_of(flow).join(cities, on="category").window(Tumbling(10), by="city")

    assert windows.aggregate(n="count(*)").columns == ("city", "n", *WINDOW_COLUMNS)


@pytest.mark.parametrize(
    ("settings", "replaces"),
    [
        ({}, True),
        ({"trigger": Count(2)}, True),
        ({"trigger": Purging(Count(2))}, False),
        ({"evictor": CountEvictor(2)}, False),
        ({"trigger": type("Mine", (Never,), {"mergeable": True})()}, False),
    ],
    ids=["default", "count", "purging", "evictor", "of one's own"],
)
def test_window_replaces_its_output_where_later_ones_have_all_of_it(settings: Any, replaces: bool) -> None:
    stream = bids_of().window(Tumbling(10), by="category", **settings).aggregate(n="count(*)")

    assert stream.attributes().output_idempotent is replaces
    assert stream.operator.key == (("category", "window_start", "window_end") if replaces else None)
    assert not stream.operator.updating


@pytest.mark.parametrize(
    ("emit", "promised"),
    [
        (lambda w: w.aggregate(n="count(*)"), (False, True)),
        (lambda w: w.reduce(lambda a, b: a + b), (False, True)),
        (lambda w: w.process(lambda _, r: r, schema="n INT"), (False, False)),
        (lambda w: w.process(CollectList(), schema="n INT"), (True, False)),
        (lambda w: w.process(_Latest(), schema="n INT"), (False, True)),
        (lambda w: w.aggregate_with(Sum(), schema="n INT", then=lambda _, r: r), (True, False)),
    ],
    ids=["built in", "reduce", "plain process", "rich process", "declared", "rich fold"],
)
def test_window_promises_what_its_functions_do(
    emit: Callable[[Any], Stream], promised: tuple[bool, bool]
) -> None:
    attributes = emit(bids_of().window(Tumbling(10))).attributes()

    assert (attributes.output_value_stored, attributes.output_idempotent) == promised


class _Latest(CollectList):
    is_output_value_stored = False
    is_output_idempotent = True


def test_window_takes_attributes() -> None:
    given = OperatorAttributesBuilder().set_output_idempotent(False)

    assert (
        not bids_of()
        .window(Tumbling(10), attributes=given)
        .aggregate(n="count(*)")
        .attributes()
        .output_idempotent
    )


def test_windows_over_bounded_input_emit_at_its_end() -> None:
    bounded = _history().window(Tumbling(10), timestamp="at").aggregate(n="count(*)")

    assert bounded.attributes().output_only_at_end
    assert not bids_of().window(Tumbling(10)).aggregate(n="count(*)").attributes().output_only_at_end


def test_columns_that_windows_need_cross_and_others_do_not() -> None:
    def crossing(late: bool) -> set[str]:
        flow = Flow("f")
        windows = bids_of(flow).window(
            Session(gap="gap_ms"), by="category", late="side-output" if late else "drop"
        )
        result = windows.aggregate(top="max(price + 1)")
        result.write("out", KafkaTopic("out"))
        if late:
            result.late.select("tags").write("late", KafkaTopic("late"))
        (source, *_), used = flow.operators, find_used_columns(flow.operators)
        return set(used[source])

    assert crossing(late=False) == {"category", "gap_ms", "price"}
    assert crossing(late=True) == {"category", "gap_ms", "price", "tags"}


@pytest.mark.parametrize(
    ("declare", "form"),
    [
        (lambda: bids_of().window(Tumbling(10)).aggregate(n="count(*)"), "key-group"),
        (lambda: _history().window(Tumbling(10), timestamp="at").aggregate(n="count(*)"), "native"),
        (lambda: _history().window(Sliding(10, 1), timestamp="at").aggregate(n="count(*)"), "native"),
        (lambda: _history().window(EndOfStream()).aggregate(n="count(*)"), "native"),
        (lambda: _history().window(Session(10), timestamp="at").aggregate(n="count(*)"), "key-group"),
        (lambda: _history().window(Tumbling(10), timestamp="at").aggregate(n="first(price)"), "key-group"),
        (lambda: _history().window(EndOfStream()).aggregate(n="first(price)"), "native"),
        (lambda: _history().window(EndOfStream()).reduce(max), "key-group"),
        (lambda: _history().window(EndOfStream(), trigger=Count(2)).aggregate(n="count(*)"), "key-group"),
        (
            lambda: _history().window(EndOfStream(), evictor=CountEvictor(2)).aggregate(n="count(*)"),
            "key-group",
        ),
    ],
    ids=[
        "stream", "tumbling", "sliding", "to the end", "session", "in order", "in no order", "python",
        "trigger", "evictor",
    ],
)  # fmt: skip
def test_windows_are_native_where_that_is_the_same(declare: Callable[[], Stream], form: str) -> None:
    assert window_of(declare()).compiled().value == form
