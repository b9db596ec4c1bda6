"""The protocol of a value format in SQL text, and its simplest instance: raw bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from flowcore.api.schema import Schema
from flowcore.spark.frame.sql import quote, struct

__all__ = ["RECORD", "RawSql", "SqlFormat"]

RECORD = "record"
"""The column that holds a parsed record, a struct."""


class SqlFormat(Protocol):
    """How Spark reads and writes the values of a topic."""

    def parse(self, schema: Schema, payload: str) -> str:
        """The payload as a struct of the schema's fields; null, or null fields, if it does not fit."""

    def misfits(self, schema: Schema, payload: str) -> list[str]:
        """Conditions on `RECORD` and payload that hold if the payload does not fit, beside nulls.

        They are evaluated in this order: each only if none before it holds.
        """

    def write(self, columns: Mapping[str, str]) -> str:
        """The bytes of a value of these columns, which are SQL text by name."""


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

    def write(self, columns: Mapping[str, str]) -> str:
        """The bytes of the one column; a null is a message without a value."""
        (value,) = columns.values()
        return f"CAST({value} AS BINARY)"
