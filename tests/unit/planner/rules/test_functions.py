"""Functions that Spark does not have are found before it starts, and no function that it has is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flowcore import Flow, KafkaTopic, Parquet, from_frame, monotonous
from flowcore.errors import PlanError
from flowcore.planner.rules.functions import find_unknown_functions, require_known_functions
from flowcore.settings import Settings

VALID = [
    "x in (1, 2)", "not (x) and (y) or (z)", "x like any ('a') and y not like all ('b')", "x div (2)",
    "case (x) when (1) then (2) else (3) end", "x is distinct from (y)", "x between (1) and (2)",
    "max(x) over (partition by (y) order by (z) rows between 1 preceding and current row)",
    "percentile_cont(0.5) within group (order by (x))", "max(x) filter (where (y))", "count(distinct (x))",
    "cast(x as decimal(10, 2))", "x::varchar(10)", "cast(x as struct<a: int>)", "try_cast(x as int)",
    "timestampadd(hour, 1, t)", "timestampdiff(hour, t, u)", "timediff(minute, t, u)", "dateadd(day, 1, t)",
    "extract(hour from t)", "array(1)[(0)]", "trim(both 'x' from y)", "substring(x from 1 for 2)",
    "position('a' in x)",
    "transform(items, (x, i) -> x + (i))", "exists(items, x -> x > (1))", "date '2020-01-01'",
    "catalog.own(x)", "`own`(x)", "identifier('abs')(x)", "to_timestamp(x) at time zone ('UTC')", "'own(x)'",
    "abs(x) /* own(x) */", "Upper(x) || LOWER (y)", "interval (x) day", "left(x, 1)", "if(x, y, z)",
]  # fmt: skip


@pytest.mark.parametrize("text", VALID)
def test_valid_text_has_no_unknown_function(text: str) -> None:
    """A false alarm would refuse a flow that runs."""
    assert find_unknown_functions(text) == []


def test_unknown_functions_are_found_wherever_they_are_called() -> None:
    """Each once, in any case."""
    assert find_unknown_functions("Frob(x) + coalesce(frob (y), uper(trim(z)))") == ["frob", "uper"]


PLACES: dict[str, Callable[[Any], Any]] = {
    "select": lambda rows: rows.select("own(x) as y"),
    "with_columns": lambda rows: rows.with_columns(y="own(x)"),
    "where": lambda rows: rows.where("own(x) > 1"),
    "aggregate": lambda rows: rows.aggregate(by="name", y="sum(own(x))"),
    "with_event_time": lambda rows: rows.with_event_time("own(x)", watermark=monotonous()),
    "co_group": lambda rows: rows.graph.read("left", Parquet("p", "name STRING")).co_group(
        rows.graph.read("right", Parquet("p", "name STRING, x BIGINT")), on="name", y="sum(own(right.x))"
    ),
    "event_time": lambda rows: rows.graph.read("timed", KafkaTopic("t", "x BIGINT", event_time="own(x)")),
}


@pytest.mark.parametrize("place", PLACES)
def test_flow_with_an_unknown_function_is_refused(place: str) -> None:
    """Operator, expression and function are named."""
    flow = Flow("f")
    PLACES[place](flow.read("rows", KafkaTopic("rows", "name STRING, x BIGINT")))

    with pytest.raises(PlanError, match=r"operator '\w+': '.*own\(.*' calls the function 'own', which Spark"):
        require_known_functions(flow, Settings())


def test_misspelt_function_has_the_nearest_one_in_its_error() -> None:
    """The error for a misspelt column does so, too."""
    flow = Flow("f")
    flow.read("rows", KafkaTopic("rows", "name STRING")).where("uper(name) = 'A'")

    with pytest.raises(PlanError, match="did you mean 'upper'"):
        require_known_functions(flow, Settings())


def test_nothing_is_said_where_functions_may_be_registered() -> None:
    """By code that gets the session, or by extensions."""
    flow, framed, applied = Flow("f"), Flow("f"), Flow("f")
    framed.read("made", from_frame(lambda spark: spark.range(1), "id BIGINT"))
    for each in (flow, framed, applied):
        rows = each.read("rows", KafkaTopic("rows", "name STRING"))
        rows.where("own(name) = 'A'")
    applied.read("more", Parquet("p", "id BIGINT")).apply(lambda frame: frame, schema="id BIGINT")

    require_known_functions(framed, Settings())
    require_known_functions(applied, Settings())
    require_known_functions(flow, Settings(spark={"spark.sql.extensions": "org.example.Functions"}))
