"""SQL calls of Python functions for formats that Spark does not have; Spark passes Arrow arrays to them.

The functions are registered in the session under a name that is a digest of what they do, so that SQL text
can call them. No record makes them fail: a payload that cannot be read becomes null, and a value that cannot
be written gets an error text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType

from flowcore.api.connectors import KafkaTopic
from flowcore.api.schema import Schema
from flowcore.api.value_formats import format_of, value_schema
from flowcore.serializers.formats.arrow import arrow_format
from flowcore.spark.frame.sql import quote, struct
from flowcore.spark.topics.formats.sql_format import null_text

__all__ = ["PythonFormatSql"]


class PythonFormatSql:
    """Values of a topic that Python reads and writes."""

    def __init__(self, topic: KafkaTopic) -> None:
        self._topic = topic
        self._schema = value_schema(topic) or Schema(())

    def register(self, spark: SparkSession) -> None:
        """Register the functions of the format in a session."""
        if not self._schema.columns:
            return
        ddl = ", ".join(f"{quote(column.name)} {column.type}" for column in self._schema.columns)
        rows: Any = to_arrow_type(StructType.fromDDL(ddl), timezone="UTC")
        value_format = format_of(self._topic)

        def read(payloads: pa.Array) -> pa.Array:  # type: ignore[type-arg]  # Spark reads the hint
            found: pa.Array = arrow_format(value_format, rows).decode(payloads)  # type: ignore[type-arg]
            return found

        def write(values: pa.Array) -> pa.Array:  # type: ignore[type-arg]  # Spark reads the hint
            found: pa.Array = arrow_format(value_format, rows).encode(values)  # type: ignore[type-arg]
            return found

        for function, returns in ((read, ddl), (write, "value BINARY, error STRING")):
            made: Any = arrow_udf(function, returns)  # type: ignore[call-overload]  # hints tell its kind
            spark.udf.register(self._name(self._schema, function.__name__), made)

    def parse(self, schema: Schema, payload: str) -> str:
        """The columns as a struct; null if the payload does not fit."""
        return f"{self._name(schema, 'read')}({payload})"

    def misfits(self, schema: Schema, payload: str) -> list[str]:  # noqa: ARG002 - the protocol's
        """No conditions: a payload that does not fit is parsed as null."""
        return []

    def describe_misfits(self, schema: Schema, payload: str) -> list[tuple[str, str]]:  # noqa: ARG002 - the protocol's
        """No conditions: a payload that cannot be read has no fields."""
        return []

    def unwritable(self, columns: Mapping[str, str]) -> str:
        """SQL text of why a row cannot be written: a null in a required column, or the error of the format.

        Null if it can be written.
        """
        error = f"{self._name(self._schema, 'write')}({struct(columns)}).error"
        required = [each.name for each in self._schema.columns if not each.nullable]
        cases = " ".join(f"WHEN {columns[name]} IS NULL THEN {null_text(name)}" for name in required)
        return f"CASE {cases} ELSE {error} END" if cases else error

    def write(self, columns: Mapping[str, str]) -> str:
        """The bytes of one value; null if it cannot be written."""
        return f"{self._name(self._schema, 'write')}({struct(columns)}).value"

    def _name(self, schema: Schema, what: str) -> str:
        options = sorted(self._topic.format_options.items(), key=str)
        made_of = f"{self._topic.format} {schema.ddl} {options}"
        return f"flowcore_{what}_{hashlib.sha256(made_of.encode()).hexdigest()[:16]}"
