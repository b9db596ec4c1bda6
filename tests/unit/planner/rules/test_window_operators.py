"""Windows with contradictions are refused; the others have attributes."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
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
    bounded_out_of_orderness,
    monotonous,
    no_watermarks,
)
from flowcore.api.operators import Window
from flowcore.errors import ConfigurationError, PlanError
from flowcore.planner import plan_flow
from flowcore.planner.rules.columns import find_used_columns
from flowcore.testing.window_functions import CollectList, Sum
from flowcore.windows import (
    CountEvictor,
)
from flowcore.windows.triggers import ContinuousEventTime, Count, EventTimeTrigger, Never, Purging

BID = "category STRING, price DOUBLE, gap_ms BIGINT, tags ARRAY<STRING>, at TIMESTAMP"
WINDOW_COLUMNS = ("window_start", "window_end", "firing", "is_late")


def _bids(flow: Flow | None = None, name: str = "bids", **topic: Any) -> Stream:
    topic = {"event_time": "at", "watermark": bounded_out_of_orderness(timedelta(seconds=4)), **topic}
    return (flow or Flow("f")).read(name, KafkaTopic(name, schema=BID, **topic))


def _history(flow: Flow | None = None) -> Stream:
    return (flow or Flow("f")).read("history", Parquet("history", schema=BID))


def _window(stream: Stream) -> Window:
    assert isinstance(stream.operator, Window)
    return stream.operator


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda: _bids().window(Tumbling(10), by="shop"), "by='shop' names the column 'shop'"),
        (lambda: _bids().window(Tumbling(10), by=["price", "PRICE"]), "twice"),
        (lambda: _bids().window(Tumbling(10), uses=["shop"]), "names the column 'shop'"),
        (lambda: _bids().window(Session(gap="gap")), "names the column 'gap'"),
        (lambda: _bids().window(EndOfStream()), r"EndOfStream\(\) over the unbounded 'bids'"),
        (lambda: _bids().window(Global()), r"Global\(\) without a trigger never emits"),
        (lambda: _history().window(Tumbling(10), time="processing"), "would depend on how fast it is read"),
        (
            lambda: _bids().window(Tumbling(10), time="processing", late="side-output"),
            "nothing is late in processing time",
        ),
        (
            lambda: _bids().window(Global(), trigger=Count(2), allowed_lateness=1),
            "a window that never ends is never",
        ),
        (lambda: _bids().window(Tumbling(10), timestamp="at"), "set event_time= there"),
        (lambda: _history().window(Tumbling(10)), "rows of the bounded 'history' have no timestamp"),
        (lambda: _bids(watermark=None).window(Tumbling(10)), "'bids' sets no watermarks: .* pass watermark="),
        (lambda: _bids(watermark=no_watermarks()).window(Session(5)), "'bids' sets no watermarks"),
        (lambda: _bids(watermark=None).window(Tumbling(10), trigger=Count(5)), "'bids' sets no watermarks"),
        (
            lambda: _bids(watermark=None).window(Global(), trigger=EventTimeTrigger()),
            "'bids' sets no watermarks",
        ),
        (
            lambda: _bids(watermark=None).window(Global(), trigger=Purging(ContinuousEventTime(5))),
            "no watermarks",
        ),
        (
            lambda: _bids().map_batches(max, schema=BID, name="m").window(Tumbling(10)),
            "downstream of 'm' a record has no",
        ),
        (
            lambda: _bids().apply(max, name="m").window(Tumbling(10)),
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
    united = _bids(flow).union(_bids(flow, "asks", watermark=None))

    with pytest.raises(PlanError, match="the source 'asks' sets no watermarks"):
        united.window(Tumbling(10))


@pytest.mark.parametrize(
    "declare",
    [
        lambda: _bids(watermark=monotonous()).window(Tumbling(10)),
        lambda: _bids(watermark=None, elements="tagged").window(Tumbling(10)),
        lambda: _bids(watermark=None).window(Tumbling(10), time="processing"),
        lambda: _bids(watermark=None).window(Global(), trigger=Count(5)),
        lambda: _bids().map(max, schema=BID).where("price > 1").window(Tumbling(10)),
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
    windows = _bids(flow).join(cities, on="category").window(Tumbling(10), by="city")

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
    stream = _bids().window(Tumbling(10), by="category", **settings).aggregate(n="count(*)")

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
    attributes = emit(_bids().window(Tumbling(10))).attributes()

    assert (attributes.output_value_stored, attributes.output_idempotent) == promised


class _Latest(CollectList):
    is_output_value_stored = False
    is_output_idempotent = True


def test_window_takes_attributes() -> None:
    given = OperatorAttributesBuilder().set_output_idempotent(False)

    assert (
        not _bids()
        .window(Tumbling(10), attributes=given)
        .aggregate(n="count(*)")
        .attributes()
        .output_idempotent
    )


def test_windows_over_bounded_input_emit_at_its_end() -> None:
    bounded = _history().window(Tumbling(10), timestamp="at").aggregate(n="count(*)")

    assert bounded.attributes().output_only_at_end
    assert not _bids().window(Tumbling(10)).aggregate(n="count(*)").attributes().output_only_at_end


def test_sinks_downstream_of_a_chain_of_windows_share_its_query() -> None:
    """Results, late records and what a second window makes of them; the plan names the exchanges in order."""
    flow = Flow("f")
    first = _bids(flow).window(Tumbling(10), late="side-output", name="first").aggregate(n="count(*)")
    first.window(Tumbling(10), name="second").aggregate(m="sum(n)").write("again", KafkaTopic("again"))
    first.write("results", KafkaTopic("results"))
    first.late.write("late", KafkaTopic("late"))
    _bids(flow, "other").window(Tumbling(10)).aggregate(n="count(*)").write("other_n", KafkaTopic("other_n"))

    queries = plan_flow(flow).live_queries

    assert [[sink.name for sink in query.sinks] for query in queries] == [
        ["again", "results", "late"], ["other_n"],
    ]  # fmt: skip
    assert [node.name for node in queries[0].exchanges] == ["first", "second"]
    assert queries[0].split.reasons == (
        "second keeps state, which nothing else can share a query with",
        "it has two exchanges: first, then second",
    )
    assert queries[0].mode.value == "micro-batch"


def test_branches_that_part_after_a_window_have_queries_of_their_own() -> None:
    flow = Flow("f")
    first = _bids(flow).window(Tumbling(10), name="first").aggregate(n="count(*)")
    for name in ("one", "two"):
        first.window(Tumbling(20), name=name).aggregate(m="sum(n)").write(f"{name}_out", KafkaTopic(name))

    queries = plan_flow(flow).live_queries

    assert [[node.name for node in query.exchanges] for query in queries] == [
        ["first", "one"],
        ["first", "two"],
    ]


def _windowed(stream: Any, name: str, **settings: Any) -> Any:
    return stream.window(Tumbling(10), name=name, **settings).aggregate(n="count(*)").select("n")


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (
            lambda bids, _: _windowed(bids, "first").aggregate(n="sum(n)", name="second"),
            "second is Spark's own aggregate",
        ),
        (
            lambda bids, _: _windowed(bids, "first").union(_windowed(bids, "second")),
            "first and second are side by side",
        ),
        (
            lambda bids, other: _windowed(_windowed(bids, "first").union(other.select("1L AS n")), "second"),
            "second also reads records that first does not emit",
        ),
        (
            lambda bids, _: _windowed(
                _windowed(bids, "first").apply(lambda frame: frame, schema="n BIGINT", name="frame"),
                "second",
                time="processing",
            ),
            "frame is a DataFrame function",
        ),
        (
            lambda bids, _: _windowed(
                _windowed(bids, "first").map_batches(lambda batch: batch, schema="n BIGINT", name="batches"),
                "second",
                time="processing",
            ),
            "batches gets batches",
        ),
    ],
    ids=["native aggregate", "side by side", "another source", "DataFrame function", "batches"],
)
def test_operators_with_state_that_are_not_a_chain_are_refused(build: Any, reason: str) -> None:
    flow = Flow("f")
    build(_bids(flow), _bids(flow, "other")).write("out", KafkaTopic("out", key="n"))

    with pytest.raises(PlanError, match="first' and 'second', each with state") as refused:
        plan_flow(flow)

    assert reason in str(refused.value)
    assert "write the first to a topic and read that in another flow" in str(refused.value)


def test_bad_records_pass_windows_that_write_topics_unless_a_function_is_in_the_way(tmp_path: Path) -> None:
    """They leave through exactly one query: one of their own only where no other lets them pass."""

    def count(*, shift: bool = False, files: bool = False, twice: bool = False) -> dict[str, int]:
        flow = Flow("f")
        bids = _bids(flow)
        if shift:
            bids = bids.filter(bool, name="shift")
        for name in ("one", "two") if twice else ("one",):
            sink = Parquet(tmp_path / "out") if files else KafkaTopic(name)
            bids.window(Tumbling(10), name=f"windows_{name}").aggregate(n="count(*)").write(name, sink)
        live = plan_flow(flow).live
        assert live is not None
        return {query.name: len(query.dead_letters) for query in live.queries}

    assert count() == {"one": 1}
    assert count(twice=True) == {"one": 1, "two": 0}
    assert count(shift=True) == {"one": 0, "bids": 1}
    assert count(files=True) == {"one": 0, "bids": 1}


def test_columns_that_windows_need_cross_and_others_do_not() -> None:
    def crossing(late: bool) -> set[str]:
        flow = Flow("f")
        windows = _bids(flow).window(
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
        (lambda: _bids().window(Tumbling(10)).aggregate(n="count(*)"), "key-group"),
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
    assert _window(declare()).compiled().value == form
