"""What do a format and its options say of a topic's columns, and does that fit the declared ones?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowcore.api.schema import Column, Schema
from flowcore.api.value_formats import Formatted, value_schema
from flowcore.errors import FormatError
from flowcore.serializers.formats import (
    AvroFormat,
    ConfluentAvroFormat,
    ProtobufFormat,
    ValueFormat,
    build_format,
    format_names,
)
from flowcore.serializers.formats.avro_types import avro_columns
from flowcore.serializers.formats.protobuf_rows import protobuf_types

__all__ = ["check_values", "format_of", "own_columns"]

_RAW_TYPES = ("BINARY", "STRING")


def format_of(topic: Formatted) -> ValueFormat[Any]:
    """The format of a topic's values.

    Raises:
        FormatError: It is unknown, or does not take the topic's options or columns.
    """
    columns = None if topic.schema is None else Schema.parse(topic.schema).columns
    return build_format(topic.format, columns, **topic.format_options)


def own_columns(topic: Formatted) -> dict[str, Column]:
    """What the schema in a topic's options says of its columns; empty if there is none."""
    match format_of(topic):
        case AvroFormat(schema=schema) | ConfluentAvroFormat(schema=schema):
            found = avro_columns(schema)
            columns = {name: (column.type, column.nullable) for name, column in found.items()}
        case ProtobufFormat(message=message):
            columns = {name: (kind, True) for name, kind in protobuf_types(message).items()}
        case _:
            return {}
    # Through the parser, so that types are spelled as in a declared schema.
    return {
        name: Column(name, Schema.parse(f"c {kind}").columns[0].type, nullable)
        for name, (kind, nullable) in columns.items()
    }


def check_values(topic: Formatted) -> None:
    """Make sure that the values of a topic can be read and written.

    Raises:
        FormatError: The format is unknown, takes other options, or does not hold a column.
    """
    options = topic.format_options
    match topic.format:
        case "json" | "raw" if options:
            msg = f"value format {topic.format!r} has no option {min(options)!r}: drop it"
            raise FormatError(msg)
        case "raw":
            _check_raw(topic)
            return
        case "protobuf" if "message" not in options:
            msg = (
                "value format 'protobuf' needs the generated message class: its bytes do not name their "
                "fields; pass format_options={'message': bids_pb2.Bid}"
            )
            raise FormatError(msg)
    if topic.format not in format_names():
        format_of(topic)  # its error names the nearest
    if topic.schema is None and value_schema(topic) is None:
        msg = (
            f"value format {topic.format!r} needs columns: it would not know what to write; pass "
            "schema='id BIGINT NOT NULL, ...', for a sink too"
        )
        raise FormatError(msg)
    format_of(topic)
    if "schema" in options or "message" in options:
        _check_columns(Schema.parse(topic.schema or value_schema(topic) or ""), own_columns(topic))


def _check_columns(schema: Schema, own: Mapping[str, Column]) -> None:
    for column in schema.columns if own else ():
        if column.name not in own:
            fields = ", ".join(own)
            msg = f"column {column.name!r} is no field: it would always be null; the fields are {fields}"
            raise FormatError(msg)
        if column.type != own[column.name].type:
            msg = (
                f"column {column.name!r} is declared {column.type} and its field is {own[column.name].type}: "
                f"declare it {own[column.name].type}, and cast it in a select"
            )
            raise FormatError(msg)


def _check_raw(topic: Formatted) -> None:
    columns = () if topic.schema is None else Schema.parse(topic.schema).columns
    if topic.schema is not None and (len(columns) != 1 or columns[0].type not in _RAW_TYPES):
        msg = (
            f"a raw value is one column, BINARY or STRING, and the schema is {topic.schema}: the bytes would "
            "have to be cut; pass schema='body BINARY', or name another format"
        )
        raise FormatError(msg)
