"""The SQL text by which the Kafka key of a row is read."""

from __future__ import annotations

import pytest
from pyspark.sql import types as T

from flowcore.api.schema import Schema
from flowcore.spark.topics import row_keys
from flowcore.spark.topics.formats.json_text import JsonSql
from flowcore.spark.topics.formats.sql_format import RECORD
from flowcore.spark.topics.row_keys import ROW_KEY, RowKey


def test_a_key_of_several_columns_is_read_as_a_json_value_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same options, and what is no value of a column is no key."""
    monkeypatch.setattr(row_keys, "spark_type", lambda _: T.NullType())  # it needs a JVM
    schema = Schema.parse("a TINYINT, b STRING, c DOUBLE, e DECIMAL(9, 2)")
    key = RowKey(schema.columns)

    _, (unreadable, _) = key.unknown_reasons()

    assert JsonSql().parse(schema, "key") in key.parse()
    misfits = JsonSql().misfits(schema, "key")
    assert len(misfits) == 6
    for misfit in misfits:
        assert misfit.replace(f"{RECORD}.", f"{ROW_KEY}.") in unreadable
