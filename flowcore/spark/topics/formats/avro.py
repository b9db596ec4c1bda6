"""Avro in SQL text, bare or behind a schema registry's header.

Spark reads what it cannot read as a row of nulls, and stops at the end of the first value, whatever
follows. So a value is good if it is, written again, the same bytes: that takes a tenth of the time
of reading it. Bytes that another writer made longer than need be (a number with leading zeros) are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flowcore.api.connectors import KafkaTopic
from flowcore.api.schema import Column, Schema
from flowcore.api.value_formats import format_of
from flowcore.serializers.formats import AvroFormat, ConfluentAvroFormat
from flowcore.serializers.formats.avro_types import avro_columns
from flowcore.spark.frame.sql import literal, quote, struct

__all__ = ["format_of_topic", "misfits", "parsed", "required_columns", "written"]

_HEADER_BYTES = 5
_SMALL = ("TINYINT", "SMALLINT")
_FIRST_AND_LAST = {
    "DATE": ("DATE'0001-01-01'", "DATE'9999-12-31'"),
    "TIMESTAMP": ("timestamp_micros(-62135596800000000)", "timestamp_micros(253402300799999999)"),
    "TIMESTAMP_NTZ": (
        "TIMESTAMP_NTZ'0001-01-01 00:00:00'",
        "TIMESTAMP_NTZ'9999-12-31 23:59:59.999999'",
    ),
}

Avro = AvroFormat | ConfluentAvroFormat


def format_of_topic(topic: KafkaTopic) -> Avro:
    """The Avro format of a topic."""
    found: Avro = format_of(topic)  # type: ignore[assignment] # its name says that it is
    return found


def parsed(value_format: Avro, schema: Schema, payload: str) -> str:
    """The fields of the Avro schema as a struct; null, or full of nulls, where there is no such value."""
    reader = _text(value_format.schema)
    if isinstance(value_format, AvroFormat):
        return _sized(schema, _read(payload, reader))
    cases = []
    for number, writer in _writers(value_format):
        value = _read(_body(payload), writer, None if writer == reader else reader)
        cases.append(f"WHEN {_header(payload)} = {_header_of(number)} THEN {value}")
    return _sized(schema, f"CASE {' '.join(cases)} END")


def misfits(value_format: Avro, schema: Schema, record: str, payload: str) -> list[str]:
    """What is true of payloads that do not fit; each is asked only where none before it is true."""
    reader = _text(value_format.schema)
    found = [f"{record}.{quote(name)} IS NULL" for name in required_columns(value_format.schema)]
    if isinstance(value_format, AvroFormat):
        found.append(f"to_avro({record}, {literal(reader)}) <> {payload}")
    else:
        for number, writer in _writers(value_format):
            again = f"to_avro({record}, {literal(reader)}) <> {_body(payload)}"
            if writer != reader:
                again = _not_written_as(writer, value_format.writers[number], _body(payload))
            found.append(f"{_header(payload)} = {_header_of(number)} AND ({again})")
    for column in schema.columns:
        found += _range(column, f"{record}.{quote(column.name)}")
    return found


def written(value_format: Avro, columns: Mapping[str, str]) -> str:
    """One value of these columns, which are of the schema's types."""
    value = f"to_avro({struct(columns)}, {literal(_text(value_format.schema))})"
    if isinstance(value_format, AvroFormat):
        return value
    return f"concat({_header_of(value_format.schema_id)}, {value})"


def _read(payload: str, writer: str, evolved: str | None = None) -> str:
    options = "'mode', 'PERMISSIVE'" + ("" if evolved is None else f", 'avroSchema', {literal(evolved)}")
    return f"from_avro({payload}, {literal(writer)}, map({options}))"


def _not_written_as(writer: str, schema: Any, body: str) -> str:
    value = _read(body, writer)
    nulls = "".join(f"WHEN {value}.{quote(name)} IS NULL THEN true " for name in required_columns(schema))
    again = f"to_avro({value}, {literal(writer)}) <> {body}"
    return f"CASE {nulls}ELSE {again} END" if nulls else again


def _sized(schema: Schema, value: str) -> str:
    """Avro knows no integer below INT; one that is too large for its column becomes null."""
    if not any(column.type in _SMALL for column in schema.columns):
        return value
    fields = ", ".join(f"{quote(column.name)}: {column.type}" for column in schema.columns)
    return f"try_cast({value} AS STRUCT<{fields}>)"


def _text(schema: Any) -> str:
    return AvroFormat(schema).schema_json


def _writers(value_format: ConfluentAvroFormat) -> Iterable[tuple[int, str]]:
    """Schemas by their numbers, the own one first, since most values have it."""
    others = ((number, _text(schema)) for number, schema in value_format.writers.items())
    return sorted(others, key=lambda writer: (writer[0] != value_format.schema_id, writer[0]))


def _header(payload: str) -> str:
    return f"substring({payload}, 1, {_HEADER_BYTES})"


def _header_of(number: int) -> str:
    return f"X'{number:0{2 * _HEADER_BYTES}x}'"


def _body(payload: str) -> str:
    return f"substring({payload}, {_HEADER_BYTES + 1})"


def required_columns(schema: Any) -> list[str]:
    """Fields of an Avro schema that cannot be written as null."""
    return [name for name, column in avro_columns(schema).items() if not column.nullable]


def _range(column: Column, value: str) -> Iterable[str]:
    """What Spark would take as the column's value, and nobody else."""
    if column.type == "STRING":
        yield f"NOT is_valid_utf8({value})"
    elif column.type in _FIRST_AND_LAST:
        first, last = _FIRST_AND_LAST[column.type]
        yield f"{value} NOT BETWEEN {first} AND {last}"
