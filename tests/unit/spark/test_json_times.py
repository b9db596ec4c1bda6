"""The SQL text that finds values that Spark reads as other times, and its patterns, which Java has, too."""

from __future__ import annotations

import re

import pytest
import sqlglot
from pyspark.sql import types as T
from sqlglot import exp

from flowcore.api.schema import Column, Schema
from flowcore.spark.topics.formats import json_times
from flowcore.spark.topics.formats.json_text import JsonSql
from flowcore.spark.topics.formats.json_times import TIME_OF_DAY, misread_times

NESTED = T.StructType([
    T.StructField("TIMESTAMP", T.LongType()),
    T.StructField("all", T.ArrayType(T.MapType(T.StringType(), T.TimestampType()))),
    T.StructField("odd`name", T.TimestampNTZType()),
])  # fmt: skip


@pytest.mark.parametrize(
    ("payload", "is_searched"),
    [
        ('{"at":18446744073710}', True),
        ('{"at":9223372036855}', True),
        ('{"at":[1, -9223372036855]}', True),
        ('{"at":1792000000000}', False),
        ('{"price":0.30000000000000004,"card":"4111111111111111","id":123456789012345678901}', False),
        ('{"at":1792000000}', False),
        ('{"at":"12:30:00"}', True),
        ('{"at": " \x7f1:30"}', True),
        ('{"at":"T1230"}', True),
        (r'{"at":"\u005412:30"}', True),
        (r'{"at":"\t12:30"}', True),
        (r'{"at":"1\u0032:30"}', True),
        (r'{"at":"12\u003a30"}', True),
        (r'{"name":"a\u003cb","Time":"Total","at":"2026-03-01T12:30:00Z"}', False),
    ],
)
def test_a_payload_is_read_again_only_if_a_time_may_be_misread(payload: str, is_searched: bool) -> None:
    """Reading doubles the cost of a payload."""
    assert (re.search(json_times._MAY_BE_MISREAD, payload) is not None) == is_searched


@pytest.mark.parametrize(
    ("text", "is_of_today"),
    [("12:30", True), ("\t 1:30:00.5", True), ("T12", True), ("2026-03-01 12:30", False), ("-12:30", False)],
)
def test_a_time_of_day_is_distinguished_from_a_time(text: str, is_of_today: bool) -> None:
    """It has no date before it."""
    assert (re.search(TIME_OF_DAY, text) is not None) == is_of_today


def test_times_within_a_column_are_read_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of no zone are not, since Spark reads them right."""
    monkeypatch.setattr(json_times, "spark_type", lambda _: NESTED)  # Spark's parser needs a JVM
    columns = [Column("n", "BIGINT"), Column("x", "STRUCT<TIMESTAMP: BIGINT, all: ARRAY<MAP<...>>>")]

    ((condition, why),) = misread_times(columns, "`text`")

    ddl = "`x` STRUCT<`TIMESTAMP`: bigint, `all`: ARRAY<MAP<string, STRING>>, `odd``name`: timestamp_ntz>"
    assert condition.count(ddl) == 1
    tree = sqlglot.parse_one(f"SELECT {condition}, {why}", dialect="spark")
    patterns = {each.expression.name for each in tree.find_all(exp.RegexpLike)}
    assert {json_times._MAY_BE_MISREAD, TIME_OF_DAY} < patterns


def test_a_text_that_is_not_a_variant_is_not_taken_for_one() -> None:
    """An object that names a field twice has no type; a condition that is null would not hold."""
    column = Column("s", "STRING")
    schema = Schema((column,))

    texts = [*JsonSql().misfits(schema, "value"), JsonSql().describe_misfits(schema, "value")[-1][0]]

    assert [text for text in texts if "schema_of_variant" in text]
    assert all("coalesce(schema_of_variant(" in text for text in texts if "schema_of_variant" in text)


def test_a_text_is_not_a_number_of_days() -> None:
    """Spark falls back to the rules of its first version if a text is not a date."""
    schema = Schema((Column("d", "DATE"),))

    assert "'enableDateTimeParsingFallback', 'false'" in JsonSql().parse(schema, "value")
