"""Value formats in SQL text: their protocol, raw bytes, and casts of columns to the types of a schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from pyspark.sql import DataFrame
from pyspark.sql import types as T

from flowcore.api.connectors import KafkaTopic
from flowcore.api.schema import Column, Schema, fits
from flowcore.errors import PlanError
from flowcore.spark.frame.sql import literal, quote, struct

__all__ = [
    "RECORD", "RawSql", "SqlFormat", "any_part", "cast_columns", "misfit_text", "null_text",
    "outside_calendar", "require_type", "spark_type", "within_calendar",
]  # fmt: skip

RECORD = "record"
"""The column that holds a parsed record, a struct."""

_SHOWN = 100
"""Most characters of a value in a reason."""


_FIRST_AND_LAST: Mapping[type[T.DataType], tuple[str, str]] = {
    T.DateType: ("DATE'0001-01-01'", "DATE'9999-12-31'"),
    T.TimestampType: ("timestamp_micros(-62135596800000000)", "timestamp_micros(253402300799999999)"),
    T.TimestampNTZType: (
        "TIMESTAMP_NTZ'0001-01-01 00:00:00'",
        "TIMESTAMP_NTZ'9999-12-31 23:59:59.999999'",
    ),
}
"""What Python can hold of each type of time."""


Test = Callable[[str, T.DataType], str | None]
"""SQL text of a condition on a value of a type; None if the condition does not apply to the type."""


class SqlFormat(Protocol):
    """How Spark reads and writes the values of a topic."""

    def parse(self, schema: Schema, payload: str) -> str:
        """The payload as a struct of the schema's fields; null, or null fields, if it does not fit."""

    def misfits(self, schema: Schema, payload: str) -> list[str]:
        """Conditions on `RECORD` and payload that hold if the payload does not fit, beside nulls.

        They are evaluated in this order: each only if none before it holds.
        """

    def describe_misfits(self, schema: Schema, payload: str) -> list[tuple[str, str]]:
        """Conditions under which a field of a bad payload is wrong, each with SQL text that says how."""

    def unwritable(self, columns: Mapping[str, str]) -> str | None:
        """SQL text of why a value cannot be written, null if it can; None if every value can."""

    def write(self, columns: Mapping[str, str]) -> str:
        """The bytes of a value of these columns, which are SQL text by name.

        A value that cannot be written fails or is null, as the format says.
        """


class RawSql:
    """Raw bytes: the value is one column, BINARY, or STRING in UTF-8."""

    def parse(self, schema: Schema, payload: str) -> str:
        """The payload as the only field of a struct; null if there is no payload."""
        (column,) = schema.columns
        value = struct({column.name: f"CAST({payload} AS {column.type})"})
        return f"CASE WHEN {payload} IS NOT NULL THEN {value} END"

    def misfits(self, schema: Schema, payload: str) -> list[str]:  # noqa: ARG002 - the protocol's
        """A STRING that is not UTF-8."""
        (column,) = schema.columns
        return [f"NOT is_valid_utf8({RECORD}.{quote(column.name)})"] if column.type == "STRING" else []

    def describe_misfits(self, schema: Schema, payload: str) -> list[tuple[str, str]]:  # noqa: ARG002 - the protocol's
        """No conditions: a payload has no fields."""
        return []

    def unwritable(self, columns: Mapping[str, str]) -> None:
        """Every value can be written."""

    def write(self, columns: Mapping[str, str]) -> str:
        """The bytes of the one column; a null is a message without a value."""
        (value,) = columns.values()
        return f"CAST({value} AS BINARY)"


def any_part(value: str, kind: T.DataType, test: Test) -> str | None:
    """SQL text that is true if a test holds for a value or a part of it; None if it has none to test."""
    if (tested := test(value, kind)) is not None:
        return tested
    parts: list[str | None] = []
    match kind:
        case T.StructType():
            parts = [any_part(f"{value}.{quote(each.name)}", each.dataType, test) for each in kind.fields]
        case T.ArrayType():
            parts = [_any_item(value, kind.elementType, test)]
        case T.MapType():
            parts = [
                _any_item(f"map_keys({value})", kind.keyType, test),
                _any_item(f"map_values({value})", kind.valueType, test),
            ]
    found = [f"coalesce({part}, false)" for part in parts if part]
    return f"({' OR '.join(found)})" if found else None


def outside_calendar(value: str, kind: T.DataType) -> str | None:
    """SQL text that is true if a date or time in a value is not of the years 1 to 9999; None if without."""
    return any_part(value, kind, _outside)


def within_calendar(value: str, kind: T.DataType) -> str:
    """SQL text of a value that Python can hold: null for one with a date or time of other years."""
    outside = outside_calendar(value, kind)
    return value if outside is None else f"CASE WHEN NOT coalesce({outside}, false) THEN {value} END"


def _outside(value: str, kind: T.DataType) -> str | None:
    limits = _FIRST_AND_LAST.get(type(kind))
    return limits and f"{value} NOT BETWEEN {limits[0]} AND {limits[1]}"


def _any_item(values: str, kind: T.DataType, test: Test) -> str | None:
    item = f"_x{values.count('_x')}"
    inner = any_part(item, kind, test)
    return inner and f"exists({values}, {item} -> {inner})"


def misfit_text(column: Column, shown: str) -> str:
    """SQL text that says which field holds which value and should hold which type; ``shown`` is the value."""
    wanted = literal(f", which is not {column.type}")
    return f"concat({literal(f'field {column.name!r} holds ')}, left({shown}, {_SHOWN}), {wanted})"


def null_text(name: str) -> str:
    """SQL text that says that a column of a row cannot be written as null."""
    return literal(f"column {name!r} is NOT NULL and holds a null")


def spark_type(column: Column) -> T.DataType:
    """Spark's type of a column."""
    return T.DataType.fromDDL(column.type)


def cast_columns(topic: KafkaTopic, columns: Mapping[Column, str], frame: DataFrame) -> dict[str, str]:
    """SQL text of the columns, by name, in the schema's types, if no value can be changed by that.

    Raises:
        PlanError: A value of a column might change in the schema's type.
    """
    found = frame.selectExpr(*(f"{text} AS {quote(column.name)}" for column, text in columns.items())).dtypes
    for column, (_, kind) in zip(columns, found, strict=True):
        require_type(topic, column.name, kind, [spark_type(column).simpleString()], column.type)
    return {column.name: f"CAST({text} AS {column.type})" for column, text in columns.items()}


def require_type(topic: KafkaTopic, name: str, kind: str, taken: list[str], wanted: str) -> None:
    """Check that a column's type is among the types taken, or that each of its values fits one of them.

    Raises:
        PlanError: The type is another one.
    """
    if kind == "void" or any(fits(kind, each) for each in taken):
        return
    msg = (
        f"topic {topic.name!r}: column {name!r} is {kind.upper()} and would be written as {wanted}: values "
        f"could be cut or changed; select 'CAST({name} AS {wanted}) AS {name}' before it, or correct the "
        "schema"
    )
    raise PlanError(msg)
