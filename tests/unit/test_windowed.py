"""Windows and keyed processes as they are declared: what is checked, and what an operator says of itself."""

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
from flowcore.errors import ConfigurationError, InvalidWindowError, PlanError
from flowcore.graph.operators import KeyedProcess, Window
from flowcore.graph.stateful import key_of
from flowcore.graph.window_assigners import GAP_COLUMN
from flowcore.planner import plan_flow
from flowcore.planner.columns import columns_used
from flowcore.planner.forms import form_of
from flowcore.testing.harness import WindowHarness
from flowcore.windows import (
    CountEvictor,
    DeltaEvictor,
    EndOfStreamWindows,
    GlobalWindows,
    SessionWindows,
    SlidingWindows,
    TimeWindow,
    TumblingWindows,
)
from flowcore.windows.aggregates import CollectList, Sum
from flowcore.windows.built_in import BuiltIn
from flowcore.windows.triggers import ContinuousEventTime, Count, Delta, EventTime, Never, Purging

BID = "category STRING, price DOUBLE, gap_ms BIGINT, tags ARRAY<STRING>, at TIMESTAMP"
BEHIND = ("window_start", "window_end", "firing", "is_late")


def _bids(flow: Flow | None = None, name: str = "bids", **topic: Any) -> Stream:
    topic = {"event_time": "at", "watermark": bounded_out_of_orderness(timedelta(seconds=4)), **topic}
    return (flow or Flow("f")).read(name, KafkaTopic(name, schema=BID, **topic))


def _history(flow: Flow | None = None) -> Stream:
    return (flow or Flow("f")).read("history", Parquet("history", schema=BID))


def _window(stream: Stream) -> Window:
    assert isinstance(stream.operator, Window)
    return stream.operator


def _one(text: str) -> BuiltIn:
    ((_, found),) = _window(_bids().window(Tumbling(10)).aggregate(x=text)).built_in
    return found


def test_window_has_columns_of_key_values_and_window() -> None:
    per_category = (
        _bids().window(Tumbling(seconds=10), by="Category").aggregate(n="count(*)", top="max(price)")
    )

    assert per_category.columns == ("category", "n", "top", *BEHIND)


def test_window_without_key_is_one_for_all() -> None:
    assert _bids().window(Tumbling(10)).aggregate(n="count(*)").columns == ("n", *BEHIND)


@pytest.mark.parametrize(
    ("values", "key"), [((), None), (("a",), "a"), ((None,), None), (("a", 1), ("a", 1))], ids=str
)
def test_key_is_what_functions_see(values: tuple[Any, ...], key: Any) -> None:
    assert key_of(values) == key


@pytest.mark.parametrize(
    ("windows", "assigner"),
    [
        (Tumbling(seconds=10), TumblingWindows(10_000)),
        (Tumbling(0.5, offset=-0.1), TumblingWindows(500, -100)),
        (Tumbling(timedelta(days=1), offset=timedelta(hours=-1)), TumblingWindows(86_400_000, -3_600_000)),
        (Sliding(10, slide=1), SlidingWindows(10_000, 1_000)),
        (Sliding(10, slide=timedelta(seconds=5), offset=2), SlidingWindows(10_000, 5_000, 2_000)),
        (Session(gap=30), SessionWindows(30_000)),
        (Global(), GlobalWindows()),
        (EndOfStream(), EndOfStreamWindows()),
    ],
    ids=str,
)
def test_lengths_are_seconds_or_timedeltas(windows: Any, assigner: Any) -> None:
    assert windows.assigner() == assigner


@pytest.mark.parametrize(
    "declare",
    [
        lambda: Tumbling(0),
        lambda: Tumbling(seconds=-1),
        lambda: Tumbling(0.0001),
        lambda: Tumbling("10 s"),
        lambda: Tumbling(True),
        lambda: Tumbling(float("nan")),
        lambda: Tumbling(1e300),
        lambda: Sliding(1, slide=2),
        lambda: Session(gap=0),
        lambda: Session(gap=" "),
        lambda: Session(gap=None),
    ],
    ids=[
        "zero",
        "negative",
        "microseconds",
        "text",
        "truth",
        "no number",
        "too long",
        "long slide",
        "no gap",
        "empty gap",
        "none",
    ],
)
def test_lengths_that_are_none_are_refused(declare: Callable[[], Any]) -> None:
    with pytest.raises(InvalidWindowError):
        declare()


def test_gap_of_a_session_can_be_computed_natively() -> None:
    """It is a column in front of the operator, of which records take their gap."""
    window = _window(_bids().window(Session(gap="gap_ms * 2"), by="category").aggregate(n="count(*)"))
    ((name, expression),) = window.computed

    assert (name, expression.text) == (GAP_COLUMN, "gap_ms * 2")
    assert window.config.assigner.assign(5, "a", {GAP_COLUMN: 10}) == (TimeWindow(5, 15),)
    with pytest.raises(InvalidWindowError, match="the gap of key 'a' is null"):
        window.config.assigner.assign(5, "a", {GAP_COLUMN: None})


