"""Formats that Spark does not know, in SQL text: functions in Python, called with Arrow arrays.

They are registered in the session under a name made of what they do, so that text can call them. Nothing
that a single record holds makes them fail: it is null where it cannot be read, and has an error
where it cannot be written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Literal

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType

from flowcore.api.connectors import KafkaTopic
from flowcore.api.schema import Schema
from flowcore.api.value_formats import format_of, value_schema
from flowcore.serializers.formats.rows_bulk import bulk_format
from flowcore.serializers.formats.value_format import ValueFormat
from flowcore.spark.frame.sql import literal, quote, struct

__all__ = ["parsed", "register", "written"]


def register(spark: SparkSession, topic: KafkaTopic) -> None:
    """Make the functions of a topic's format known to a session."""
    schema = value_schema(topic)
    if schema is None:
        return
    ddl = ", ".join(f"{quote(column.name)} {column.type}" for column in schema.columns)
    rows = to_arrow_type(StructType.fromDDL(ddl), timezone="UTC")
    value_format = format_of(topic)
    functions: dict[Literal["read", "write"], tuple[Any, str]] = {
        "read": (_reader(value_format, rows), ddl),
        "write": (_writer(value_format, rows), "value BINARY, error STRING"),
    }
    for what, (function, returns) in functions.items():
        made: Any = arrow_udf(function, returns)  # type: ignore[call-overload]  # hints tell its kind
        spark.udf.register(_name(topic, schema, what), made)


def parsed(topic: KafkaTopic, schema: Schema, payload: str) -> str:
    """The columns as a struct; null where the payload is no such value."""
    return f"{_name(topic, schema, 'read')}({payload})"


def written(topic: KafkaTopic, schema: Schema, columns: Mapping[str, str]) -> str:
    """The bytes of one value; stops the query where there are none."""
    result = f"{_name(topic, schema, 'write')}({struct(columns)})"
    what = literal(f"a row cannot be written to topic {topic.name} as {topic.format}: ")
    stop = f"CAST(raise_error(concat({what}, {result}.error)) AS BINARY)"
    return f"CASE WHEN {result}.error IS NULL THEN {result}.value ELSE {stop} END"


def _reader(value_format: ValueFormat[Any], rows: Any) -> Callable[[Any], Any]:
    def read(payloads: pa.Array) -> pa.Array:  # type: ignore[type-arg]  # Spark reads the hint
        found: pa.Array = bulk_format(value_format, rows).decode(payloads)  # type: ignore[type-arg]
        return found

    return read


def _writer(value_format: ValueFormat[Any], rows: Any) -> Callable[[Any], Any]:
    def write(values: pa.Array) -> pa.Array:  # type: ignore[type-arg]  # Spark reads the hint
        found: pa.Array = bulk_format(value_format, rows).encode(values)  # type: ignore[type-arg]
        return found

    return write


def _name(topic: KafkaTopic, schema: Schema, what: Literal["read", "write"]) -> str:
    made_of = f"{topic.format} {schema.ddl} {sorted(topic.format_options.items(), key=str)}"
    return f"flowcore_{what}_{hashlib.sha256(made_of.encode()).hexdigest()[:16]}"
