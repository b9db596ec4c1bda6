"""Values that are not of their Avro type, as SQL text.

Spark's types are wider: an enum is any text, a fixed any bytes, and a part of a value may be null. Spark's
writer raises for such a value, or cuts it, so it is found before.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from flowcore.serializers.formats.avro_evolution import named_types
from flowcore.spark.frame.sql import literal, quote

__all__ = ["misfits_of"]

_SHOWN = 100
"""Most characters of an Avro type in a reason."""
_MICROS_IN_MILLI = 1000


def misfits_of(schema: Any, columns: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """When a column's value is not of the type of its field in an Avro record, each with why it is bad."""
    types = _Types(dict(named_types(schema)))
    for field in schema["fields"]:
        name, kind = field["name"], field["type"]
        if name not in columns:
            continue
        wrong = types.wrong(columns[name], kind)
        if types.is_record(kind):  # a variable: the text of the column would be repeated for each field
            wrong = types.wrong_item(f"array({columns[name]})", kind)
        if wrong is not None:
            shown = json.dumps(kind)[:_SHOWN]
            reason = literal(f"column {name!r} holds a value that is not of its Avro type, {shown}")
            yield f"coalesce({wrong}, false)", reason


@dataclass(frozen=True, slots=True)
class _Types:
    """The types of a schema that have names."""

    named: Mapping[str, Any]

    def is_record(self, schema: Any) -> bool:
        found = self._resolve(schema)
        return isinstance(found, Mapping) and found["type"] == "record"

    def wrong(self, value: str, schema: Any) -> str | None:
        """True if a value that is not null is not of its type; None if any is."""
        match self._resolve(schema):
            case {"logicalType": "decimal"}:
                return None
            case {"logicalType": "timestamp-millis" | "local-timestamp-millis"}:
                return f"unix_micros(CAST({value} AS TIMESTAMP)) % {_MICROS_IN_MILLI} <> 0"
            case "string" | {"type": "string"}:
                return f"NOT is_valid_utf8({value})"
            case {"type": "enum", "symbols": symbols}:
                return f"{value} NOT IN ({', '.join(map(literal, symbols))})"
            case {"type": "fixed", "size": size}:
                return f"octet_length({value}) <> {size}"
            case {"type": "array", "items": items}:
                return self.wrong_item(value, items)
            case {"type": "map", "values": values}:
                keys = self.wrong_item(f"map_keys({value})", "string")
                return _either([keys, self.wrong_item(f"map_values({value})", values)])
            case {"type": "record", "fields": fields}:
                parts = (self._part(f"{value}.{quote(each['name'])}", each["type"]) for each in fields)
                found = _either(parts)
                return found and f"({value} IS NOT NULL AND {found})"
        return None

    def wrong_item(self, values: str, schema: Any) -> str | None:
        """True if an item of an array is not of its type; None if any is."""
        item = f"_x{values.count('_x')}"
        found = self._part(item, schema)
        return found and f"exists({values}, {item} -> {found})"

    def _part(self, value: str, schema: Any) -> str | None:
        may_be_null = "null" in (schema if isinstance(schema, list) else [schema])
        return _either([None if may_be_null else f"{value} IS NULL", self.wrong(value, schema)])

    def _resolve(self, schema: Any) -> Any:
        """A type itself, without its name and without null."""
        match schema:
            case list():
                kinds = [each for each in schema if each != "null"]
                return self._resolve(kinds[0]) if kinds else "null"  # a column has one type
            case str(name) | {"type": str(name)} if name in self.named:
                return self.named[name]
        return schema


def _either(conditions: Iterable[str | None]) -> str | None:
    found = [each for each in conditions if each]
    return f"({' OR '.join(found)})" if found else None