def test_gap_of_a_session_can_be_a_function_of_key_and_record() -> None:
    windows = Session(gap=lambda key, record: 10 * record["price"] if key == "a" else 1)

    assert windows.assigner().assign(5, "a", {"price": 2}) == (TimeWindow(5, 25),)


def test_assigner_of_ones_own_can_be_given() -> None:
    assert _window(
        _bids().window(TumblingWindows(7)).aggregate(n="count(*)")
    ).config.assigner == TumblingWindows(7)
    with pytest.raises(InvalidWindowError, match="does not say which windows a record belongs to"):
        _bids().window(Tumbling)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("count(*)", BuiltIn("count")),
        ("COUNT( price )", BuiltIn("count", ("price",))),
        ("count(distinct price)", BuiltIn("count", ("price",), distinct=True)),
        ("max(distinct Price)", BuiltIn("max", ("price",))),
        ("mean(`price`)", BuiltIn("avg", ("price",))),
        ("min_by(category, price)", BuiltIn("min_by", ("category", "price"))),
        ("first(price, true)", BuiltIn("first_value", ("price",), ignore_nulls=True)),
        ("last_value(price) ignore nulls", BuiltIn("last_value", ("price",), ignore_nulls=True)),
        ("first_value(price) respect nulls", BuiltIn("first_value", ("price",))),
        ("sum(price * 2)", BuiltIn("sum", ("_flowcore_argument_1",))),
        (
            "max_by(concat(category, ','), (price))",
            BuiltIn("max_by", ("_flowcore_argument_1", "_flowcore_argument_2")),
        ),
        ("count_if(category in ('a', 'b'))", BuiltIn("count_if", ("_flowcore_argument_1",))),
        ("collect_list(tags[0])", BuiltIn("collect_list", ("_flowcore_argument_1",))),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_aggregate_is_read_from_its_text(text: str, expected: BuiltIn) -> None:
    assert _one(text) == expected


