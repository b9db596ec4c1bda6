"""JSON in SQL text. Spark's reader takes some values that are not JSON: docs/flows.md names them.

Above all, what follows a first object is not looked at, as long as the value ends as an object does.
"""

from __future__ import annotations

from collections.abc import Mapping

from flowcore.graph.schema import Schema
from flowcore.spark.sql import literal, quoted, struct

__all__ = ["misfits", "parsed", "written"]

_CORRUPT = "_flowcore_corrupt"


def parsed(schema: Schema, payload: str) -> str:
    """The fields as a struct and, if the payload does not fit, its text."""
    ddl = ", ".join(f"{quoted(column.name)} {column.type}" for column in schema.columns)
    options = f"map('mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', '{_CORRUPT}')"
    return f"from_json(CAST({payload} AS STRING), {literal(f'{ddl}, {_CORRUPT} STRING')}, {options})"


def misfits(record: str, payload: str) -> list[str]:
    """What is true of payloads that do not fit, beside their columns."""
    # Spark's parser stops at the end of the first object, whatever follows. Trimming is dear and rare.
    text = f"CAST({payload} AS STRING)"
    trimmed = rf"TRIM(TRAILING ' \t\r\n' FROM {text})"
    return [
        f"{record}.{_CORRUPT} IS NOT NULL",
        f"(NOT endswith({text}, '}}') AND NOT endswith({trimmed}, '}}'))",
        # It would read other characters where bytes are no UTF-8.
        f"NOT is_valid_utf8({text})",
    ]


def written(columns: Mapping[str, str]) -> str:
    """One object; fields that are null are left out."""
    return f"CAST(to_json({struct(columns)}) AS BINARY)"
