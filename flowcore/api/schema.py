"""Schemas: the columns of a source, parsed from Spark DDL text without a JVM.

A type is kept as text for Spark, and what Spark would not take is refused.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, SqlglotError
from sqlglot.tokenizer_core import TokenType

from flowcore.errors import SchemaError

__all__ = ["Column", "Schema", "fits"]

_PREFIX = "CREATE TABLE t ("

_WORDS = {
    "BOOLEAN", "TINYINT", "BYTE", "SMALLINT", "SHORT", "INT", "INTEGER", "BIGINT", "LONG", "FLOAT",
    "REAL", "DOUBLE", "DECIMAL", "DEC", "NUMERIC", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ",
    "STRING", "CHARACTER", "CHAR", "VARCHAR", "BINARY", "VARIANT", "GEOMETRY", "GEOGRAPHY", "ARRAY",
    "MAP", "STRUCT", "INTERVAL", "YEAR", "MONTH", "DAY", "HOUR", "MINUTE", "SECOND", "TO", "NOT", "NULL",
    "COMMENT",
}  # fmt: skip
"""The words of a schema, besides names: Spark's types, with its aliases, and what may follow a type."""

_TYPE = exp.DataType.Type
_PARAMETERS = {
    _TYPE.ARRAY: (1, 1), _TYPE.MAP: (2, 2), _TYPE.STRUCT: (1, sys.maxsize), _TYPE.DECIMAL: (0, 2),
    _TYPE.CHAR: (1, 1), _TYPE.VARCHAR: (1, 1), _TYPE.GEOMETRY: (0, 1), _TYPE.GEOGRAPHY: (0, 1),
}  # fmt: skip
"""By type, the least and the most parameters; other types have none."""
_MOST_DIGITS = 38

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
            _require_words(statement, ddl)
            for kind in statement.find_all(exp.DataType):
                _require_parameters(kind)
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


def _require_words(statement: exp.Expr, ddl: str) -> None:
    """Check that each word is a name, or one that Spark knows and sqlglot does not change to another type."""
    names = {name.meta.get("start") for name in statement.find_all(exp.Identifier)}
    for token in sqlglot.tokenize(f"{_PREFIX}{ddl}", dialect="spark"):
        if token.start < len(_PREFIX) or token.start in names:
            continue
        word = token.token_type not in {TokenType.STRING, TokenType.NUMBER} and token.text.upper()
        if word and word not in _WORDS and not re.fullmatch(r"[<>():,]+", word):
            _refuse(f"{token.text!r} is not a type of Spark that flowcore reads, nor NOT NULL or COMMENT")


def _require_parameters(kind: exp.DataType) -> None:
    """Check the parameters of a type: the types in it, a length, or the digits of a decimal."""
    text, given = kind.sql("spark"), kind.expressions
    least, most = _PARAMETERS.get(kind.this, (0, 0))
    if kind.this is _TYPE.NULL or not least <= len(given) <= most:
        _refuse(f"{text} has {len(given)} parameters, which Spark refuses")
    if kind.this is _TYPE.STRUCT and not all(isinstance(each, exp.ColumnDef) for each in given):
        _refuse(f"{text} has a field without a name or a type")
    if kind.this is _TYPE.DECIMAL and given:
        precision, scale = (int(each.name) for each in (*given, exp.Literal.number(0))[:2])
        if not scale <= precision <= _MOST_DIGITS or precision < 1:
            _refuse(f"{text}: a decimal has 1 to {_MOST_DIGITS} digits, and not more of them after the point")


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
