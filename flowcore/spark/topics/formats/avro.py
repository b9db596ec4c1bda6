"""Avro in SQL text, bare or with a schema registry's header.

Spark reads a payload that does not fit as a row of nulls, and ignores all bytes after the first value. So a
value is good if writing it again gives the same bytes, which takes a tenth of the time of reading. Bytes that
another writer made longer than necessary (a number with leading zeros) are refused. The entries of a map have
no order, so a value with a map only has to be as long.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from flowcore.api.connectors import KafkaTopic
from flowcore.api.schema import Schema
from flowcore.api.value_formats import SMALLER_THAN_INT, format_of, value_schema
from flowcore.errors import FormatError
from flowcore.serializers.formats import AvroFormat, ConfluentAvroFormat
from flowcore.serializers.formats.avro_schemas import avro_columns, avro_fields
from flowcore.spark.frame.sql import literal, quote, struct
from flowcore.spark.topics.formats.avro_misfits import misfits_of
from flowcore.spark.topics.formats.sql_format import RECORD, null_text

__all__ = ["NEW_SCHEMA", "AvroSql"]

NEW_SCHEMA = " of topic {!r} is not known to this run yet"
"""What Spark's error says, after the id, if a batch has a value of a schema that the run does not know."""
_HEADER_BYTES = 5


class AvroSql:
    """Avro values of a topic, with or without a registry's header."""

    def __init__(self, topic: KafkaTopic) -> None:
        self._topic = topic
        self._format: AvroFormat | ConfluentAvroFormat = format_of(topic)  # type: ignore[assignment] # by name
        self._schema = value_schema(topic) or Schema(())
        self._text = _schema_text(self._format.schema)
        self._required = _required_columns(self._format.schema)

    def parse(self, schema: Schema, payload: str) -> str:
        """The fields of the Avro schema as a struct; null, or full of nulls, if the payload does not fit.

        A schema id that the run does not know ends the batch, if the registry is to be asked for it.
        """
        if isinstance(self._format, AvroFormat):
            return self._sized(schema, _read(payload, self._text))
        cases = []
        for number, writer in _writers(self._format):
            value = _read(_body(payload), writer, None if writer == self._text else self._text)
            cases.append(f"WHEN {_header(payload)} = {_header_of(number)} THEN {value}")
        if self._format.refused is not None:
            new = _other_id(payload, {*self._format.writers, *self._format.refused})
            text = f"concat('schema ', {_id(payload)}, {literal(NEW_SCHEMA.format(self._topic.name))})"
            cases.append(f"WHEN {new} THEN raise_error({text})")
        return self._sized(schema, f"CASE {' '.join(cases)} END")

    def _sized(self, schema: Schema, value: str) -> str:
        """Avro has no integer type below INT: a number that is too large for its column becomes null."""
        small = _small_columns(schema)
        if not small:
            return value
        # A struct is cast field by field, also those that are no columns.
        kinds = {name: field.type for name, field in avro_columns(self._format.schema).items()} | small
        fields = ", ".join(f"{quote(name)}: {kind}" for name, kind in kinds.items())
        return f"try_cast({value} AS STRUCT<{fields}>)"

    def misfits(self, schema: Schema, payload: str) -> list[str]:
        """Values that are not the same bytes if they are written again, or that only Spark accepts."""
        found = [f"{RECORD}.{quote(name)} IS NULL" for name in self._required]
        own = self._format.schema
        if isinstance(self._format, AvroFormat):
            found.append(_changes(RECORD, self._text, own, payload))
        else:
            for number, writer in _writers(self._format):
                differs = _changes(RECORD, self._text, own, _body(payload))
                if writer != self._text:
                    differs = _differs_from(writer, self._format.writers[number], _body(payload))
                    value = _read(_body(payload), writer, self._text)
                    for name in map(quote, _small_columns(schema)):
                        differs += f" OR {RECORD}.{name} IS NULL AND {value}.{name} IS NOT NULL"
                found.append(f"{_header(payload)} = {_header_of(number)} AND ({differs})")
        for column in schema.columns:
            value = f"{RECORD}.{quote(column.name)}"
            if column.type == "STRING":
                found.append(f"NOT is_valid_utf8({value})")
        return found

    def describe_misfits(self, schema: Schema, payload: str) -> list[tuple[str, str]]:  # noqa: ARG002 - the protocol's
        """A header that cannot be read; a payload has no fields then."""
        if isinstance(self._format, AvroFormat):
            return []
        known = ", ".join(map(str, sorted(self._format.writers)))
        text = f"concat('it has schema ', {_id(payload)}, {literal(f', and known are {known}')})"
        headless = f"{payload} IS NOT NULL AND NOT {_has_header(payload)}"
        return [
            (headless, literal("it does not begin with a zero byte and a schema id")),
            (_other_id(payload, self._format.writers), text),
        ]

    def unwritable(self, columns: Mapping[str, str]) -> str | None:
        """A null in a required column, or a value that is not of its Avro type."""
        required = [c.name for c in self._schema.columns if c.name in self._required or not c.nullable]
        found = [(f"{columns[name]} IS NULL", null_text(name)) for name in required]
        found += misfits_of(json.loads(self._text), columns)
        cases = " ".join(f"WHEN {condition} THEN {reason}" for condition, reason in found)
        return f"CASE {cases} END" if found else None

    def write(self, columns: Mapping[str, str]) -> str:
        """One value of the columns, which have the schema's types."""
        values = {column.name: columns[column.name] for column in self._schema.columns}
        value = f"to_avro({struct(values)}, {literal(self._text)})"
        if isinstance(self._format, AvroFormat):
            return value
        if self._format.schema_id is None:
            msg = f"topic {self._topic.name!r}: its schema has no id, so it cannot be written; pass schema_id"
            raise FormatError(msg)
        return f"concat({_header_of(self._format.schema_id)}, {value})"


