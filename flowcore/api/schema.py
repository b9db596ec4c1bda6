"""Schemas: the columns of a source, parsed from Spark DDL text without a JVM.

Only names and nullability are interpreted; a type is kept as text for Spark.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, SqlglotError

from flowcore.errors import SchemaError

__all__ = ["Column", "Schema", "fits"]

_PREFIX = "CREATE TABLE t ("

_WIDER = {
    "tinyint": ("smallint", "int", "bigint", "double"),
    "smallint": ("int", "bigint", "double"),
    "int": ("bigint", "double"),
    "float": ("double",),
}
"""By type, the types that take each of its values."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, its type as Spark SQL text, and whether it may be null."""

    name: str
    type: str
    nullable: bool = True


@dataclass(frozen=True, slots=True)
class Schema:
    """The columns of a source, in order.

    >>> Schema.parse("id BIGINT NOT NULL, tags ARRAY<STRING>").names
    ('id', 'tags')
    """

    columns: tuple[Column, ...]

    @classmethod
    def parse(cls, ddl: str | Schema) -> Schema:
        """Read Spark DDL text such as ``"id BIGINT NOT NULL, price DOUBLE"``.

        Raises:
            SchemaError: The text is not a list of columns, or names one twice.
        """
        if isinstance(ddl, Schema):
            return ddl
        try:
            if not isinstance(ddl, str):
                _refuse(f"it is a {type(ddl).__name__}, not text")
            statement = sqlglot.parse_one(f"{_PREFIX}{ddl})", dialect="spark")
            if statement.expression or statement.args.get("properties"):
                _refuse("there is text after the columns")
            columns = tuple(_column(definition) for definition in statement.this.expressions)
        except (SqlglotError, AttributeError, ValueError) as error:
            msg = (
                f"schema {ddl!r} cannot be read as Spark DDL ({_reason(error)}): its columns and their types "
                "would be unknown; pass text such as 'id BIGINT, price DOUBLE'"
            )
            raise SchemaError(msg) from error
        names = [column.name.lower() for column in columns]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice or not names:
            what = f"names {', '.join(twice)} twice" if twice else "has no column"
            msg = f"schema {ddl!r} {what}: a column must be found by its name; rename one"
            raise SchemaError(msg)
        return cls(columns)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def types(self) -> Mapping[str, str]:
        """The types of the columns as Spark DDL, by name in lower case."""
        return {column.name.lower(): column.type for column in self.columns}

    @property
    def ddl(self) -> str:
        """The schema as Spark DDL text, nullability included."""
        return ", ".join(
            f"`{column.name}` {column.type}{'' if column.nullable else ' NOT NULL'}"
            for column in self.columns
        )

    @property
    def row_type(self) -> str:
        """The type of a row, as Spark DDL text."""
        return f"STRUCT<{', '.join(f'`{column.name}`: {column.type}' for column in self.columns)}>"

    def __str__(self) -> str:
        return self.ddl


def fits(kind: str, wanted: str) -> bool:
    """Whether each value of a type is one of another type, in Spark's names of both.

    >>> fits("INT", "BIGINT"), fits("BIGINT", "INT"), fits("ARRAY<INT>", "ARRAY<INT>")
    (True, False, True)
    """
    return kind == wanted or wanted.lower() in _WIDER.get(kind.lower(), ())


def _column(definition: exp.Expression) -> Column:
    if not isinstance(definition, exp.ColumnDef) or definition.args.get("kind") is None:
        _refuse(f"{definition.sql('spark')} has no type")
    required = any(
        isinstance(constraint.kind, exp.NotNullColumnConstraint)
        and not constraint.kind.args.get("allow_null")
        for constraint in definition.args.get("constraints") or ()
    )
    return Column(definition.name, definition.args["kind"].sql("spark"), nullable=not required)


def _reason(error: Exception) -> str:
    if isinstance(error, ParseError) and error.errors and (word := error.errors[0]["highlight"]):
        # sqlglot counts columns in the statement made of the schema, which nobody has written.
        before = str(error.errors[0]["start_context"]).removeprefix(_PREFIX).strip()
        return f"{word!r} is not expected after {before!r}"
    return re.sub(r"\x1b\[\d+m", "", str(error)).splitlines()[0]


def _refuse(why: str) -> NoReturn:
    raise ValueError(why)