def test_arguments_are_computed_once_each_and_plain_columns_not_at_all() -> None:
    aggregates = {
        "a": "sum(price * 2)",
        "b": "max(price * 2)",
        "c": "min(price + 1)",
        "d": "count(category)",
    }
    window = _window(_bids().window(Tumbling(10), by="category").aggregate(**aggregates))

    assert [(name, expression.text) for name, expression in window.computed] == [
        ("_flowcore_argument_1", "price * 2"),
        ("_flowcore_argument_2", "price + 1"),
    ]
    assert window.uses == ("category",)
    assert dict(window.sql) == aggregates


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("price", "is no aggregate: a window has many records"),
        ("price + 1", "is no aggregate: a window has many records"),
        (
            "median(price)",
            r"'median' is none of the aggregates .*avg, .*use one of them, or a Python aggregate",
        ),
        ("sum(price) / count(*)", r"goes on with '/ count\(\*\)' behind the aggregate"),
        ("sum(price) filter (where price > 1)", "goes on with 'filter"),
        ("sum(distance)", "names the column 'distance'"),
        ("sum(max(price))", "aggregates over several rows"),
        ("sum(*)", "sum takes 1 argument"),
        ("min_by(price)", r"min_by takes 2 argument\(s\), and is given 1"),
        ("count(price, category)", r"count takes one argument or \*, and is given 2"),
        ("var_pop(distinct price)", "var_pop of distinct values is not built in"),
        ("sum(price) ignore nulls", "passes over nulls by itself"),
        ("sum(price) over ()", "goes on with 'over"),
        ("sum(price", "is not a Spark SQL expression"),
    ],
    ids=lambda each: each.split(" ")[0],
)
def test_aggregate_that_cannot_be_read_says_why(text: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        _one(text)


@pytest.mark.parametrize(
    ("windows", "settings", "whole"),
    [
        (Tumbling(10), {}, False),
        (Tumbling(10), {"trigger": Purging(Count(3)), "evictor": CountEvictor(2)}, False),
        (Session(gap="10"), {}, False),
        (Tumbling(10), {"trigger": Delta(1, lambda a, b: b - a)}, True),
        (Tumbling(10), {"trigger": Purging(Delta(1, lambda a, b: b - a))}, True),
        (Tumbling(10), {"trigger": type("Mine", (Never,), {"mergeable": True})()}, True),
        (Tumbling(10), {"evictor": DeltaEvictor(1)}, True),
        (Session(gap=lambda *_: 1), {}, True),
        (type("Mine", (GlobalWindows,), {"bounded": True})(), {}, True),
    ],
    ids=["plain", "count", "gap in sql", "delta", "inner delta", "trigger", "evictor", "gap", "assigner"],
)
def test_built_in_aggregates_need_no_whole_records(windows: Any, settings: Any, whole: bool) -> None:
    """Unless something else is handed them."""
    uses = _window(_bids().window(windows, **settings).aggregate(n="count(*)", top="max(price)")).uses

    assert set(uses) == ({"category", "price", "gap_ms", "tags", "at"} if whole else {"price"})


def test_python_functions_get_the_columns_that_they_use() -> None:
    windows = _bids().window(Tumbling(10), by="category", uses=["Price"])

    assert _window(windows.process(lambda _, records: records, schema="n INT")).uses == ("price",)
    assert windows.reduce(max).columns == ("category", "price", *BEHIND)
    assert windows.aggregate_with(Sum(), schema="n INT").columns == ("category", "n", *BEHIND)


def test_reduced_records_have_the_columns_of_the_input_once_each() -> None:
    reduced = _bids().window(Tumbling(10), by="price").reduce(max)

    assert reduced.columns == ("price", "category", "gap_ms", "tags", "at", *BEHIND)
    assert _window(reduced).values == ("category", "gap_ms", "tags", "at")


def test_declared_windows_run_in_the_harness() -> None:
    """What is declared is what the pure operator does, over records."""
    stream = _bids().window(Tumbling(1), by="category").aggregate(total="sum(price)", n="count(*)")
    harness = WindowHarness(_window(stream).config)
    harness.feed(("a", {"price": 2.0}, 100), ("a", {"price": None}, 200), ("a", {"price": 3.0}, 900))

    assert [result.value for result in harness.watermark(999).results] == [{"total": 5.0, "n": 3}]


def test_plain_function_can_make_the_outputs() -> None:
    def label(context: Any, values: Any) -> Any:
        return [{"label": f"{context.key}: {values[0]['n']}"}]

    stream = (
        _bids().window(Tumbling(1), by="category").aggregate(n="count(*)", then=label, schema="label STRING")
    )
    harness = WindowHarness(_window(stream).config)
    harness.feed(("a", {}, 100))

    assert stream.columns == ("category", "label", *BEHIND)
    assert [result.value for result in harness.end_of_input().results] == [{"label": "a: 1"}]


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda w: w.aggregate(), "computes nothing"),
        (lambda w: w.aggregate(n="count(*)", then=print), "then= without schema="),
        (lambda w: w.reduce(max, schema="n INT"), "schema= without then="),
        (lambda w: w.aggregate(category="count(*)"), "put out the column 'category' twice"),
        (lambda w: w.aggregate(firing="count(*)"), "put out the column 'firing' twice"),
        (lambda w: w.aggregate_with(Sum, schema="n INT"), "is a class; pass an object of it"),
        (lambda w: w.aggregate_with(max, schema="n INT"), "it has no create, add, merge, result"),
        (lambda w: w.process(3, schema="n INT"), "cannot be called"),
        (lambda w: w.process(type("P", (), {"process": max})(), schema="n INT"), "has process and no clear"),
    ],
    ids=[
        "nothing",
        "no schema",
        "no then",
        "a key",
        "firing",
        "a class",
        "a function",
        "a number",
        "no clear",
    ],
)
def test_functions_are_checked(declare: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        declare(_bids().window(Tumbling(10), by="category"))


def test_process_function_with_both_methods_is_taken_as_it_is() -> None:
    function = CollectList()

    assert _window(_bids().window(Tumbling(10)).process(function, schema="n INT")).functions == (function,)


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
            "by the clock nothing is late",
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
        (lambda: _bids(watermark=None).window(Global(), trigger=EventTime()), "'bids' sets no watermarks"),
        (
            lambda: _bids(watermark=None).window(Global(), trigger=Purging(ContinuousEventTime(5))),
            "no watermarks",
        ),
        (
            lambda: _bids().map_batches(max, schema=BID, name="m").window(Tumbling(10)),
            "behind 'm' a record has no",
        ),
        (lambda: _bids().apply(max, name="m").window(Tumbling(10)), "behind 'm' a record has no timestamp"),
    ],
    ids=[
        "unknown key",
        "key twice",
        "unknown use",
        "unknown gap",
        "no end",
        "never",
        "bounded by the clock",
        "late by the clock",
        "late without end",
        "stream with timestamp",
        "table without",
        "no strategy",
        "no watermarks",
        "counted",
        "event trigger",
        "inner trigger",
        "behind batches",
        "behind a frame",
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
        "by the clock",
        "by number",
        "behind a map",
        "table with time",
        "to the end",
    ],
)
def test_windows_that_can_emit_are_taken(declare: Callable[[], Any]) -> None:
    assert declare().aggregate(n="count(*)").columns[-4:] == BEHIND


