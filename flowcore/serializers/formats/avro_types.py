"""Avro schemas as columns: of which type is a field in Spark, and may it be null?

As Spark's ``from_avro`` has it: an enum is text, a union of a type and null is that type.
"""

from __future__ import annotations

from typing import Any

from flowcore.errors import FormatError
from flowcore.serializers.formats.columns import ValueColumn

__all__ = ["avro_columns"]

_PRIMITIVE = {
    "boolean": "BOOLEAN", "int": "INT", "long": "BIGINT", "float": "FLOAT", "double": "DOUBLE",
    "string": "STRING", "bytes": "BINARY", "enum": "STRING", "fixed": "BINARY",
}  # fmt: skip
_LOGICAL = {
    "date": "DATE", "timestamp-millis": "TIMESTAMP", "timestamp-micros": "TIMESTAMP",
    "local-timestamp-millis": "TIMESTAMP_NTZ", "local-timestamp-micros": "TIMESTAMP_NTZ",
}  # fmt: skip


def avro_columns(schema: Any) -> dict[str, ValueColumn]:
    """The fields of a parsed schema, by name.

    Raises:
        FormatError: It is no record, or a field has a type of which Spark makes no column.
    """
    match schema:
        case {"type": "record", "fields": fields}:
            known: dict[str, str] = {}
            types = {field["name"]: _type(field["type"], known) for field in fields}
            return {name: ValueColumn(name, kind, nullable) for name, (kind, nullable) in types.items()}
        case _:
            msg = f"the Avro schema {str(schema)[:80]!r} is no record: it has no columns; pass a record"
            raise FormatError(msg)


def _type(schema: Any, known: dict[str, str]) -> tuple[str, bool]:
    """Spark SQL type, and whether it may be null."""
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
            parts = ", ".join(f"{field['name']}: {_type(field['type'], known)[0]}" for field in fields)
            known[name] = f"STRUCT<{parts}>"
            return known[name]
        case {"type": ("enum" | "fixed") as kind, "name": name}:
            known[name] = _PRIMITIVE[kind]
            return known[name]
        case {"type": str(kind)} | str(kind) if kind in _PRIMITIVE or kind in known:
            return _PRIMITIVE.get(kind) or known[kind]
    raise _refusal(schema)


def _refusal(schema: Any) -> FormatError:
    return FormatError(
        f"the Avro type {str(schema)[:80]} is no column of Spark: its values could not be read; use one "
        "type, or one and null"
    )
