"""Avro schemas: derived from columns, read as columns, and checked for bounds.

Types are those of Spark's ``to_avro`` and ``from_avro``: an enum is text, a union of a type and null is
that type.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from flowcore.errors import FormatError
from flowcore.serializers.formats.columns import ColumnDefinitions, ValueColumn, parse_columns

__all__ = ["avro_columns", "avro_fields", "avro_schema", "check_bounded", "plain_schema"]

_TYPES: Mapping[str, Any] = {
    "BOOLEAN": "boolean", "TINYINT": "int", "SMALLINT": "int", "INT": "int", "BIGINT": "long",
    "FLOAT": "float", "DOUBLE": "double", "STRING": "string", "BINARY": "bytes",
    "DATE": {"type": "int", "logicalType": "date"},
    "TIMESTAMP": {"type": "long", "logicalType": "timestamp-micros"},
    "TIMESTAMP_NTZ": {"type": "long", "logicalType": "local-timestamp-micros"},
}  # fmt: skip
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DEEPEST = 64
_LONGEST_TYPE = 100_000
"""Characters of a column's type. Each name stands for a whole type, so a short schema may be a type of any
length."""
_PRIMITIVE = {
    "boolean": "BOOLEAN", "int": "INT", "long": "BIGINT", "float": "FLOAT", "double": "DOUBLE",
    "string": "STRING", "bytes": "BINARY", "enum": "STRING", "fixed": "BINARY",
}  # fmt: skip
_LOGICAL = {
    "date": "DATE", "timestamp-millis": "TIMESTAMP", "timestamp-micros": "TIMESTAMP",
    "local-timestamp-millis": "TIMESTAMP_NTZ", "local-timestamp-micros": "TIMESTAMP_NTZ",
}  # fmt: skip
_TYPED = (*_LOGICAL, "decimal")
_NOT_AVRO = ("__fastavro_parsed", "__named_schemas", "spark.sql.catalyst.type")
"""Entries that fastavro adds, and one whose text Spark takes for the type of a number."""


def avro_schema(columns: ColumnDefinitions) -> dict[str, Any]:
    """The Avro schema that Spark derives from these columns, so that both write the same bytes.

    Raises:
        FormatError: Avro does not have the type, or allow the name, of a column; write the schema yourself.

    >>> avro_schema([("id", "BIGINT")])["fields"]
    [{'name': 'id', 'type': ['long', 'null']}]
    """
    found = parse_columns("avro", columns, _TYPES)
    for column in found:
        if not _NAME.fullmatch(column.name):
            msg = f"column {column.name!r} cannot be a field of Avro: use letters, digits and _ in its name"
            raise FormatError(msg)
    fields = [
        {
            "name": column.name,
            "type": [_TYPES[column.type], "null"] if column.nullable else _TYPES[column.type],
        }
        for column in found
    ]
    return {"type": "record", "name": "topLevelRecord", "fields": fields}


def avro_columns(schema: Any) -> dict[str, ValueColumn]:
    """The fields of a parsed schema as columns, by name.

    Raises:
        FormatError: The schema is not a record, or Spark has no column type for a field.
    """
    known: dict[str, str] = {}
    types = {field["name"]: _type(field["type"], known) for field in avro_fields(schema)}
    return {name: ValueColumn(name, kind, nullable) for name, (kind, nullable) in types.items()}


def avro_fields(schema: Any) -> Sequence[Mapping[str, Any]]:
    """The fields of a parsed schema.

    Raises:
        FormatError: The schema is not a record.
    """
    match schema:
        case {"type": "record", "fields": list(fields)}:
            return fields
        case _:
            msg = f"the Avro schema {str(schema)[:80]!r} is not a record: it has no columns; pass a record"
            raise FormatError(msg)


def plain_schema(schema: Any) -> Any:
    """A parsed schema with what decides the types of `avro_columns`, for Spark.

    Spark has types for more logical types, such as times of day and nanoseconds; their columns are numbers.
    """
    if isinstance(schema, Mapping):
        return {
            key: part if key == "default" else plain_schema(part)
            for key, part in schema.items()
            if key not in _NOT_AVRO and (key != "logicalType" or part in _TYPED)
        }
    return [plain_schema(part) for part in schema] if isinstance(schema, list) else schema


def check_bounded(schema: Any) -> None:
    """Refuse a schema by which a few bytes can be a value of any depth or length.

    The reader follows nested values without counting, in native code: too deep a value ends the process.

    Raises:
        FormatError: The parsed schema contains itself, is nested deeper than Python and Spark can follow, or
            has an array whose items take no bytes.
    """
    _depth(schema, {})
    _no_bytes(schema, frozenset(), set())


def _type(schema: Any, known: dict[str, str]) -> tuple[str, bool]:
    """The Spark SQL type, and whether the value may be null."""
    if isinstance(schema, list):
        kinds = [part for part in schema if part != "null"]
        if len(kinds) == 1:
            return _type(kinds[0], known)[0], len(kinds) < len(schema)
        raise _refusal(schema)
    return _not_null(schema, known), False


def _not_null(schema: Any, known: dict[str, str]) -> str:
    match schema:
        case {"logicalType": "decimal", "precision": precision, **rest}:
            return f"DECIMAL({precision}, {rest.get('scale', 0)})"
        case {"logicalType": str(logical)} if logical in _LOGICAL:
            return _LOGICAL[logical]
        case {"type": "array", "items": items}:
            return f"ARRAY<{_type(items, known)[0]}>"
        case {"type": "map", "values": values}:
            return f"MAP<STRING, {_type(values, known)[0]}>"
        case {"type": "record", "name": name, "fields": fields}:
            known[name] = _struct(fields, known)
            return known[name]
        case {"type": ("enum" | "fixed") as kind, "name": name}:
            known[name] = _PRIMITIVE[kind]
            return known[name]
        case {"type": str(kind)} | str(kind) if kind in _PRIMITIVE or kind in known:
            return _PRIMITIVE.get(kind) or known[kind]
    raise _refusal(schema)


def _struct(fields: Any, known: dict[str, str]) -> str:
    parts, size = [], 0
    for field in fields:
        if not re.fullmatch(r"\w+", field["name"]):
            msg = (
                f"the field {field['name'][:80]!r} of an Avro record cannot be in the name of a type: "
                "Spark could not read its type; use letters, digits and _"
            )
            raise FormatError(msg)
        parts.append(f"{field['name']}: {_type(field['type'], known)[0]}")
        size += len(parts[-1])
        if size > _LONGEST_TYPE:
            msg = (
                f"an Avro record, written out, has more than {_LONGEST_TYPE:,} characters: Spark could "
                "not read it; use fewer records in records"
            )
            raise FormatError(msg)
    return f"STRUCT<{', '.join(parts)}>"


def _refusal(schema: Any) -> FormatError:
    return FormatError(
        f"the Avro type {str(schema)[:80]} has no column type in Spark: its values could not be read; use "
        "one type, or one type and null"
    )


def _depth(schema: Any, depths: dict[str, int]) -> int:
    """How deep the values of a schema are nested.

    Args:
        depths: Those of the named types; this function adds those it finds.
    """
    match schema:
        case str():
            return depths.get(schema, 0)
        case list():
            found = max((_depth(part, depths) for part in schema), default=0)
        case {"type": "array", "items": inner} | {"type": "map", "values": inner}:
            found = 1 + _depth(inner, depths)
        case {"type": "record", "name": name, "fields": fields}:
            found = depths[name] = 1 + max((_depth(field["type"], depths) for field in fields), default=0)
        case {"type": inner}:
            found = _depth(inner, depths)
        case _:
            found = 0
    if found > _DEEPEST:
        msg = (
            f"the Avro schema is nested more than {_DEEPEST} levels deep: it could not be followed; send it "
            "flat"
        )
        raise FormatError(msg)
    return found


def _no_bytes(schema: Any, around: frozenset[str], empty: set[str]) -> bool:
    """Whether a value of this part of a schema has no bytes.

    Args:
        around: Names of the enclosing records.
        empty: Names of types without bytes; this function adds those it finds.
    """
    match schema:
        case str() if schema in around:
            msg = (
                f"the Avro schema holds {schema!r} inside {schema!r}: a few bytes could be nested so deep "
                "that the reader crashes; send it flat"
            )
            raise FormatError(msg)
        case {"type": "array", "items": items} if _no_bytes(items, around, empty):
            msg = (
                "the Avro schema has an array of items that take no bytes: a few bytes could be an array of "
                "any length; send their number instead"
            )
            raise FormatError(msg)
        case {"type": "record", "name": name, "fields": fields}:
            parts = [_no_bytes(field["type"], around | {name}, empty) for field in fields]
            bare = all(parts)
        case {"type": "fixed", "name": name, "size": size}:
            bare = size == 0
        case list() | {"type": "map"}:
            for part in schema if isinstance(schema, list) else [schema["values"]]:
                _no_bytes(part, around, empty)
            return False
        case {"type": dict() | list() as inner}:
            return _no_bytes(inner, around, empty)
        case {"type": str() as name} | str(name):
            return name == "null" or name in empty
        case _:
            return False
    if bare:
        empty.add(name)
    return bare
