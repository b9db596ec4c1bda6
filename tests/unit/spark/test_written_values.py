"""The SQL text by which rows become the values of sinks: names, nulls, times, tags and spaces."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import sqlglot
from google.protobuf.descriptor_pb2 import FieldDescriptorProto
from pyspark.sql import types as T
from sqlglot import exp

from flowcore import Csv, Json, KafkaTopic
from flowcore.api.schema import Column
from flowcore.spark.topics import row_keys
from flowcore.spark.topics.formats.python import PythonFormatSql
from flowcore.spark.topics.formats.sql_format import null_text
from flowcore.spark.topics.messages import tag
from flowcore.spark.topics.row_keys import RowKey
from flowcore.spark.topics.sinks import _file_format
from flowcore.spark.topics.values import write_value


def _frame(**types: T.DataType) -> Any:
    """What the text of JSON needs of a frame: the types of its columns."""
    return SimpleNamespace(schema=T.StructType([T.StructField(name, kind) for name, kind in types.items()]))


def test_json_has_the_columns_in_the_spelling_of_the_schema() -> None:
    """Its reader finds no field of another spelling."""
    topic = KafkaTopic("out", "Item STRING, PRICE DOUBLE", key="id")
    columns = {"id": "`id`", "item": "`item`", "price": "`price`"}

    value, reason = write_value(topic, columns, _frame(item=T.StringType()))

    assert "named_struct('Item', `item`, 'PRICE', `price`)" in value
    assert reason is None


def test_json_is_not_written_without_a_column_that_its_schema_requires() -> None:
    """A reader of the same schema would take it for a bad record."""
    topic = KafkaTopic("out", "id BIGINT NOT NULL, at DATE, Name STRING NOT NULL")
    columns = {"id": "`id`", "at": "`at`", "name": "`name`"}

    _, reason = write_value(topic, columns, _frame(at=T.DateType()))

    assert reason is not None
    cases = sqlglot.parse_one(f"SELECT {reason}", dialect="spark").find(exp.Case)
    assert cases is not None
    nulls = [each.this.name for each in cases.args["ifs"] for each in [each.this] if isinstance(each, exp.Is)]
    assert nulls == ["id", "name"]
    assert "column \\'id\\' is NOT NULL and holds a null" in reason
    assert "outside the years 1 to 9999" in reason


def test_python_format_gets_no_null_of_a_required_column() -> None:
    """The format may hold a null, and a reader of the same schema would find a bad record."""
    topic = KafkaTopic(
        "out", "name STRING NOT NULL, number INT",
        format="protobuf", format_options={"message": FieldDescriptorProto},
    )  # fmt: skip

    reason = PythonFormatSql(topic).unwritable({"name": "`n`", "number": "`x`"})

    first, _, rest = reason.partition(" ELSE ")
    assert first == f"CASE WHEN `n` IS NULL THEN {null_text('name')}"
    assert rest.startswith("flowcore_write_")
    assert rest.endswith(".error END")


@pytest.mark.parametrize("time", [None, "`ms`"])
def test_a_value_that_is_json_for_a_dead_letter_has_no_tag(time: str | None) -> None:
    """A person reads the dead letter, not a reader of tagged elements."""
    topic = KafkaTopic("out", "id BIGINT", elements="tagged")

    value, headers = tag(topic, time, "`value`", "`misfit`")

    assert headers == {}
    assert value.startswith("concat(CASE WHEN `misfit` IS NULL THEN ")
    assert value.endswith(" ELSE X'' END, `value`)")
    assert value.count("`value`") == 1


def test_files_have_times_to_the_microsecond_and_texts_with_their_spaces() -> None:
    """Spark's writers cut both, unless they are told not to; options of the sink win."""
    times = {
        "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
        "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    }
    spaces = {"ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false"}

    assert _file_format(Json("out")) == ("json", times)
    assert _file_format(Csv("out")) == ("csv", {"header": "true", "sep": ",", **spaces, **times})
    assert _file_format(Json("out", options={"timestampFormat": "yyyy"}))[1]["timestampFormat"] == "yyyy"
    assert _file_format(Csv("out", options={"timestampFormat": "yyyy"}))[1]["timestampFormat"] == "yyyy"


@pytest.mark.parametrize(
    ("columns", "is_checked"),
    [(["BINARY"], False), (["STRING"], True), (["BINARY", "BINARY"], True)],
    ids=["bytes", "text", "json"],
)
def test_a_key_of_one_binary_column_is_any_bytes(
    columns: list[str], is_checked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key of several columns is JSON, which is text."""
    monkeypatch.setattr(row_keys, "spark_type", lambda _: T.BinaryType())  # Spark's parser needs a JVM
    key = RowKey([Column(f"k{number}", kind) for number, kind in enumerate(columns)])

    _, (unreadable, _) = key.unknown_reasons()

    assert ("NOT is_valid_utf8" in unreadable) == is_checked
    assert ("try_cast(key AS BINARY)" in key.parse()) != is_checked
