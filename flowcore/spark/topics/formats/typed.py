"""Columns as a topic's schema has them: may what a stream holds be written as that?"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql.types import DataType

from flowcore.api.connectors import KafkaTopic
from flowcore.api.schema import Column
from flowcore.errors import PlanError
from flowcore.spark.frame.sql import literal, quote

__all__ = ["require_type", "required", "typed"]

_WIDER = {
    "tinyint": ("smallint", "int", "bigint", "double"),
    "smallint": ("int", "bigint", "double"),
    "int": ("bigint", "double"),
    "float": ("double",),
}
"""Types that take every value of another one."""


def typed(topic: KafkaTopic, columns: Mapping[Column, str], frame: DataFrame) -> dict[str, str]:
    """SQL text of the columns, by name, in the schema's types.

    Args:
        topic: Where they are written to.
        columns: SQL text of each, over the frame.
        frame: What they are columns of.

    Raises:
        PlanError: A column's values might not be the same in the schema's type.
    """
    found = frame.selectExpr(*(f"{text} AS {quote(column.name)}" for column, text in columns.items())).dtypes
    for column, (_, kind) in zip(columns, found, strict=True):
        require_type(topic, column.name, kind, [DataType.fromDDL(column.type).simpleString()], column.type)
    return {column.name: f"CAST({text} AS {column.type})" for column, text in columns.items()}


def require_type(topic: KafkaTopic, name: str, kind: str, taken: list[str], wanted: str) -> None:
    """A type that is taken, or one of which every value fits a taken one."""
    if kind == "void" or not {kind, *_WIDER.get(kind, ())}.isdisjoint(taken):
        return
    msg = (
        f"topic {topic.name!r}: column {name!r} is {kind.upper()} and would be written as {wanted}: values "
        f"could be cut or changed; select 'CAST({name} AS {wanted}) AS {name}' before it, or correct the "
        "schema"
    )
    raise PlanError(msg)


def required(topic: KafkaTopic, column: str, kind: str, text: str) -> str:
    """The column; stops the query where it is null."""
    message = literal(
        f"a row cannot be written to topic {topic.name} as {topic.format}: column '{column}' is NOT NULL and "
        "holds a null"
    )
    return f"coalesce({text}, CAST(raise_error({message}) AS {kind}))"
