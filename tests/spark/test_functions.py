"""What is said about functions without a JVM is what Spark says."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from flowcore.api.expressions import Expression
from flowcore.errors import PlanError

pytestmark = pytest.mark.spark

# These stand in FROM, or only where SQL has its own words for them.
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
    """One that is not would make one row of a whole table where single rows were meant."""
    names = set(_functions(spark, "agg_funcs"))
    assert {"max", "mean", "any"} <= names

    unknown = {name for name in names if not (found := _parsed(name)) or not found.aggregates}

    assert unknown == set()


def test_every_generator_of_spark_is_known(spark: SparkSession) -> None:
    """One that is not would give several outputs of a stream one id."""
    names = set(_functions(spark, "generator_funcs")) - _NOT_CALLED | {"json_tuple"}
    assert {"explode", "inline_outer"} <= names

    unknown = {name for name in names if not (found := _parsed(name)) or not found.generates}

    assert unknown == set()


@pytest.mark.parametrize(
    "group", ["string_funcs", "math_funcs", "datetime_funcs", "array_funcs", "map_funcs"]
)
def test_no_plain_function_of_spark_is_taken_for_more(spark: SparkSession, group: str) -> None:
    """A function of one row is refused nowhere, and its arguments are all it reads."""
    for name in _functions(spark, group):
        found = _parsed(name)
        assert found is None or not (found.aggregates or found.generates), name
        assert found is None or set(found.columns) <= {"a", "b", "c"}, name
