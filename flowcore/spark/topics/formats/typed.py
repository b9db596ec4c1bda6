"""Cast columns to the types of a topic's schema, if no value can be changed by that."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql.types import DataType

from flowcore.api.connectors import KafkaTopic
from flowcore.api.schema import Column
from flowcore.errors import PlanError
from flowcore.spark.frame.sql import literal, quote

__all__ = ["cast_columns", "require_type", "require_value"]

_WIDER = {
    "tinyint": ("smallint", "int", "bigint", "double"),
    "smallint": ("int", "bigint", "double"),
    "int": ("bigint", "double"),
    "float": ("double",),
}
"""By type, the types that take each of its values."""


def cast_columns(topic: KafkaTopic, columns: Mapping[Column, str], frame: DataFrame) -> dict[str, str]:
    """SQL text of the columns, by name, in the schema's types.

    Raises:
        PlanError: A value of a column might change in the schema's type.
    """
    found = frame.selectExpr(*(f"{text} AS {quote(column.name)}" for column, text in columns.items())).dtypes
    for column, (_, kind) in zip(columns, found, strict=True):
        require_type(topic, column.name, kind, [DataType.fromDDL(column.type).simpleString()], column.type)
    return {column.name: f"CAST({text} AS {column.type})" for column, text in columns.items()}


def require_type(topic: KafkaTopic, name: str, kind: str, taken: list[str], wanted: str) -> None:
    """Check that a column's type is among the types taken, or that each of its values fits one of them.

    Raises:
        PlanError: It is not.
    """
    if kind == "void" or not {kind, *_WIDER.get(kind, ())}.isdisjoint(taken):
        return
    msg = (
        f"topic {topic.name!r}: column {name!r} is {kind.upper()} and would be written as {wanted}: values "
        f"could be cut or changed; select 'CAST({name} AS {wanted}) AS {name}' before it, or correct the "
        "schema"
    )
    raise PlanError(msg)


def require_value(topic: KafkaTopic, column: Column, text: str) -> str:
    """SQL text of a column; a null fails the query."""
    message = literal(
        f"a row cannot be written to topic {topic.name} as {topic.format}: column '{column.name}' is NOT "
        "NULL and holds a null"
    )
    return f"coalesce({text}, CAST(raise_error({message}) AS {column.type}))"