def test_join_with_a_table_keeps_timestamps() -> None:
    flow = Flow("f")
    shops = flow.read("shops", Parquet("shops", schema="category STRING, city STRING"))
    cities = shops.aggregate(by=["category", "city"], shops="count(*)")
    windows = _bids(flow).join(cities, on="category").window(Tumbling(10), by="city")

    assert windows.aggregate(n="count(*)").columns == ("city", "n", *BEHIND)


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


def test_windows_over_history_put_out_at_its_end() -> None:
    bounded = _history().window(Tumbling(10), timestamp="at").aggregate(n="count(*)")

    assert bounded.attributes().output_only_at_end
    assert not _bids().window(Tumbling(10)).aggregate(n="count(*)").attributes().output_only_at_end


def test_late_records_are_a_stream_with_the_columns_of_the_input() -> None:
    per_category = _bids().window(Tumbling(10), by="category", late="side-output").aggregate(n="count(*)")

    assert per_category.late.columns == ("category", "price", "gap_ms", "tags", "at")
    assert per_category.late.operator is per_category.late.operator
    assert per_category.late.operator.name == "window_1.late"


def test_late_records_that_are_dropped_are_no_stream() -> None:
    with pytest.raises(
        PlanError, match=r"operator 'window_1' has no side output 'late': .* it has none; a window has one"
    ):
        _ = _bids().window(Tumbling(10)).aggregate(n="count(*)").late


class _Alarm(KeyedProcessFunction):
    pass


def test_process_has_the_columns_of_its_schema_and_side_outputs_theirs() -> None:
    alarm = _bids().process(_Alarm(), by="category", schema="label STRING", side_outputs={"rare": "n INT"})

    assert isinstance(alarm.operator, KeyedProcess)
    assert (alarm.columns, alarm.side_output("rare").columns) == (("label",), ("n",))
    assert alarm.operator.by == ("category",)
    with pytest.raises(PlanError, match=r"has no side output 'often': .* it has rare"):
        alarm.side_output("often")


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda b: b.process(_Alarm, schema="n INT"), r"_Alarm is a class: .* pass _Alarm\(\)"),
        (lambda b: b.process(max, schema="n INT"), "is no KeyedProcessFunction"),
        (lambda b: b.process(_Alarm(), by="shop", schema="n INT"), "names the column 'shop'"),
        (lambda b: b.process(_Alarm(), uses=["shop"], schema="n INT"), "names the column 'shop'"),
        (lambda b: b.process(_Alarm(), schema="n INT", timestamp="at"), "set event_time= there"),
        (
            lambda b: b.process(_Alarm(), schema="n INT", side_outputs={"a b": "n INT"}),
            "cannot name a folder",
        ),
    ],
    ids=["a class", "a function", "unknown key", "unknown use", "timestamp", "a name with a space"],
)
def test_process_is_checked(declare: Callable[[Stream], Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        declare(_bids())


def test_process_promises_what_its_function_declares() -> None:
    class Careless(_Alarm):
        is_output_value_stored = False

    promised = [_bids().process(each, schema="n INT").attributes() for each in (_Alarm(), Careless())]

    assert [each.output_value_stored for each in promised] == [True, False]


def test_sinks_behind_one_window_share_a_query_and_two_windows_in_a_row_are_refused() -> None:
    flow = Flow("f")
    first = _bids(flow).window(Tumbling(10), late="side-output", name="first").aggregate(n="count(*)")
    first.write("results", KafkaTopic("results"))
    first.late.write("late", KafkaTopic("late"))
    plan = plan_flow(flow)
    first.window(Tumbling(10), name="second").aggregate(m="sum(n)").write("again", KafkaTopic("again"))

    assert plan.live is not None
    assert [[sink.name for sink in query.sinks] for query in plan.live.queries] == [["results", "late"]]
    with pytest.raises(PlanError, match="behind the operators 'first' and 'second', each with state"):
        plan_flow(flow)


def test_bad_records_pass_windows_that_write_topics_unless_a_function_is_in_the_way(tmp_path: Path) -> None:
    """They leave through exactly one query: one of their own only where no other lets them pass."""

    def letters(*, shift: bool = False, files: bool = False, twice: bool = False) -> dict[str, int]:
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

    assert letters() == {"one": 1}
    assert letters(twice=True) == {"one": 1, "two": 0}
    assert letters(shift=True) == {"one": 0, "bids": 1}
    assert letters(files=True) == {"one": 0, "bids": 1}


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
        (source, *_), used = flow.operators, columns_used(flow.operators)
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
    assert form_of(_window(declare())).value == form
