"""JSON in SQL text: the objects of `flowcore.serializers.formats.json_text`, and no others.

Spark's reader takes more than that. What follows a first object is not looked at, a STRING field takes the
text of anything, a DOUBLE field takes numbers that are none. Reading twice would find it, at the price of
reading; so each is asked only of values that may hold it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from flowcore.api.schema import Schema
from flowcore.spark.frame.sql import literal, quote, struct

__all__ = ["misfits", "parsed", "written"]

_CORRUPT = "_flowcore_corrupt"
_OPTIONS = (
    f"map('mode', 'PERMISSIVE', 'allowSingleQuotes', 'false', 'columnNameOfCorruptRecord', '{_CORRUPT}')"
)
_NUMBER = "^-?[0-9]+([.][0-9]+)?([eE][-+]?[0-9]+)?$"
_NOT_FINITE = "'NaN', 'Infinity', '-Infinity'"
_BARE = """'true', 'false', '"NaN"', '"Infinity"', '"-Infinity"'"""
"""What Spark makes of these words in a STRING field; it puts quotation marks around the last three."""


def parsed(schema: Schema, payload: str) -> str:
    """The fields as a struct and, if the payload does not fit, its text."""
    ddl = ", ".join(f"{quote(column.name)} {column.type}" for column in schema.columns)
    return f"from_json(CAST({payload} AS STRING), {literal(f'{ddl}, {_CORRUPT} STRING')}, {_OPTIONS})"


def misfits(schema: Schema, record: str, payload: str) -> list[str]:
    """What is true of payloads that do not fit, beside their columns; asked in this order."""
    text = f"CAST({payload} AS STRING)"
    found = [
        f"{record}.{_CORRUPT} IS NOT NULL",
        # It would read other characters where bytes are no UTF-8.
        f"NOT is_valid_utf8({text})",
        _followed(payload, text),
    ]
    for column in schema.columns:
        field = f"{record}.{quote(column.name)}"
        if column.type == "STRING":
            plain = _stands_plainly(column.name, field, payload, text)
            no_text = f"{_may_be_no_text(field)} AND NOT {plain} AND {_kind(column.name, text)} <> 'STRING'"
            found.append(f"({no_text})")
        elif column.type in ("FLOAT", "DOUBLE"):
            infinite = f"(isnan({field}) OR abs({field}) = double('Infinity'))"
            said = f"CAST({_field(column.name, text)} AS STRING)"
            no_word = f"{_kind(column.name, text)} <> 'STRING' OR {said} NOT IN ({_NOT_FINITE})"
            found.append(f"({infinite} AND ({no_word}))")
    return found


def written(columns: Mapping[str, str]) -> str:
    """One object; fields that are null are left out."""
    return f"CAST(to_json({struct(columns)}) AS BINARY)"


def _followed(payload: str, text: str) -> str:
    """True if something stands behind an object that could be read.

    Nothing does where the first closing brace is the last byte. Elsewhere the text is counted as an array's
    items. It may hold the bracket that closes this array, and then one more item makes no difference.
    """
    is_one = f"coalesce(json_array_length(concat('[', {text}, ']')) = 1, false)"
    makes_two = f"coalesce(json_array_length(concat('[', {text}, ',0]')) = 2, false)"
    return (
        f"({_closed_before_end(payload)} AND NOT ({is_one} AND (NOT contains({text}, ']') OR {makes_two})))"
    )


def _closed_before_end(payload: str) -> str:
    return f"contains(substring({payload}, 1, length({payload}) - 1), X'7d')"


def _stands_plainly(name: str, field: str, payload: str, text: str) -> str:
    """True if the field stands in the payload with quotation marks, and no object is inside another."""
    key = json.dumps(name, ensure_ascii=False)
    found = [
        f"contains({text}, concat({literal(f'{key}:{space}')}, '\"', {field}, '\"'))" for space in ("", " ")
    ]
    return f"(NOT {_closed_before_end(payload)} AND ({' OR '.join(found)}))"


def _may_be_no_text(field: str) -> str:
    """True of a text that a number, a bool, an array or an object may have been read as."""
    return (
        f"({field} >= '-' AND {field} < ':' AND {field} RLIKE {literal(_NUMBER)}"
        f" OR {field} >= '[' AND {field} < '\\\\' AND endswith({field}, ']')"
        f" OR {field} >= '{{' AND {field} < '|' AND endswith({field}, '}}')"
        f" OR {field} IN ({_BARE}))"
    )


def _field(name: str, text: str) -> str:
    return f"from_json({text}, {literal(f'{quote(name)} VARIANT')}, {_OPTIONS}).{quote(name)}"


def _kind(name: str, text: str) -> str:
    """The type of a field as the payload has it."""
    return f"schema_of_variant({_field(name, text)})"
