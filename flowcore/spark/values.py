"""Values: how do a Kafka record's bytes become columns, and which records are bad?

A record is bad if its value is no JSON object of the schema: it does not parse, a field has another
type, a ``NOT NULL`` field has no value, text stands behind the object, or there is no value at all.
Everything is native SQL over the payload: the source's column ``value``, or a part of it. One gap is known: of several objects in
one value Spark reads the first.
"""

from __future__ import annotations

from flowcore.graph.operators import Read
from flowcore.spark.sql import literal, quoted

__all__ = ["RECORD", "bad_record", "fail_at", "parsed"]

RECORD = "record"
_CORRUPT = "_flowcore_corrupt"


def parsed(read: Read, payload: str = "value") -> str:
    """The payload as the struct `RECORD`: the schema's fields and, if it does not fit, its text."""
    ddl = ", ".join(f"{quoted(column.name)} {column.type}" for column in read.schema.columns)
    options = f"map('mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', '{_CORRUPT}')"
    record = f"from_json(CAST({payload} AS STRING), {literal(f'{ddl}, {_CORRUPT} STRING')}, {options})"
    # Spark pushes a filter through the projection that parses, and parses again for each of its parts.
    # It leaves alone what is not deterministic, and to it the number of a partition is not.
    return f"CASE WHEN spark_partition_id() >= 0 THEN {record} END AS {RECORD}"


def bad_record(read: Read, payload: str = "value") -> str:
    """True if the payload that was `parsed` did not fit the schema; never null."""
    # Spark's parser stops at the end of the first object, whatever follows. Trimming is dear and rare.
    text = f"CAST({payload} AS STRING)"
    trimmed = rf"TRIM(TRAILING ' \t\r\n' FROM {text})"
    bad = [
        f"{RECORD} IS NULL",
        f"{RECORD}.{_CORRUPT} IS NOT NULL",
        f"(NOT endswith({text}, '}}') AND NOT endswith({trimmed}, '}}'))",
        *(f"{RECORD}.{quoted(c.name)} IS NULL" for c in read.schema.columns if not c.nullable),
    ]
    return f"({' OR '.join(bad)})"


def fail_at(topic: str) -> str:
    """A condition that stops the query and says which record did it."""
    message = literal(f"{topic}[%d]@%d does not fit the schema and on_error='fail'; it holds: %s")
    where = f"format_string({message}, partition, offset, CAST(value AS STRING))"
    return f"CAST(raise_error({where}) AS BOOLEAN)"
