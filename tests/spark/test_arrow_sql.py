"""An expression that Arrow evaluates has the value that Spark gives it."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from flowcore.keyed.arrow_expressions import Evaluation, Field
from flowcore.settings import Settings
from flowcore.spark.frame.arrow_sql import (
    ARROW_TYPES,
    VOID,
    TypedExpression,
    parse_expression,
)
from flowcore.spark.frame.record_ids import key_text
from flowcore.spark.run.session import live_session

pytestmark = pytest.mark.spark

TYPES = {"a": "BIGINT", "b": "INT", "t": "STRING", "f": "BOOLEAN", "d": "DOUBLE"}
FIELDS: dict[str, TypedExpression | None] = {
    **{name: (Field(name), kind) for name, kind in TYPES.items()}, "opaque": None,
}  # fmt: skip
BY_ARROW = [
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
    f"a IN ({', '.join(map(str, range(400)))})",
    "1 IN (1, 2)",
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
    "true",
    "1 = 1",
    "1 IS NULL",
    "NOT ('x' IS NULL)",
    "a > 5L",
    "CASE WHEN f THEN true END",
    "CASE WHEN f THEN a = 1 ELSE b = 1 END",
    "CASE WHEN f THEN a = 1 END AND b = 1",
    "NOT CASE WHEN f THEN a = 1 END",
    "if(CASE WHEN f THEN a = 1 END, 1, 0)",
    "octet_length(CASE WHEN f THEN t END)",
    "CASE WHEN f THEN a END + 1",
    "t = ''",
    "t IN ('', 'x')",
    "a + b || t",
    "t || (a - 1)",
    "coalesce(b, -2147483648) - 1",
    "'a' 'b' || t",
    "coalesce(f, a > 0, false)",
    "concat(t, ':', a)",
    "concat('h', a, ':', b, ':', t)",
    "t || ':0'",
    "a || b",
    "concat_ws(':', 'h', t, a, nullif(t, ''))",
    "concat_ws(', ', t, 'x')",
    "CASE WHEN t <> 'x' THEN ':' || t ELSE '' END",
    "CASE t WHEN 'x' THEN 'one' WHEN 'ż' THEN 'two' END",
    "CASE a WHEN 1 THEN a WHEN b THEN b ELSE 0 END",
    "CASE WHEN a IS NULL THEN b END",
    "CASE WHEN a > 0 THEN t END",
    "coalesce(t, CAST(a AS STRING), '')",
    "CAST(NULL AS STRING)",
    "nullif(a, b)",
    "nullif(t, 'x')",
    "coalesce(a, b, 1Y)",
    "if(f, t, 'no')",
    "if(f AND a = 1, a, null)",
    "1 + int(a >= 1) + int(b > 5)",
    "a + b",
    "a - 1",
    "a * a",
    "b * 2000000000",
    "b - a",
    "CAST(f AS TINYINT)",
    "a + 1 > 5",
    "to_json(named_struct('a', a, 'odd name', t, 'f', f))",
    "octet_length(t)",
    "sha2(t, 256)",
    f"concat_ws(':', 'h', {key_text({'t': 't', 'a': 'a'})}, a)",
    "CASE WHEN a BETWEEN -62135596800000 AND 253402300799999 THEN timestamp_millis(a) END",
]
BY_SPARK = [
    "d > 1",
    "t > 'a'",
    "a = '5'",
    "a = 1.5",
    "a = NULL",
    "a IN (1, NULL)",
    "a IN ('1')",
    "a <=> 5",
    "t LIKE 'x'",
    "a > 9223372036854775808",
    "t = 'a\\nb'",
    "t = upper(t)",
    "f = true",
    "f > false",
    "a",
    "t",
    "t = 'a' COLLATE UTF8_LCASE",
    "a = 1e3",
    "unknown > 5",
    "x.a > 5",
    "a > (SELECT 1)",
    "a IN (SELECT 1)",
    "a >",
    "a BETWEEN 1 AND '5'",
    "NOT a",
    "a AND f",
    "A > 0",
]


def test_arrow_gives_the_value_of_spark(spark: SparkSession) -> None:
    """For each expression, over all combinations of values and nulls."""
    values = [
        [None, -(2**63), -1, 0, 1, 2],
        [None, -1, 1, 7],
        [None, "", "x", "ż", 'a"\\\x01\x1f\n\x7f/' + "é" * 99],
        [None, True, False],
        [None, 1.5],
    ]
    ddl = ", ".join(f"{name} {kind}" for name, kind in TYPES.items())
    live = live_session(spark, Settings.of({}, environment={}))
    frame = live.createDataFrame(list(itertools.product(*values)), ddl)
    frame = frame.selectExpr("*", *(f"({text}\n) AS c{place}" for place, text in enumerate(BY_ARROW)))
    (rows,) = pa.Table.from_batches(frame.toArrow().to_batches()).combine_chunks().to_batches()
    columns = {name: rows.column(name) for name in TYPES}

    for place, text in enumerate(BY_ARROW):
        found = parse_expression(text, FIELDS)
        assert found is not None, text
        expected = rows.column(f"c{place}")
        assert Evaluation(columns).column(found[0], rows.num_rows, expected.type).equals(expected), text
        assert ARROW_TYPES.get(found[1], pa.null()) == expected.type or found[1] == VOID, text
        for start, length in ((0, 0), (0, 1), (7, 1), (50, 1), (400, 1)):
            few = {name: column.slice(start, length) for name, column in columns.items()}
            some = Evaluation(few).column(found[0], length, expected.type)
            assert some.equals(expected.slice(start, length)), (text, start)


@pytest.mark.parametrize("text", BY_SPARK)
def test_other_expressions_are_left_to_spark(text: str) -> None:
    """Where a cast, an escape, a collation or a function decides."""
    found = parse_expression(text, FIELDS)
    assert found is None or found[1] != "BOOLEAN"


@pytest.mark.parametrize(
    "text",
    [
        "t = 'it''s'", "'''' || t", 't || "a""b"', "concat('a''b', t)", "t || a - 1", "a || b + 1",
        "to_json(struct(a = 1, t))", "to_json(struct((a)))", "to_json(STRUCT (a))",
        "opaque", "opaque || t", "concat(t, d)", "concat(t, f)", "CASE WHEN f THEN t ELSE a END",
        "coalesce(t, 1)", "CAST(d AS STRING)", "CAST(a AS INT)", "concat_ws(t, t)", "nullif(t, 1)", "300Y",
        "concat_ws(', ', t)", "CAST(t AS CHAR(2))", "CAST(t AS STRING COLLATE UTF8_LCASE)",
        "t || 'a\\n'", "upper(t)", "timestamp_millis(d)", "timestamp_millis(a, b)", "a / 2", "a % 2", "a + d",
        "CAST(a AS SMALLINT)", "to_json(t)", "to_json(named_struct('d', d))", "sha2(t, 512)",
        "CASE WHEN d > 1 THEN a END", "CAST(t AS VARCHAR(2))", "TRY_CAST(t AS INT)", "CAST(t AS INT)",
    ],
)  # fmt: skip
def test_values_of_other_types_are_left_to_spark(text: str) -> None:
    """Python would have to cast as Spark does."""
    assert parse_expression(text, FIELDS) is None


def test_texts_that_may_not_be_utf_8_are_hashed_and_written_by_spark() -> None:
    """Python has no text of other bytes; parts of which it needs none are evaluated."""
    for text in ("sha2(t, 256)", "to_json(named_struct('t', t))"):
        assert parse_expression(text, FIELDS, is_utf8=False) is None
    assert parse_expression("to_json(named_struct('a', a)) || t", FIELDS, is_utf8=False) is not None
