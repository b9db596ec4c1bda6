"""The functions known without a JVM are those of Spark."""

from collections.abc import Iterator
from contextlib import suppress

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from flowcore.api.expressions import Expression
from flowcore.errors import PlanError
from flowcore.planner.rules.functions import _known, find_unknown_functions

pytestmark = pytest.mark.spark

# Spark lists these, but they are used in FROM or have their own SQL syntax.
_NOT_CALLED = {"collations", "sql_keywords"}


def _functions(spark: SparkSession, group: str) -> Iterator[str]:
    state = spark._jsparkSession.sessionState()
    for (name,) in spark.sql("show system functions").collect():
        if name[0].isalpha():
            identifier = state.sqlParser().parseFunctionIdentifier(f"`{name}`")
            if state.catalog().lookupFunctionInfo(identifier).getGroup() == group:
                yield name


def _parsed(name: str) -> Expression | None:
    for arguments in ("a", "a, b", "a, b, c"):
        try:
            return Expression.parse(f"{name}({arguments})", "op")
        except PlanError:
            continue
    return None


def test_every_aggregate_of_spark_is_known(spark: SparkSession) -> None:
    """An unknown aggregate would reduce a whole table to one row."""
    names = set(_functions(spark, "agg_funcs"))
    assert {"max", "mean", "any"} <= names

    unknown = {name for name in names if not (found := _parsed(name)) or not found.aggregates}

    assert unknown == set()


def test_every_generator_of_spark_is_known(spark: SparkSession) -> None:
    """An unknown generator would give several outputs of a record the same id."""
    names = set(_functions(spark, "generator_funcs")) - _NOT_CALLED | {"json_tuple"}
    assert {"explode", "inline_outer"} <= names

    unknown = {name for name in names if not (found := _parsed(name)) or not found.generates}

    assert unknown == set()


@pytest.mark.parametrize(
    "group", ["string_funcs", "math_funcs", "datetime_funcs", "array_funcs", "map_funcs"]
)
def test_scalar_functions_of_spark_are_known_as_scalar(spark: SparkSession, group: str) -> None:
    """A function of one row is accepted everywhere and reads only its arguments."""
    for name in _functions(spark, group):
        found = _parsed(name)
        assert found is None or not (found.aggregates or found.generates), name
        assert found is None or set(found.columns) <= {"a", "b", "c"}, name


def test_every_function_of_clock_and_session_is_known(spark: SparkSession) -> None:
    """An aggregate of an unknown one takes another value back than it has added.

    What Spark calculates without an argument is one of these, or a constant.
    """
    constant = {"e", "pi", "make_interval", "make_dt_interval", "make_ym_interval"}
    found = set()
    for group in ("datetime_funcs", "misc_funcs", "math_funcs"):
        for name in _functions(spark, group):
            with suppress(PySparkException):
                spark.range(1).selectExpr(f"{name}()")
                found.add(name)
    assert {"unix_timestamp", "now", "uuid"} <= found

    unknown = {name for name in found - constant if Expression.parse(f"{name}()", "op").is_deterministic}

    assert unknown == set()


def test_table_of_functions_is_that_of_spark(spark: SparkSession) -> None:
    """A function that it lacks would be refused."""
    names = {name for (name,) in spark.sql("show system functions").collect() if name.isidentifier()}

    assert names == _known()
    assert [name for name in sorted(names) if find_unknown_functions(f"{name}(x)")] == []
