"""Value formats of topics: checks of a declaration, and the columns that its values have.

The formats are those of `flowcore.serializers.formats`, which loads NumPy and more. It is imported only for
formats other than JSON. Spark reads and writes some formats natively; the others run in Python, which
real-time mode does not allow.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from flowcore.api.schema import Column, Schema
from flowcore.errors import FormatError, PlanError

if TYPE_CHECKING:
    from flowcore.serializers.formats import ValueFormat

__all__ = [
    "SMALLER_THAN_INT",
    "Formatted",
    "asks_registry",
    "check_format",
    "check_written",
    "format_of",
    "runs_in_python",
    "value_columns",
    "value_schema",
]

_NATIVE = ("json", "avro", "avro-confluent", "raw")
_SHOWN = 300
"""Most characters of a list of columns in an error."""
SMALLER_THAN_INT = ("TINYINT", "SMALLINT")
"""Types that Avro does not have: a column of one is a field INT."""
_RAW_TYPES = ("BINARY", "STRING")


class Formatted(Protocol):
    """The settings of a topic that decide how its values are encoded."""

    @property
    def name(self) -> str: ...
    @property
    def schema(self) -> Schema | str | None: ...
    @property
    def format(self) -> str: ...
    @property
    def format_options(self) -> Mapping[str, Any]: ...


def runs_in_python(topic: Formatted) -> bool:
    """True if Spark has no expression of its own for the topic's format."""
    return topic.format not in _NATIVE


def asks_registry(topic: Formatted) -> bool:
    """True if a run asks the schema registry for the ids of the topic's schemas."""
    return topic.format == "avro-confluent" and not {"schema_id", "writers"} & topic.format_options.keys()


def format_of(topic: Formatted) -> ValueFormat[Any]:
    """Build the format of a topic's values.

    Raises:
        FormatError: The format is unknown, or does not accept the topic's options or columns.
    """
    from flowcore.serializers.formats import build_format  # noqa: PLC0415 - heavy; JSON does not need it

    columns = None if topic.schema is None else Schema.parse(topic.schema).columns
    return build_format(topic.format, columns, **topic.format_options)


def value_schema(topic: Formatted) -> Schema | None:
    """The columns of a topic's values: declared, or those of its Avro schema or Protobuf message.

    None if neither is given.
    """
    if topic.schema is not None:
        return Schema.parse(topic.schema)
    columns = value_columns(topic) if topic.format_options else {}
    return Schema(tuple(columns.values())) if columns else None


def check_format(topic: Formatted) -> None:
    """Check that the values of a topic can be read and written.

    Raises:
        FormatError: The format is unknown, does not accept the options, or cannot hold a column.
    """
    if topic.format == "json" and not topic.format_options:
        return  # Spark's JSON holds every type, and more of them than `JsonFormat` does
    try:
        _check_values(topic)
    except FormatError as error:
        msg = f"topic {topic.name!r}: {error}"
        raise FormatError(msg) from error


def check_written(topic: Formatted, columns: Sequence[str], sink: str, key: Sequence[str] | None) -> None:
    """Check that a stream has the columns of a sink's values, and that no other column is lost.

    Raises:
        PlanError: A column is missing, or would be neither in the value nor in the key.
    """
    schema = value_schema(topic)
    if schema is None and topic.format == "json":
        return  # an object of all columns
    if schema is None:  # raw
        if len(columns) == 1:
            return
        problem = f"has the columns {', '.join(columns)}, and a raw value is one of them"
        wanted = "one column (with schema='body BINARY' of the topic: that one and the key)"
    else:
        have, want = {column.lower() for column in columns}, {name.lower() for name in schema.names}
        want_or_key = want.union(column.lower() for column in key or ())
        missing = [name for name in schema.names if name.lower() not in have]
        extra = [column for column in columns if column.lower() not in want_or_key]
        if not missing and not extra:
            _check_required(topic, schema, sink)
            return
        problem = f"lacks {missing[0]!r}" if missing else f"has {extra[0]!r}, which would be lost"
        wanted = ", ".join(schema.names)
    msg = (
        f"sink {sink!r}: what is written to topic {topic.name!r} as {topic.format} {problem}: select exactly "
        f"{wanted} before it, or correct the topic's schema"
    )
    raise PlanError(msg)


