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
    KeyedProcessFunction,
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
from flowcore.watermarks import periodic
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


def test_operators_with_state_of_a_source_share_a_query_with_an_exchange_for_each_depth() -> None:
    """Results, late records, a second window and a Python function; the plan names the exchanges in order."""
    flow = Flow("f")
    bids = _bids(flow)
    first = bids.window(Tumbling(10), late="side-output", name="first").aggregate(n="count(*)")
    first.window(Tumbling(10), name="second").aggregate(m="sum(n)").write("again", KafkaTopic("again"))
    first.process(KeyedProcessFunction(), schema="n BIGINT", name="third").write("odd", KafkaTopic("odd"))
    first.write("results", KafkaTopic("results"))
    first.late.write("late", KafkaTopic("late"))
    bids.window(Tumbling(20), name="longer").aggregate(n="count(*)").write("longer_n", KafkaTopic("longer"))
    bids.filter(bool, name="python").write("function", KafkaTopic("function"))
    bids.write("copy", KafkaTopic("copy"))
    _bids(flow, "other").window(Tumbling(10)).aggregate(n="count(*)").write("other_n", KafkaTopic("other_n"))

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
        bids = _bids(flow)
        for name in windows:
            bids.window(Tumbling(10), name=name).aggregate(n="count(*)").write(f"to_{name}", KafkaTopic(name))
        bids.write("copy", KafkaTopic("copy"))
        return [query.name for query in plan_flow(flow, mode).live_queries]

    assert names("one", "two") == names("two") == names("three", "one") == names("one", mode="slice")


def test_an_operator_may_read_two_operators_and_a_topic() -> None:
    """Its depth is that of the longest way."""
    flow = Flow("f")
    bids, other = _bids(flow), _bids(flow, "other")
    first, second = (_windowed(bids, name) for name in ("first", "second"))
    third = _windowed(first.union(second), "third")
    _windowed(third.union(first).union(other.select("1L AS n")), "last").write("out", KafkaTopic("out"))

    (query,) = (query for query in plan_flow(flow).live_queries if query.sinks)

    assert [[node.name for node in each] for each in query.exchanges] == [
        ["first", "second"], ["third"], ["last"],
    ]  # fmt: skip
    senders = query.find_senders(query.exchanges[2][0])
    assert {each.name for each in senders} == {"third", "first", "other"}
    assert [source.name for source in query.sources] == ["bids", "other"]


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
            lambda bids, other: _windowed(_windowed(bids, "first").union(other.select("1L AS n")), "second"),
            "second also reads other, whose watermarks a Python function makes",
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
    ids=["native aggregate", "watermark function", "DataFrame function", "batches"],
)
def test_operators_with_state_that_cannot_share_a_query_are_refused(build: Any, reason: str) -> None:
    flow = Flow("f")
    other = _bids(flow, "other", watermark=periodic(len))
    build(_bids(flow), other).write("out", KafkaTopic("out", key="n"))

    with pytest.raises(PlanError, match="first' and 'second', each with state") as refused:
        plan_flow(flow)

    assert reason in str(refused.value)
    assert "cut the flow between them with .through('topic')" in str(refused.value)
    assert ("declare ttl= on second" in str(refused.value)) == reason.endswith("Spark's own aggregate")


@pytest.mark.parametrize("ttl", [None, timedelta(hours=1)])
def test_an_aggregate_and_windows_share_a_query_if_it_has_a_ttl(ttl: timedelta | None) -> None:
    """The refusal of one without names that way out; that of a function without one does not."""
    flow = Flow("f")
    total = _bids(flow).aggregate(by="category", n="count(*)", ttl=ttl, name="total")
    _windowed(total, "second", time="processing").write("out", KafkaTopic("out"))
    median = _bids(flow, "more").aggregate(by="category", n="median(price)", name="median")
    if ttl is None:
        with pytest.raises(PlanError, match=r"\.through\('topic'\), or declare ttl= on total$"):
            plan_flow(flow)
    else:
        (query,) = (each for each in plan_flow(flow).live_queries if each.sinks)
        assert len(query.exchanges) == 2
    _windowed(median, "third", time="processing").write("medians", KafkaTopic("medians"))
    if ttl is None:
        return
    with pytest.raises(PlanError, match=r"\.through\('topic'\)$"):
        plan_flow(flow)


def test_bad_records_leave_through_a_shared_query(tmp_path: Path) -> None:
    """They leave through exactly one query: one of their own only where no other reads their source."""

    def count(*, shift: bool = False, files: bool = False, copy: bool = False) -> dict[str, int]:
        flow = Flow("f")
        bids = _bids(flow)
        if copy:
            bids.write("copy", KafkaTopic("copy"))
        if shift:
            bids = bids.filter(bool, name="shift")
        sink = Parquet(tmp_path / "out") if files else KafkaTopic("one")
        bids.window(Tumbling(10), name="windows").aggregate(n="count(*)").write("one", sink)
        return {query.name: len(query.dead_letters) for query in plan_flow(flow).live_queries}

    assert count() == count(shift=True) == {"bids-batches": 1}
    assert count(copy=True) == {"bids": 1, "bids-batches": 0}
    assert count(copy=True, shift=True) == {"bids": 0, "bids-batches": 1}
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
