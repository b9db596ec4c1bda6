"""Values of Kafka records: parse bytes into columns, find bad records, and write columns as bytes.

A record is bad if its payload is not a value of the topic's format and schema: it cannot be parsed, a field
has another type, a ``NOT NULL`` field has no value, bytes follow the value, or there is no value. Everything
here is SQL text over the payload: the source's column ``value``, or a part of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from pyspark.sql import DataFrame, SparkSession

from flowcore.api.connectors import KafkaTopic
from flowcore.api.operators import Read, Write
from flowcore.api.schema import Schema
from flowcore.api.value_formats import runs_in_python, value_schema
from flowcore.errors import PlanError
from flowcore.spark.frame.sql import literal, quote, visible
from flowcore.spark.topics.formats.avro import AvroSql
from flowcore.spark.topics.formats.json_text import JsonSql
from flowcore.spark.topics.formats.python import PythonFormatSql
from flowcore.spark.topics.formats.sql_format import (
    RECORD,
    RawSql,
    SqlFormat,
    cast_columns,
    misfit_text,
    null_text,
    outside_calendar,
    require_type,
    spark_type,
)

__all__ = [
    "RECORD",
    "describe_misfit",
    "fail_with_payload",
    "is_bad_record",
    "parse_value",
    "register_format",
    "show_payload",
    "write_message",
    "write_value",
]

_SHOWN = 200


def register_format(topic: KafkaTopic, spark: SparkSession) -> None:
    """Register in a session what a topic's format needs; call it before `parse_value`'s text is used."""
    if runs_in_python(topic):
        PythonFormatSql(topic).register(spark)


def parse_value(read: Read, payload: str = "value") -> str:
    """The payload as the struct `RECORD`, which has the schema's fields."""
    # Spark pushes a filter through a projection, and would parse again for each part of the filter. It does
    # not do so with expressions that are not deterministic, such as the number of a partition.
    value = _sql_format(_topic(read)).parse(read.schema, payload)
    return f"CASE WHEN spark_partition_id() >= 0 THEN {value} END AS {RECORD}"


def is_bad_record(read: Read, payload: str = "value", elsewhere: Collection[str] = ()) -> str:
    """True if the payload that `parse_value` parsed does not fit the schema; never null.

    The columns of ``elsewhere`` need not be in the payload.
    """
    missing = [f"{RECORD}.{quote(name)} IS NULL" for name in _required(read, elsewhere)]
    # In this order: a check that could fail on a misfit is evaluated only if the record fits so far.
    bad = [f"{RECORD} IS NULL", *missing, *_sql_format(_topic(read)).misfits(read.schema, payload)]
    bad += [condition for condition, _ in _out_of_range(read)]
    return f"CASE {' '.join(f'WHEN {condition} THEN true' for condition in bad)} ELSE false END"


def describe_misfit(read: Read, payload: str = "value", elsewhere: Collection[str] = ()) -> str:
    """Why a payload is bad: the first field with a wrong value, as SQL text; empty if no field is wrong."""
    cases = _sql_format(_topic(read)).describe_misfits(read.schema, payload)
    cases += _out_of_range(read)
    for name in _required(read, elsewhere):
        missing = literal(
            f"field {name!r} is missing or null, and is {read.schema.types[name.lower()]} NOT NULL"
        )
        cases.append((f"{RECORD}.{quote(name)} IS NULL", missing))
    texts = " ".join(f"WHEN {condition} THEN concat(': ', {text})" for condition, text in cases)
    return visible(f"CASE {texts} ELSE '' END") if cases else "''"


def _required(read: Read, elsewhere: Collection[str]) -> list[str]:
    """The columns that a payload must have."""
    return [each.name for each in read.schema.columns if not each.nullable and each.name not in elsewhere]


def _out_of_range(read: Read) -> list[tuple[str, str]]:
    """Conditions under which a date or time is one that Python cannot hold, with the reason."""
    found = []
    for column in read.schema.columns:
        value = f"{RECORD}.{quote(column.name)}"
        if condition := outside_calendar(value, spark_type(column)):
            shown = misfit_text(column, f"CAST({value} AS STRING)")
            found.append((condition, f"concat({shown}, ' of the years 1 to 9999')"))
    return found


