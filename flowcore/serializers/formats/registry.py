"""Registry of value formats, by the name that a flow's declaration gives.

Users add formats with `register`, in a module that their flow imports.
"""

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from flowcore.errors import FormatError
from flowcore.serializers.formats.avro import AvroFormat, ConfluentAvroFormat, SubjectAvroFormat
from flowcore.serializers.formats.avro_schemas import avro_schema
from flowcore.serializers.formats.columns import ColumnDefinitions
from flowcore.serializers.formats.fixed import FixedFormat
from flowcore.serializers.formats.json_text import JsonFormat
from flowcore.serializers.formats.protobuf import ProtobufFormat
from flowcore.serializers.formats.value_format import RawFormat, ValueFormat

__all__ = ["build_format", "format_names", "register"]

Build = Callable[..., ValueFormat[Any]]
"""``build(columns, **options)``; ``columns`` is None if they are not known."""


def register(name: str, build: Build) -> None:
    """Add a format.

    Args:
        build: Builds the format from columns (or None) and the options of a flow's declaration.

    Raises:
        FormatError: A format of this name exists.
    """
    if name in _FORMATS:
        msg = f"a value format {name!r} exists already: bytes of one would be read by the other; rename yours"
        raise FormatError(msg)
    _FORMATS[name] = build


def format_names() -> tuple[str, ...]:
    return tuple(_FORMATS)


def build_format(name: str, columns: ColumnDefinitions | None = None, **options: Any) -> ValueFormat[Any]:
    """Build a format by its name.

    Args:
        columns: Columns of its values, if it has any.
        options: Further options: ``schema``, ``schema_id`` or ``subject`` for Avro, ``message`` for
            Protobuf.

    Raises:
        FormatError: The format is unknown, or does not take these columns or options.
    """
    build = _FORMATS.get(name)
    if build is None:
        near = difflib.get_close_matches(name, _FORMATS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"the formats are {', '.join(_FORMATS)}"
        msg = f"value format {name!r} is unknown: its bytes could not be read; {hint}, or register yours"
        raise FormatError(msg)
    try:
        return build(columns, **options)
    except TypeError as error:
        given, known = ", ".join(options) or "no options", _find_options(build)
        # Python's words for an option that does not exist name the function that builds the format.
        why = "it would not be known what is meant" if set(options) - set(known) else error
        msg = (
            f"value format {name!r} cannot be built from {given}: {why}; its options are: "
            f"{', '.join(known) or 'none'}"
        )
        raise FormatError(msg) from error


def _find_options(build: Build) -> list[str]:
    """The names of the options that a format takes; none if Python does not know them."""
    try:
        return list(inspect.signature(build).parameters)[1:]
    except ValueError:
        return []


def _needed(name: str, columns: ColumnDefinitions | None) -> ColumnDefinitions:
    if columns is None:
        msg = f"value format {name!r} needs columns: without them nothing can be written; give it a schema"
        raise FormatError(msg)
    return columns


def _schema(name: str, columns: ColumnDefinitions | None, schema: Any) -> Any:
    return avro_schema(_needed(name, columns)) if schema is None else schema


def _confluent(
    columns: ColumnDefinitions | None,
    *,
    schema: Any = None,
    schema_id: int | None = None,
    writers: Mapping[int, Any] | None = None,
    subject: str | None = None,
    refused: frozenset[int] | None = None,
) -> ConfluentAvroFormat | SubjectAvroFormat:
    if schema_id is None and writers is None:
        return SubjectAvroFormat(schema, subject)
    if subject is not None:
        given = "writers" if schema_id is None else f"schema_id={schema_id!r}"
        msg = (
            f"subject={subject!r} and {given} are given: no registry would be asked for the subject; leave "
            "one out"
        )
        raise FormatError(msg)
    return ConfluentAvroFormat(_schema("avro-confluent", columns, schema), schema_id, writers or {}, refused)


_FORMATS: dict[str, Build] = {}
register("json", lambda columns: JsonFormat.of(_needed("json", columns)))
register("fixed", lambda columns: FixedFormat.of(_needed("fixed", columns)))
register("avro", lambda columns, schema=None: AvroFormat(_schema("avro", columns, schema)))
register("avro-confluent", _confluent)
register("protobuf", lambda _columns, message: ProtobufFormat(message))
register("raw", lambda _columns: RawFormat())