def _check_required(topic: Formatted, schema: Schema, sink: str) -> None:
    """Check that a sink's columns fill each field that its Avro schema requires.

    Raises:
        PlanError: A field has no column, and would have no value.
    """
    fields = value_columns(topic) if "schema" in topic.format_options else {}
    for field in fields.values():
        if not field.nullable and field.name not in schema.names:
            msg = (
                f"sink {sink!r}: what is written to topic {topic.name!r} as {topic.format} lacks "
                f"{field.name!r}, which its Avro schema requires: no row could be written; add the column to "
                "schema= and to the stream, or make the field a union with null"
            )
            raise PlanError(msg)


def value_columns(topic: Formatted) -> dict[str, Column]:
    """The columns, by name, of the schema or message in a topic's options; empty if there is none."""
    from flowcore.serializers import formats  # noqa: PLC0415 - heavy; JSON does not need it
    from flowcore.serializers.formats.avro_schemas import avro_columns  # noqa: PLC0415
    from flowcore.serializers.formats.protobuf import protobuf_types  # noqa: PLC0415

    match format_of(topic):
        case formats.SubjectAvroFormat(schema=None):
            return {}
        case (
            formats.AvroFormat(schema=schema)
            | formats.ConfluentAvroFormat(schema=schema)
            | formats.SubjectAvroFormat(schema=schema)
        ):
            found = avro_columns(schema)
            columns = {name: (column.type, column.nullable) for name, column in found.items()}
        case formats.ProtobufFormat(message=message):
            columns = {name: (kind, True) for name, kind in protobuf_types(message).items()}
        case _:
            return {}
    # Through the parser, so that types are spelled as in a declared schema.
    kinds = {kind for kind, _ in columns.values()}
    spelled = {kind: Schema.parse(f"c {kind}").columns[0].type for kind in kinds}
    return {name: Column(name, spelled[kind], nullable) for name, (kind, nullable) in columns.items()}


def _check_values(topic: Formatted) -> None:
    from flowcore.serializers.formats import format_names  # noqa: PLC0415 - heavy; JSON does not need it

    options = topic.format_options
    match topic.format:
        case "json" | "raw" if options:
            msg = f"value format {topic.format!r} has no option {min(options)!r}: drop it"
            raise FormatError(msg)
        case "raw":
            columns = () if topic.schema is None else Schema.parse(topic.schema).columns
            if topic.schema is not None and (len(columns) != 1 or columns[0].type not in _RAW_TYPES):
                msg = (
                    f"a raw value is one column, BINARY or STRING, and the schema is {topic.schema}: the "
                    "bytes would have to be cut; pass schema='body BINARY', or name another format"
                )
                raise FormatError(msg)
            return
        case "protobuf" if "message" not in options:
            msg = (
                "value format 'protobuf' needs the generated message class: its bytes do not name their "
                "fields; pass format_options={'message': bids_pb2.Bid}"
            )
            raise FormatError(msg)
    if topic.format not in format_names():
        format_of(topic)  # its error names the nearest
    schema = value_schema(topic)
    if schema is None:
        msg = (
            f"value format {topic.format!r} needs columns: without them it is unknown what to write; pass "
            "schema='id BIGINT NOT NULL, ...', for a sink too"
        )
        raise FormatError(msg)
    format_of(topic)
    if "schema" in options or "message" in options:
        _check_columns(schema, value_columns(topic), () if topic.format == "protobuf" else SMALLER_THAN_INT)


def _check_columns(schema: Schema, fields: Mapping[str, Column], as_int: Collection[str]) -> None:
    for column in schema.columns if fields else ():
        if column.name not in fields:
            msg = (
                f"column {column.name!r} is not a field: it would always be null; the fields are "
                f"{', '.join(fields)[:_SHOWN]}"
            )
            raise FormatError(msg)
        kind = fields[column.name].type
        if column.type != kind and not (kind == "INT" and column.type in as_int):
            msg = (
                f"column {column.name!r} is declared {column.type} and its field is {kind}: declare it "
                f"{kind}, and cast it in a select"
            )
            raise FormatError(msg)
