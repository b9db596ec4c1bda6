"""Values: how do a Kafka record's bytes become columns, and which records are bad?

A record is bad if its value is no JSON object of the schema: it does not parse, a field has another
type, a ``NOT NULL`` field has no value, text stands behind the object, or there is no value at all.
Everything is a native expression. One gap is known: of several objects in one value Spark reads the
first.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from flowcore.graph.schema import Schema

__all__ = ["bad_record", "fail_at", "parsed"]

_CORRUPT = "_flowcore_corrupt"


def parsed(schema: Schema, value: Column) -> Column:
    """The value as a struct of the schema's fields and, if it does not fit, its text."""
    ddl = ", ".join(f"`{column.name}` {column.type}" for column in schema.columns)
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    record = F.from_json(value.cast("string"), f"{ddl}, `{_CORRUPT}` STRING", options)
    # Spark pushes a filter through the projection that parses, and parses again for each of its parts.
    # It leaves alone what is not deterministic, and to it the number of a partition is not.
    return F.when(F.spark_partition_id() >= 0, record)


def bad_record(schema: Schema, record: Column, value: Column) -> Column:
    """True if the value that was `parsed` into the record did not fit the schema; never null."""
    # Spark's parser stops at the end of the first object, whatever follows. Trimming is dear and rare.
    text = value.cast("string")
    text_behind = ~text.endswith("}") & ~F.rtrim(text, F.lit(" \t\r\n")).endswith("}")
    bad = record.isNull() | record[_CORRUPT].isNotNull() | text_behind
    for column in schema.columns:
        if not column.nullable:
            bad |= record[column.name].isNull()
    return bad


def fail_at(topic: str) -> Column:
    """A condition that stops the query and says which record did it."""
    where = F.format_string(
        f"{topic}[%d]@%d does not fit the schema and on_error='fail'; it holds: %s",
        F.col("partition"), F.col("offset"), F.col("value").cast("string"),
    )  # fmt: skip
    return F.raise_error(where).cast("boolean")
