"""Columns of a format's values: names and types.

A type is Spark SQL text. A column is any object with ``name``, ``type`` and ``nullable``, as those of
`flowcore.api.schema`, or a pair of name and type.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from flowcore.errors import FormatError, SerializationError

__all__ = ["ColumnDefinitions", "ColumnLike", "ValueColumn", "parse_columns", "row_of"]

_ALIASES = {
    "BYTE": "TINYINT", "SHORT": "SMALLINT", "INTEGER": "INT", "LONG": "BIGINT", "REAL": "FLOAT",
    "BOOL": "BOOLEAN",
}  # fmt: skip


class ColumnLike(Protocol):
    """The attributes of a column."""

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


ColumnDefinitions = Iterable[ColumnLike | tuple[str, str]]
"""Columns as arguments; a column given as a pair may be null."""


def parse_columns(
    format_name: str, columns: ColumnDefinitions, known: Iterable[str]
) -> tuple[ValueColumn, ...]:
    """The columns, with one spelling for each type.

    Args:
        known: The types that the format supports.

    Raises:
        FormatError: There are no columns, two have one name, or the format does not support a type.
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
                f"column '{column}' has a type that the {format_name} format does not support: its value "
                f"could not be written; supported are {', '.join(known)}"
            )
            raise FormatError(msg)
    return tuple(found)


def row_of(columns: tuple[ValueColumn, ...], value: object) -> list[Any]:
    """The fields of a value in the order of the columns; a nullable field may be missing.

    Raises:
        SerializationError: The value is not a mapping, lacks a NOT NULL field, or has an unknown field.
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
