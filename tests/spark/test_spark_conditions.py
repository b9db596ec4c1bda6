"""A condition that Python evaluates has the value that Spark gives it."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from flowcore.keyed.conditions import evaluate
from flowcore.settings import Settings
from flowcore.spark.frame.conditions import parse_condition
from flowcore.spark.run.session import live_session

pytestmark = pytest.mark.spark

TYPES = {"a": "BIGINT", "b": "INT", "t": "STRING", "f": "BOOLEAN", "d": "DOUBLE"}
FIELDS = {name: (name, kind) for name, kind in TYPES.items()}
BY_PYTHON = [
    "a > 0",
    "`a` >= -1",
    "(a < 5)",
    "5 <= a",
    "a = b",
    "a <> b",
    "a != 1",
    "a == 1",
    "b < 9223372036854775807",
    "b > 2147483648",
    "a IN (1, 2, -3)",
    "a NOT IN (1, 2)",
    "b IN (a, 7)",
    "a BETWEEN -1 AND 1",
    "a NOT BETWEEN b AND 5",
    "a IS NULL",
    "t IS NOT NULL",
    "d IS NULL",
    "t = 'x'",
    't <> "ż"',
    "t IN ('x', '')",
    "f",
    "NOT f",
    "f AND a > 0",
    "f OR a > 0",
    "NOT (f OR t = 'x') AND b = 1",
    "a > 0 -- a comment",
    "a = 05",
    "f AND (f OR f)",
]
BY_SPARK = [
    "1 IS NULL",
    "NOT ('x' IS NULL)",
    "d > 1",
    "t > 'a'",
    "a = '5'",
    "a = 1.5",
    "a + 1 > 5",
    "a = NULL",
    "a IN (1, NULL)",
    "a IN ('1')",
    "a <=> 5",
    "t LIKE 'x'",
    "true",
    "1 = 1",
    "a > 9223372036854775808",
    "t = 'a\\nb'",
    "t = upper(t)",
    "f = true",
    "f > false",
    "a",
    "t",
    "t = 'a' COLLATE UTF8_LCASE",
    "a > 5L",
    "a = 1e3",
    "unknown > 5",
    "x.a > 5",
    "a > (SELECT 1)",
    "a IN (SELECT 1)",
    "a >",
    "CASE WHEN f THEN true END",
    "a BETWEEN 1 AND '5'",
    "NOT a",
    "a AND f",
    "A > 0",
]


def test_python_gives_the_value_of_spark(spark: SparkSession) -> None:
    """For each condition, over all combinations of values and nulls."""
    values = [
        [None, -(2**63), -1, 0, 1, 2],
        [None, -1, 1, 7],
        [None, "", "x", "ż"],
        [None, True, False],
        [None, 1.5],
    ]
    ddl = ", ".join(f"{name} {kind}" for name, kind in TYPES.items())
    live = live_session(spark, Settings.of({}, environment={}))
    frame = live.createDataFrame(list(itertools.product(*values)), ddl)
    frame = frame.selectExpr("*", *(f"({text}\n) AS c{place}" for place, text in enumerate(BY_PYTHON)))
    (rows,) = pa.Table.from_batches(frame.toArrow().to_batches()).combine_chunks().to_batches()
    columns = {name: rows.column(name) for name in TYPES}

    for place, text in enumerate(BY_PYTHON):
        condition = parse_condition(text, FIELDS)
        assert condition is not None, text
        assert evaluate(condition, columns).to_pylist() == rows.column(f"c{place}").to_pylist(), text


@pytest.mark.parametrize("text", BY_SPARK)
def test_other_conditions_are_left_to_spark(text: str) -> None:
    """Where a cast, an escape, a collation or a function decides."""
    assert parse_condition(text, FIELDS) is None
