"""Evolution of Avro schemas: whether values of one schema can be read as another.

The rules are those of Avro's schema resolution. Two are stricter, since a reader would get wrong values
without an error: logical types must be equal, and each type of a writer's union must be readable. Schemas are
parsed by fastavro, which writes out the full name of a type where it is used again.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["find_misreading", "named_types"]

_PROMOTED = {
    "int": ("long", "float", "double"), "long": ("float", "double"), "float": ("double",),
    "string": ("bytes",), "bytes": ("string",),
}  # fmt: skip
_LOGICAL = ("logicalType", "precision", "scale")
_SHOWN = 200


def find_misreading(writer: Any, reader: Any) -> str | None:
    """Say why values of a writer's schema cannot be read as a reader's schema; None if they can.

    >>> find_misreading("int", "long"), find_misreading("long", "int")
    (None, 'the value is written as long and read as int')
    """
    resolution = _Resolution(dict(named_types(writer)), dict(named_types(reader)))
    return next(resolution.problems(writer, reader, "the value"), None)


@dataclass(frozen=True, slots=True)
class _Resolution:
    """The resolution of two schemas, with the named types of each, and the pairs of them that are done.

    A pair is resolved once: a short schema may name types of types a million times over.
    """

    written: Mapping[str, Any]
    known: Mapping[str, Any]
    _done: dict[tuple[str, str], str | None] = field(default_factory=dict)

    def problems(self, writer: Any, reader: Any, where: str) -> Iterator[str]:
        writer, reader = _named(writer, self.written), _named(reader, self.known)
        if isinstance(writer, list):
            for part in writer:
                yield from self.problems(part, reader, where)
        elif isinstance(reader, list):
            if all(any(self.problems(writer, part, where)) for part in reader):
                yield f"{where} is written as {_show(writer)}, and read as one of {_show(reader)}"
        else:
            yield from self._parts(writer, reader, where)

    def _parts(self, writer: Any, reader: Any, where: str) -> Iterator[str]:
        kinds = _kind(writer), _kind(reader)
        if kinds == ("record", "record"):
            pair = writer["name"], reader["name"]
            if pair not in self._done:
                self._done[pair] = next(self._fields(writer, reader, where), None)
            if (problem := self._done[pair]) is not None:
                yield problem
        elif kinds == ("array", "array"):
            yield from self.problems(writer["items"], reader["items"], f"an item of {where}")
        elif kinds == ("map", "map"):
            yield from self.problems(writer["values"], reader["values"], f"a value of {where}")
        elif kinds == ("enum", "enum") and writer["name"] == reader["name"]:
            symbols = frozenset(reader["symbols"])
            missing = [symbol for symbol in writer["symbols"] if symbol not in symbols]
            if missing and "default" not in reader:
                yield f"{where} is written with the symbol {missing[0]!r}, which the reader does not have"
        elif not _is_same(writer, reader, *kinds):
            yield f"{where} is written as {_show(writer)} and read as {_show(reader)}"

    def _fields(self, writer: Any, reader: Any, where: str) -> Iterator[str]:
        fields = {each["name"]: each for each in writer["fields"]}
        for each in reader["fields"]:
            aliases = (name for name in each.get("aliases", ()) if isinstance(name, str))
            names = [name for name in (each["name"], *aliases) if name in fields]
            what = f"field {each['name'][:_SHOWN]!r}" + ("" if where == "the value" else f" of {where}")
            if names:
                yield from self.problems(fields[names[0]]["type"], each["type"], what)
            elif "default" not in each:
                yield f"{what} is not written, and has no default where it is read"


def _is_same(writer: Any, reader: Any, written: str, read: str) -> bool:
    """Whether one simple type can be read as another."""
    if written in ("enum", "fixed", "record", "array", "map") or _logical(writer) or _logical(reader):
        name = writer.get("name") if isinstance(writer, Mapping) else None
        other = reader.get("name") if isinstance(reader, Mapping) else None
        sizes = [each.get("size") for each in (writer, reader) if isinstance(each, Mapping)]
        same = written == read and name == other and len({*sizes}) <= 1
        return same and _logical(writer) == _logical(reader)
    return written == read or read in _PROMOTED.get(written, ())


def _logical(schema: Any) -> list[Any]:
    if not isinstance(schema, Mapping) or "logicalType" not in schema:
        return []
    return [schema.get(name, 0) for name in _LOGICAL]


def _kind(schema: Any) -> str:
    kind = schema["type"] if isinstance(schema, Mapping) else schema
    return kind if isinstance(kind, str) else _kind(kind)


def _named(schema: Any, types: Mapping[str, Any]) -> Any:
    return types.get(schema, schema) if isinstance(schema, str) else schema


def named_types(schema: Any) -> Iterator[tuple[str, Any]]:
    """The types of a schema that have names."""
    if isinstance(schema, list):
        parts = schema
    elif isinstance(schema, Mapping):
        if "name" in schema:
            yield schema["name"], schema
        parts = [schema[key] for key in ("type", "items", "values") if key in schema]
        parts += [each["type"] for each in schema.get("fields", ())]
    else:
        return
    for part in parts:
        yield from named_types(part)


def _show(schema: Any) -> str:
    if isinstance(schema, list):
        return ", ".join(map(_show, schema))[:_SHOWN] or "nothing"
    if not isinstance(schema, Mapping):
        return str(schema)[:_SHOWN]
    logical = f" ({schema['logicalType']})" if "logicalType" in schema else ""
    return f"{_kind(schema)}{' ' + schema['name'] if 'name' in schema else ''}{logical}"[:_SHOWN]
