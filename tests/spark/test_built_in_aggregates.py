"""Built-in aggregates of windows give the results of Spark's aggregates with the same text."""

import math
import random
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import SparkSession

from flowcore import Flow, Parquet, Tumbling
from flowcore.api.operators import Window
from flowcore.windows.built_in import BuiltIns

pytestmark = pytest.mark.spark

SCHEMA = "at TIMESTAMP, number INT, real DOUBLE, exact DECIMAL(10, 2), word STRING, truth BOOLEAN"
TEXTS = [
    "count(*)", "count(number)", "count(distinct number)", "count_if(truth)", "count_if(number > 0)",
    "sum(number)", "sum(distinct number)", "sum(real)", "sum(exact)", "avg(number)", "avg(distinct number)",
    "avg(real)", "avg(exact)", "min(number)", "max(word)", "min(real)", "max(real)", "min(exact)",
    "max(truth)",
    "min_by(word, number)", "max_by(word, real)", "first_value(word)", "last_value(word)",
    "first_value(word) ignore nulls", "last_value(word, true)", "any_value(number)", "bool_and(truth)",
    "bool_or(truth)", "every(truth)", "some(truth)", "stddev(real)", "stddev_pop(number)", "variance(number)",
    "var_pop(real)", "var_samp(number)", "std(number)", "mean(number)", "collect_list(number)",
    "collect_list(word)",
    "max(number * 2 + length(word))", "sum(if(truth, real, null))",
]  # fmt: skip


def _rows(seed: int, size: int) -> list[tuple[Any, ...]]:
    """Random rows, some with missing values, some with NaN."""
    chosen = random.Random(seed)  # noqa: S311 - no secret

    def maybe(value: Any) -> Any:
        return value if chosen.random() < 0.8 else None

    numbers = chosen.sample(range(-50, 50), size)
    return [
        (
            None, maybe(number), maybe(float("nan") if number % 17 == 0 else number / 4),
            maybe(Decimal(number) / 4), maybe(f"w{number}"), maybe(number > 0),
        )
        for number in numbers
    ]  # fmt: skip


def _same(mine: Any, theirs: Any) -> bool:
    if isinstance(theirs, float):
        both_nan = isinstance(mine, float) and math.isnan(mine) and math.isnan(theirs)
        return both_nan or bool(mine == pytest.approx(theirs))
    return bool(mine == theirs) and (mine is None) == (theirs is None)


@pytest.mark.parametrize("size", [0, 1, 2, 40], ids=["nothing", "one", "two", "many"])
def test_built_in_aggregates_give_what_spark_gives(spark: SparkSession, size: int) -> None:
    """Results are equal for one partition, whose order is that of arrival."""
    rows = _rows(seed=size, size=size)
    aggregates = {f"a{number}": text for number, text in enumerate(TEXTS)}
    stream = Flow("f").read("in", Parquet("in", schema=SCHEMA))
    window = stream.window(Tumbling(1), timestamp="at").aggregate(**aggregates).operator
    assert isinstance(window, Window)
    frame = spark.createDataFrame(rows, SCHEMA).coalesce(1)
    computed = frame.selectExpr("*", *(f"{each.text} AS `{name}`" for name, each in window.computed))
    # With distinct ones Spark groups twice, and the order of arrival is lost.
    expected: dict[str, Any] = {}
    for distinct in (True, False):
        some = [f"{text} AS {name}" for name, text in aggregates.items() if ("distinct" in text) is distinct]
        expected |= frame.selectExpr(*some).collect()[0].asDict()

    function = BuiltIns(window.built_in)
    kept = function.create()
    for row in computed.collect():
        kept = function.add(kept, row.asDict())
    found = function.result(kept)

    differing = {
        aggregates[name]: (value, expected[name])
        for name, value in found.items()
        if not _same(value, expected[name])
    }
    assert differing == {}
