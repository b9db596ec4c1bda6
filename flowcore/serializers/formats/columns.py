"""Columns: the names and types that a format's values have, however they were given.

A type is Spark SQL text, as in `flowcore.api.schema`, which lies above and is not imported here:
whatever has a name, a type and ``nullable`` serves as a column, and so does a pair of texts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from flowcore.errors import FormatError, SerializationError

__all__ = ["ColumnLike", "Columns", "ValueColumn", "columns_of", "fingerprint_of", "row_of"]

_ALIASES = {
    "BYTE": "TINYINT", "SHORT": "SMALLINT", "INTEGER": "INT", "LONG": "BIGINT", "REAL": "FLOAT",
    "BOOL": "BOOLEAN",
}  # fmt: skip


class ColumnLike(Protocol):
    """What a column must tell."""

    @property
    def name(self) -> str: ...
    @property
    def type(self) -> str: ...
    @property
    def nullable(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class ValueColumn:
    """One column of a value: its name, its type as Spark SQL text, and whether it may be null."""

    name: str
    type: str
    nullable: bool = True

    def __str__(self) -> str:
        return f"{self.name} {self.type}{'' if self.nullable else ' NOT NULL'}"


Columns = Iterable[ColumnLike | tuple[str, str]]
"""Columns as they may be given; a pair of name and type may be null."""


def columns_of(format_name: str, columns: Columns, known: Iterable[str]) -> tuple[ValueColumn, ...]:
    """The columns, with one spelling for each type.

    Args:
        format_name: The format that asks, for the error message.
        columns: As given.
        known: The types that it can hold.

    Raises:
        FormatError: There is no column, two have one name, or a type is not known to the format.
    """
    found = []
    for column in columns:
        name, type_, nullable = (
            (*column, True) if isinstance(column, tuple) else (column.name, column.type, column.nullable)
        )
        type_ = type_.strip().upper()
        found.append(ValueColumn(name, _ALIASES.get(type_, type_), nullable))
    names = [column.name for column in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        msg = f"a {format_name} format was given {twice[0]!r} twice: one would hide the other; rename one"
        raise FormatError(msg)
    if not found:
        msg = f"a {format_name} format was given no column: it would hold nothing; pass at least one"
        raise FormatError(msg)
    for column in found:
        if column.type not in known:
            msg = (
                f"column '{column}' is of a type that the {format_name} format does not hold: its value "
                f"could not be written; it holds {', '.join(known)}"
            )
            raise FormatError(msg)
    return tuple(found)


def fingerprint_of(schema: Any) -> str:
    """A short text that stands for a schema, the same on every machine and in every version of Python."""
    text = json.dumps(schema, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def row_of(columns: tuple[ValueColumn, ...], value: object) -> list[Any]:
    """A value's fields in the columns' order; a nullable one may be left out.

    Raises:
        SerializationError: It is no mapping, lacks a field that must be there, or has one too many.
    """
    if not isinstance(value, Mapping):
        msg = f"the value is {type(value).__name__}, not a mapping of its columns: pass a dict"
        raise SerializationError(msg)
    extra = value.keys() - {column.name for column in columns}
    if extra:
        names = ", ".join(column.name for column in columns)
        msg = f"the value has a field {min(map(str, extra))!r}: it would be lost; the columns are {names}"
        raise SerializationError(msg)
    for column in columns:
        if not column.nullable and value.get(column.name) is None:
            msg = f"the value has no {column.name!r}, which is NOT NULL: give it one"
            raise SerializationError(msg)
    return [value.get(column.name) for column in columns]
