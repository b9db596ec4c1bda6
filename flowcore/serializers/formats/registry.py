"""Registry of value formats by name, and the check that a format can read what another wrote.

A name is given in a flow's declaration and in the identity that is kept with written values. Users add
formats with `register`, in a module that their flow imports.
"""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flowcore.errors import FormatError
from flowcore.serializers.formats.avro import AvroFormat, ConfluentAvroFormat
from flowcore.serializers.formats.avro_schemas import avro_schema
from flowcore.serializers.formats.columns import ColumnDefinitions
from flowcore.serializers.formats.fixed import FixedFormat
from flowcore.serializers.formats.json_text import JsonFormat
from flowcore.serializers.formats.protobuf import ProtobufFormat
from flowcore.serializers.formats.value_format import RawFormat, ValueFormat, identity

__all__ = ["build_format", "check_readable", "format_names", "register"]

Build = Callable[..., ValueFormat[Any]]
"""``build(columns, **options)``; ``columns`` is None if they are not known."""


@dataclass(frozen=True, slots=True)
class _Entry:
    build: Build
    reads: frozenset[int]


def register(name: str, build: Build, *, reads: frozenset[int] | set[int] = frozenset({1})) -> None:
    """Add a format.

    Args:
        build: Builds the format from columns (or None) and the options of a flow's declaration.
        reads: Versions of its bytes that it can read, including the one it writes.

    Raises:
        FormatError: A format of this name exists.
    """
    if name in _FORMATS:
        msg = f"a value format {name!r} exists already: bytes of one would be read by the other; rename yours"
        raise FormatError(msg)
    _FORMATS[name] = _Entry(build, frozenset(reads))


def format_names() -> tuple[str, ...]:
    return tuple(_FORMATS)


def build_format(name: str, columns: ColumnDefinitions | None = None, **options: Any) -> ValueFormat[Any]:
    """Build a format by its name.

    Args:
        columns: Columns of its values, if it has any.
        options: Further options: ``schema`` and ``schema_id`` for Avro, ``message`` for Protobuf.

    Raises:
        FormatError: There is no such format, or it does not take these columns or options.
    """
    build = _entry(name).build
    try:
        return build(columns, **options)
    except TypeError as error:
        msg = f"value format {name!r} cannot be built from {', '.join(options) or 'no options'}: {error}"
        raise FormatError(msg) from error


def check_readable(value_format: ValueFormat[Any], written: Mapping[str, Any]) -> None:
    """Check that a format can read what was written under an identity.

    Args:
        written: Identity of the writing format, from `flowcore.serializers.formats.value_format.identity`.

    Raises:
        FormatError: The writing format is unknown, or differs in name, version or schema.
    """
    own = identity(value_format)
    match written:
        case {"format": str(name), "version": int(version), "schema": str(schema)}:
            entry = _entry(name)
        case _:
            msg = (
                f"{dict(written)!r} is not an identity of a value format: it lacks format, version or schema"
            )
            raise FormatError(msg)
    if name != own["format"]:
        msg = f"values were written as {name!r} and would be read as {own['format']!r}: read them as {name!r}"
        raise FormatError(msg)
    if version not in entry.reads:
        reads = ", ".join(map(str, sorted(entry.reads)))
        msg = (
            f"values were written as {name!r} version {version}, and this flowcore reads version "
            f"{reads}: it would misread them; update it"
        )
        raise FormatError(msg)
    if schema != own["schema"]:
        msg = (
            f"values were written as {name!r} with the schema {schema or 'none'} and would be read with "
            f"{own['schema'] or 'none'}: fields would change places; declare the schema of the writer"
        )
        raise FormatError(msg)


def _entry(name: str) -> _Entry:
    entry = _FORMATS.get(name)
    if entry is None:
        near = difflib.get_close_matches(name, _FORMATS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"the formats are {', '.join(_FORMATS)}"
        msg = f"value format {name!r} is unknown: its bytes could not be read; {hint}, or register yours"
        raise FormatError(msg)
    return entry


def _needed(name: str, columns: ColumnDefinitions | None) -> ColumnDefinitions:
    if columns is None:
        msg = f"value format {name!r} needs columns: without them nothing can be written; give it a schema"
        raise FormatError(msg)
    return columns


def _schema(name: str, columns: ColumnDefinitions | None, schema: Any) -> Any:
    return avro_schema(_needed(name, columns)) if schema is None else schema


_FORMATS: dict[str, _Entry] = {}
register("json", lambda columns: JsonFormat.of(_needed("json", columns)))
register("fixed", lambda columns: FixedFormat.of(_needed("fixed", columns)))
register("avro", lambda columns, schema=None: AvroFormat(_schema("avro", columns, schema)))
register(
    "avro-confluent",
    lambda columns, schema_id, schema=None, writers=None: ConfluentAvroFormat(
        _schema("avro-confluent", columns, schema), schema_id, writers or {}
    ),
)
register("protobuf", lambda _columns, message: ProtobufFormat(message))
register("raw", lambda _columns: RawFormat())
