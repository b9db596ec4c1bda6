"""Values: how do a Kafka record's bytes become columns, and which records are bad?

A record is bad if its payload is no value of the topic's format and schema: it does not parse, a field has
another type, a ``NOT NULL`` field has no value, bytes stand behind the value, or there is no value
at all. All is SQL text over the payload: the source's column ``value``, or a part of it.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession

from flowcore.api.connectors import KafkaTopic
from flowcore.api.operators import Read, topic_of
from flowcore.api.value_formats import runs_in_python, value_schema
from flowcore.errors import PlanError
from flowcore.spark.frame.sql import literal, quote
from flowcore.spark.topics.formats import avro, json_text, python, raw
from flowcore.spark.topics.formats.typed import require_type, required, typed

__all__ = ["RECORD", "bad_record", "fail_at", "parsed", "shown", "use_format", "written"]

RECORD = "record"
_SHOWN = 200


def use_format(topic: KafkaTopic, spark: SparkSession) -> None:
    """Make a session know what a topic's format needs; before the text of `parsed` or `written` is used."""
    if runs_in_python(topic):
        python.register(spark, topic)


def parsed(read: Read, payload: str = "value") -> str:
    """The payload as the struct `RECORD`, which has the schema's fields."""
    # Spark pushes a filter through the projection that parses, and parses again for each of its parts.
    # It leaves alone what is not deterministic, and to it the number of a partition is not.
    return f"CASE WHEN spark_partition_id() >= 0 THEN {_parsed(read, payload)} END AS {RECORD}"


def bad_record(read: Read, payload: str = "value") -> str:
    """True if the payload that was `parsed` did not fit the schema; never null."""
    missing = [f"{RECORD}.{quote(c.name)} IS NULL" for c in read.schema.columns if not c.nullable]
    # In this order: what could fail on a misfit is asked only of those that fit so far.
    bad = [f"{RECORD} IS NULL", *missing, *_misfits(read, payload)]
    return f"CASE {' '.join(f'WHEN {condition} THEN true' for condition in bad)} ELSE false END"


def written(topic: KafkaTopic, columns: Mapping[str, str], frame: DataFrame) -> str:
    """The bytes of a value.

    Args:
        topic: Where it is written to.
        columns: SQL text of the columns, by name.
        frame: What the text is about.

    Raises:
        PlanError: A column is of a type that the topic's schema does not take.
    """
    if topic.format == "json":
        return json_text.written(columns)
    use_format(topic, frame.sparkSession)
    given = {name.lower(): text for name, text in columns.items()}
    schema = value_schema(topic)
    if schema is None:  # raw, of the only column
        ((name, text),) = columns.items()
        ((_, kind),) = frame.selectExpr(f"{text} AS {quote(name)}").dtypes
        require_type(topic, name, kind, ["binary", "string"], "BINARY")
        return raw.written(columns)
    values = typed(topic, {column: given[column.name.lower()] for column in schema.columns}, frame)
    if topic.format == "raw":
        return raw.written(values)
    if runs_in_python(topic):
        return python.written(topic, schema, values)
    avro_format = avro.format_of_topic(topic)
    needed = avro.required_columns(avro_format.schema)
    return avro.written(
        avro_format,
        {
            column.name: required(topic, column.name, column.type, values[column.name])
            if column.name in needed or not column.nullable
            else values[column.name]
            for column in schema.columns
        },
    )


def shown(payload: str) -> str:
    """The begin of a payload on one line: as text if it is text, else in hexadecimal."""
    text = f"CAST({payload} AS STRING)"
    line = f"regexp_replace(substring({text}, 1, {_SHOWN}), '[\\\\x00-\\\\x1f]+', ' ')"
    bare = f"concat('bytes ', hex(substring({payload}, 1, {_SHOWN // 2})))"
    return f"coalesce(CASE WHEN is_valid_utf8({text}) THEN {line} ELSE {bare} END, 'nothing')"


def fail_at(reason: str) -> str:
    """A condition that stops what runs, and says which message did it; ``reason`` is SQL text."""
    message = literal("%s[%d]@%d %s and on_error='fail'; it holds: %s")
    where = f"format_string({message}, topic, partition, offset, {reason}, {shown('value')})"
    return f"CAST(raise_error({where}) AS BOOLEAN)"


def _parsed(read: Read, payload: str) -> str:
    topic = _topic(read)
    if topic.format == "json":
        return json_text.parsed(read.schema, payload)
    if topic.format == "raw":
        return raw.parsed(read.schema, payload)
    if runs_in_python(topic):
        return python.parsed(topic, read.schema, payload)
    return avro.parsed(avro.format_of_topic(topic), read.schema, payload)


def _misfits(read: Read, payload: str) -> list[str]:
    topic = _topic(read)
    if topic.format == "json":
        return json_text.misfits(read.schema, RECORD, payload)
    if topic.format == "raw":
        return raw.misfits(read.schema, RECORD)
    if runs_in_python(topic):
        return []
    return avro.misfits(avro.format_of_topic(topic), read.schema, RECORD, payload)


def _topic(read: Read) -> KafkaTopic:
    topic = topic_of(read)
    if topic is None:
        msg = f"operator {read.name!r} is no Kafka topic: its records have no payload"
        raise PlanError(msg)
    return topic