def write_value(topic: KafkaTopic, columns: Mapping[str, str], frame: DataFrame) -> tuple[str, str | None]:
    """The bytes of a value of columns, which are SQL text over a frame; null fields are left out of JSON.

    Returns:
        SQL text of the bytes, and of why a value cannot be written: null if it can, None if every value can.
        Then the bytes are those of a JSON object of the columns.

    Raises:
        PlanError: A column has a type that cannot be written as the type in the topic's schema.
    """
    what = literal(f"cannot be written as {topic.format}: ")
    if topic.format == "json":
        return _write_json(value_schema(topic), columns, frame, what)
    sql_format, typed = _sql_format(topic), _typed_columns(topic, columns, frame)
    value, reason = sql_format.write(typed), sql_format.unwritable(typed)
    if reason is None:
        return value, None
    instead = JsonSql().write(columns)
    return f"CASE WHEN {reason} IS NULL THEN {value} ELSE {instead} END", f"concat({what}, {visible(reason)})"


def _write_json(
    schema: Schema | None, columns: Mapping[str, str], frame: DataFrame, what: str
) -> tuple[str, str | None]:
    """An object of the schema's columns, in its spelling, since a reader takes no other."""
    names = {name.lower(): name for name in (columns if schema is None else schema.names)}
    typed = {names[name.lower()]: text for name, text in columns.items() if name.lower() in names}
    cases = [*_nulls(schema, typed), *_unreadable_times(typed, frame)]
    reason = f"concat({what}, CASE {' '.join(cases)} END)" if cases else None
    return JsonSql().write(typed), reason


def _nulls(schema: Schema | None, columns: Mapping[str, str]) -> Iterator[str]:
    """Cases of a column that is null and must not be, each with the reason."""
    required = {each.name for each in (() if schema is None else schema.columns) if not each.nullable}
    for name, text in columns.items():
        if name in required:
            yield f"WHEN {text} IS NULL THEN {null_text(name)}"


def _unreadable_times(columns: Mapping[str, str], frame: DataFrame) -> Iterator[str]:
    """Cases of a column with a date or time that no reader of JSON takes, each with the reason."""
    kinds = {quote(field.name): field.dataType for field in frame.schema.fields}
    for name, text in columns.items():
        if text in kinds and (outside := outside_calendar(text, kinds[text])):
            yield f"WHEN {outside} THEN {literal(f'column {name!r} is outside the years 1 to 9999')}"


def _typed_columns(topic: KafkaTopic, columns: Mapping[str, str], frame: DataFrame) -> dict[str, str]:
    register_format(topic, frame.sparkSession)
    schema = value_schema(topic)
    if schema is None:  # raw, of the only column
        ((name, text),) = columns.items()
        ((_, kind),) = frame.selectExpr(f"{text} AS {quote(name)}").dtypes
        require_type(topic, name, kind, ["binary", "string"], "BINARY")
        return dict(columns)
    texts = {name.lower(): text for name, text in columns.items()}
    return cast_columns(topic, {column: texts[column.name.lower()] for column in schema.columns}, frame)


def write_message(
    sink: Write, topic: KafkaTopic, columns: Mapping[str, str], frame: DataFrame
) -> tuple[str, str | None]:
    """The bytes of a sink's value, as `write_value`; null, a tombstone, where its record deletes a key.

    Raises:
        PlanError: As for `write_value`.
    """
    written = {name: text for name, text in columns.items() if name != sink.deleted}
    value, reason = write_value(topic, written, frame)
    if sink.deleted is None:
        return value, reason
    value = f"CASE WHEN {columns[sink.deleted]} THEN NULL ELSE {value} END"
    return value, reason and f"CASE WHEN {columns[sink.deleted]} THEN NULL ELSE {reason} END"


def show_payload(payload: str) -> str:
    """The beginning of a payload on one line: as text if it is UTF-8, otherwise in hexadecimal."""
    text = f"CAST({payload} AS STRING)"
    line = visible(f"substring({text}, 1, {_SHOWN})")
    bare = f"concat('bytes ', hex(substring({payload}, 1, {_SHOWN // 2})))"
    return f"coalesce(CASE WHEN is_valid_utf8({text}) THEN {line} ELSE {bare} END, 'nothing')"


def fail_with_payload(reason: str) -> str:
    """A condition that fails the query and names the message; ``reason`` is SQL text."""
    message = literal("%s[%d]@%d %s and on_error='fail'; it holds: %s")
    where = f"format_string({message}, topic, partition, offset, {reason}, {show_payload('value')})"
    return f"CAST(raise_error({where}) AS BOOLEAN)"


def _sql_format(topic: KafkaTopic) -> SqlFormat:
    if topic.format == "json":
        return JsonSql()
    if topic.format == "raw":
        return RawSql()
    return PythonFormatSql(topic) if runs_in_python(topic) else AvroSql(topic)


def _topic(read: Read) -> KafkaTopic:
    topic = read.topic
    if topic is None:
        msg = f"operator {read.name!r} is not a Kafka topic: its records have no payload"
        raise PlanError(msg)
    return topic