def _read(payload: str, writer: str, evolved: str | None = None) -> str:
    options = "'mode', 'PERMISSIVE'" + ("" if evolved is None else f", 'avroSchema', {literal(evolved)}")
    return f"from_avro({payload}, {literal(writer)}, map({options}))"


def _differs_from(writer: str, schema: Any, body: str) -> str:
    value = _read(body, writer)
    nulls = "".join(f"WHEN {value}.{quote(name)} IS NULL THEN true " for name in _never_null(schema))
    changes = _changes(value, writer, schema, body)
    return f"CASE {nulls}ELSE {changes} END" if nulls else changes


def _changes(value: str, text: str, schema: Any, payload: str) -> str:
    """Whether a value is other bytes if it is written again."""
    again = f"to_avro({value}, {literal(text)})"
    if not _has_map(schema):
        return f"{again} <> {payload}"
    # A payload that does not fit was read as nulls, which may be as long as it.
    nulls = "".join(f" AND {value}.{quote(field['name'])} IS NULL" for field in avro_fields(schema))
    return f"(length({again}) <> length({payload}) OR {again} <> {payload}{nulls})"


def _has_map(schema: Any) -> bool:
    match schema:
        case {"type": "map"}:
            return True
        case dict():
            return any(map(_has_map, schema.values()))
        case list():
            return any(map(_has_map, schema))
    return False


def _small_columns(schema: Schema) -> dict[str, str]:
    return {column.name: column.type for column in schema.columns if column.type in SMALLER_THAN_INT}


def _schema_text(schema: Any) -> str:
    return AvroFormat(schema).schema_json


def _writers(value_format: ConfluentAvroFormat) -> Iterable[tuple[int, str]]:
    """Schemas by number, the topic's own first, since most values have it."""
    others = ((number, _schema_text(schema)) for number, schema in value_format.writers.items())
    return sorted(others, key=lambda writer: (writer[0] != value_format.schema_id, writer[0]))


def _header(payload: str) -> str:
    return f"substring({payload}, 1, {_HEADER_BYTES})"


def _header_of(number: int) -> str:
    return f"X'{number:0{2 * _HEADER_BYTES}x}'"


def _has_header(payload: str) -> str:
    return f"(length({payload}) >= {_HEADER_BYTES} AND substring({payload}, 1, 1) = X'00')"


def _other_id(payload: str, known: Iterable[int]) -> str:
    """Whether a payload has a header with none of these ids."""
    headers = ", ".join(map(_header_of, sorted(known)))
    return f"({_has_header(payload)} AND {_header(payload)} NOT IN ({headers}))"


def _id(payload: str) -> str:
    """The schema id in a header, as text."""
    return f"conv(hex(substring({payload}, 2, {_HEADER_BYTES - 1})), 16, 10)"


def _body(payload: str) -> str:
    return f"substring({payload}, {_HEADER_BYTES + 1})"


def _never_null(schema: Any) -> list[str]:
    """Fields of an Avro schema that cannot be null; they may have types that no column has."""
    kinds = {field["name"]: field["type"] for field in avro_fields(schema)}
    return [
        name for name, kind in kinds.items() if "null" not in (kind if isinstance(kind, list) else [kind])
    ]


def _required_columns(schema: Any) -> list[str]:
    """Fields of an Avro schema that cannot be written as null."""
    return [name for name, column in avro_columns(schema).items() if not column.nullable]
