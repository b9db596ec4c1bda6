"""Functions of windows: aggregates that are parsed from text, and checks of Python functions."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from flowcore import (
    Global,
    Session,
    Tumbling,
)
from flowcore.errors import PlanError
from flowcore.testing.harness import WindowHarness
from flowcore.testing.window_functions import CollectList, Sum
from flowcore.windows import (
    CountEvictor,
    DeltaEvictor,
    GlobalWindows,
)
from flowcore.windows.built_in import BuiltIn
from flowcore.windows.triggers import Count, Delta, Never, Purging
from tests.unit.api.windowed import WINDOW_COLUMNS, bids_of, window_of

NAMED: dict[str, Callable[[Any], Any]] = {
    "aggregate": lambda windows: windows.aggregate(n="count(*)", name="counted"),
    "aggregate_with": lambda windows: windows.aggregate_with(Sum(), schema="n INT", name="counted"),
    "reduce": lambda windows: windows.reduce(lambda kept, _: kept, name="counted"),
    "process": lambda windows: windows.process(lambda _, __: (), schema="n INT", name="counted"),
    "top_n": lambda windows: windows.top_n(1, order="price desc", name="counted"),
}


@pytest.mark.parametrize("case", NAMED)
def test_name_may_be_given_with_the_function(case: str) -> None:
    """As for all other operators, which have one call; two names are a mistake."""
    assert NAMED[case](bids_of().window(Tumbling(10))).operator.name == "counted"
    assert NAMED[case](bids_of().window(Tumbling(10), name="counted")).operator.name == "counted"
    with pytest.raises(PlanError, match="operator 'windows' is also named 'counted'"):
        NAMED[case](bids_of().window(Tumbling(10), name="windows"))


def _one(text: str) -> BuiltIn:
    ((_, found),) = window_of(bids_of().window(Tumbling(10)).aggregate(x=text)).built_in
    return found


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
def test_aggregate_is_parsed_from_its_text(text: str, expected: BuiltIn) -> None:
    assert _one(text) == expected


def test_arguments_are_computed_once_each_and_plain_columns_not_at_all() -> None:
    aggregates = {
        "a": "sum(price * 2)",
        "b": "max(price * 2)",
        "c": "min(price + 1)",
        "d": "count(category)",
    }
    window = window_of(bids_of().window(Tumbling(10), by="category").aggregate(**aggregates))

    assert [(name, expression.text) for name, expression in window.computed] == [
        ("_flowcore_argument_1", "price * 2"),
        ("_flowcore_argument_2", "price + 1"),
    ]
    assert window.uses == ("category",)
    assert dict(window.sql) == aggregates


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("price", "is not an aggregate: a window has many records"),
        ("price + 1", "is not an aggregate: a window has many records"),
        (
            "median(price)",
            r"'median' is not a built-in aggregate .*avg, .*use one of them, or a Python aggregate",
        ),
        ("sum(price) / count(*)", r"continues with '/ count\(\*\)' after the aggregate"),
        ("sum(price) filter (where price > 1)", "continues with 'filter"),
        ("sum(distance)", "names the column 'distance'"),
        ("sum(max(price))", "aggregates over several rows"),
        ("sum(*)", "sum takes 1 argument"),
        ("min_by(price)", r"min_by takes 2 argument\(s\), and has 1"),
        ("count(price, category)", r"count takes one argument or \*, and has 2"),
        ("var_pop(distinct price)", "var_pop of distinct values is not built in"),
        ("sum(price) ignore nulls", "ignores nulls anyway"),
        ("sum(price) over ()", "continues with 'over"),
        ("sum(price", "is not a Spark SQL expression"),
    ],
    ids=lambda each: each.split(" ")[0],
)
def test_aggregate_that_cannot_be_parsed_has_a_reason(text: str, message: str) -> None:
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
    """They need them only if a trigger, an evictor or an assigner reads records."""
    uses = window_of(bids_of().window(windows, **settings).aggregate(n="count(*)", top="max(price)")).uses

    assert set(uses) == ({"category", "price", "gap_ms", "tags", "at"} if whole else {"price"})


def test_python_functions_get_the_columns_that_they_use() -> None:
    windows = bids_of().window(Tumbling(10), by="category", uses=["Price"])

    assert window_of(windows.process(lambda _, records: records, schema="n INT")).uses == ("price",)
    assert windows.reduce(max).columns == ("category", "price", *WINDOW_COLUMNS)
    assert windows.aggregate_with(Sum(), schema="n INT").columns == ("category", "n", *WINDOW_COLUMNS)


def test_reduced_records_have_the_columns_of_the_input_once_each() -> None:
    reduced = bids_of().window(Tumbling(10), by="price").reduce(max)

    assert reduced.columns == ("price", "category", "gap_ms", "tags", "at", *WINDOW_COLUMNS)
    assert window_of(reduced).values == ("category", "gap_ms", "tags", "at")


def test_declared_windows_run_in_the_harness() -> None:
    """The pure operator computes what is declared, over records."""
    stream = bids_of().window(Tumbling(1), by="category").aggregate(total="sum(price)", n="count(*)")
    harness = WindowHarness(window_of(stream).config)
    harness.feed(("a", {"price": 2.0}, 100), ("a", {"price": None}, 200), ("a", {"price": 3.0}, 900))

    assert [result.value for result in harness.watermark(999).results] == [{"total": 5.0, "n": 3}]


def test_plain_function_can_make_the_outputs() -> None:
    def label(context: Any, values: Any) -> Any:
        return [{"label": f"{context.key}: {values[0]['n']}"}]

    stream = (
        bids_of()
        .window(Tumbling(1), by="category")
        .aggregate(n="count(*)", then=label, schema="label STRING")
    )
    harness = WindowHarness(window_of(stream).config)
    harness.feed(("a", {}, 100))

    assert stream.columns == ("category", "label", *WINDOW_COLUMNS)
    assert [result.value for result in harness.end_of_input().results] == [{"label": "a: 1"}]


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda w: w.aggregate(), "computes nothing"),
        (lambda w: w.aggregate(n="count(*)", then=print), "then= without schema="),
        (lambda w: w.reduce(max, schema="n INT"), "schema= without then="),
        (lambda w: w.aggregate(category="count(*)"), "the output column 'category' twice"),
        (lambda w: w.aggregate(firing="count(*)"), "the output column 'firing' twice"),
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
        declare(bids_of().window(Tumbling(10), by="category"))


def test_process_function_with_both_methods_is_used_unchanged() -> None:
    function = CollectList()

    assert window_of(bids_of().window(Tumbling(10)).process(function, schema="n INT")).functions == (
        function,
    )


def test_ranked_windows_have_the_columns_of_their_records() -> None:
    """The key first, the rank before the columns of the window; no user's function is called."""
    dearest = bids_of().window(Tumbling(10), by="category").top_n(2, order=["Price desc", "at"], ties=True)

    node = window_of(dearest)
    assert dearest.columns == ("category", "price", "gap_ms", "tags", "at", "rank", *WINDOW_COLUMNS)
    assert node.types()["price"] == "DOUBLE"
    assert node.types()["rank"] == "INT"
    assert not node.functions
    assert not node.calls_user_functions
    assert "top 2 with ties in order of price desc, at as rank by category" in node.describe()
    assert node.state_values() == "tumbling windows of 10 s, top 2 with ties in order of price desc, at"
    assert node.unbounded_state() is None
    assert node.stored_columns({"category", "tags", "rank"}) == ("price", "tags", "at")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"order": "cost"}, "order='cost'"),
        ({"order": ()}, "orders nothing"),
        ({"n": 0}, "n=0 is not a number of ranks"),
        ({"order": None}, "orders nothing"),
        ({"rank": "Price"}, "rank='Price' is also another column.*rank='place'"),
        ({"rank": "window_end"}, "rank='window_end' is also another column"),
        ({"rank": None}, "rank=None is not the name of a column"),
        ({"ties": "no"}, "ties='no' is no choice"),
        ({"order": "gap_ms"}, "not in uses=.*'price', 'tags'.*add it to uses"),
        ({"order": "category"}, "which is in by=.*leave it out"),
    ],
)
def test_wrong_rankings_are_refused(given: dict[str, Any], message: str) -> None:
    windows = bids_of().window(Tumbling(10), by="category", uses=["tags", "price"])

    with pytest.raises(PlanError, match=message):
        windows.top_n(**{"n": 1, "order": "price", **given})


@pytest.mark.parametrize(
    ("windows", "more", "message"),
    [
        (Tumbling(10), {"trigger": Count(3)}, "with trigger: "),
        (Tumbling(10), {"evictor": CountEvictor(3), "allowed_lateness": 4}, "evictor and allowed_lateness"),
        (Global(), {"trigger": Purging(Count(3))}, "trigger and windows without end"),
    ],
)
def test_ranked_windows_emit_once(windows: Any, more: dict[str, Any], message: str) -> None:
    """Else a record that keeps its rank would be counted again downstream."""
    with pytest.raises(PlanError, match=message):
        bids_of().window(windows, **more).top_n(1, order="price")


def test_ranked_windows_take_no_flush_interval() -> None:
    with pytest.raises(PlanError, match="a window emits its ranks once"):
        bids_of().window(Tumbling(10), flush=timedelta(seconds=5)).top_n(1, order="price")
