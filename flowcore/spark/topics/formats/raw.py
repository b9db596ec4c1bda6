"""Raw bytes in SQL text: the value is one column, BINARY, or STRING in UTF-8."""

from __future__ import annotations

from collections.abc import Mapping

from flowcore.api.schema import Schema
from flowcore.spark.frame.sql import quote, struct

__all__ = ["misfits", "parsed", "written"]


def parsed(schema: Schema, payload: str) -> str:
    """The payload as the only field of a struct; null where there is none."""
    (column,) = schema.columns
    value = struct({column.name: f"CAST({payload} AS {column.type})"})
    return f"CASE WHEN {payload} IS NOT NULL THEN {value} END"


def misfits(schema: Schema, record: str) -> list[str]:
    """What is true of payloads that do not fit, beside their columns."""
    (column,) = schema.columns
    return [f"NOT is_valid_utf8({record}.{quote(column.name)})"] if column.type == "STRING" else []


def written(columns: Mapping[str, str]) -> str:
    """The bytes of the one column; a null is a message without a value."""
    (value,) = columns.values()
    return f"CAST({value} AS BINARY)"
