"""JSON in SQL text: the objects of `flowcore.serializers.formats.json_text`, and no others.

Spark's reader accepts more: it ignores what follows the first object, reads anything as a STRING field, reads
words as a DOUBLE field, 128 to 255 as a negative TINYINT field, and some numbers and texts as another
TIMESTAMP (`json_times`). To parse each payload a second time would double the cost of reading. So each check
is evaluated only for values that may be wrong.
Numbers of DECIMAL fields are checked before Spark reads them (`decimal_numbers`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from flowcore.api.schema import Column, Schema
from flowcore.serializers.formats.json_limits import MOST_DIGITS, MOST_LEVELS
from flowcore.spark.frame.sql import STRICT_TIMES, json_object, literal, options, quote
from flowcore.spark.topics.formats.decimal_numbers import too_long_numbers, unless_too_long
from flowcore.spark.topics.formats.json_times import misread_times
from flowcore.spark.topics.formats.sql_format import RECORD, misfit_text

__all__ = ["JsonSql", "object_misfits", "parse_object"]

_CORRUPT = "_flowcore_corrupt"
_OPTIONS = options(
    {
        "mode": "PERMISSIVE",
        "allowSingleQuotes": "false",
        "columnNameOfCorruptRecord": _CORRUPT,
        "maxNestingDepth": str(MOST_LEVELS),
        "maxNumLen": str(MOST_DIGITS),
        **STRICT_TIMES,
    }
)
_NUMBER = "^-?[0-9]+([.][0-9]+)?([eE][-+]?[0-9]+)?$"
_NOT_FINITE = "'NaN', 'Infinity', '-Infinity'"
_BARE = """'true', 'false', '"NaN"', '"Infinity"', '"-Infinity"'"""
"""How Spark reads these words as a STRING field: it puts quotation marks around the last three."""


class JsonSql:
    """JSON objects, one a value."""

    def parse(self, schema: Schema, payload: str) -> str:
        """The fields as a struct and, if the payload does not fit, its text."""
        return parse_object(schema.columns, payload)

    def misfits(self, schema: Schema, payload: str) -> list[str]:
        """Payloads with other text than one object, and fields of another type."""
        return object_misfits(schema.columns, payload, RECORD)

    def describe_misfits(self, schema: Schema, payload: str) -> list[tuple[str, str]]:
        """Text that is not one object, and each field that is not a value of its column's type."""
        text = f"CAST({payload} AS STRING)"
        found = [
            (f"json_object_keys({text}) IS NULL", literal("it is not a JSON object")),
            (_is_followed(payload, text), literal("more text follows the object")),
            *too_long_numbers(schema.columns, text),
            *misread_times(schema.columns, text),
        ]
        for column in schema.columns:
            shown = f"CAST({_field(column.name, text)} AS STRING)"
            if column.type == "STRING":
                # Spark has no VARIANT of an object that names a field twice, and reads its text.
                shown = f"coalesce({shown}, {RECORD}.{quote(column.name)})"
                wrong = f"{_kind(column.name, text)} NOT IN ('STRING', 'VOID')"
            else:
                ddl = literal(f"{quote(column.name)} {column.type}, {_CORRUPT} STRING")
                wrong = f"from_json({text}, {ddl}, {_OPTIONS}).{_CORRUPT} IS NOT NULL"
                if column.type == "TINYINT":
                    wrapped = _is_wrapped(column.name, f"{RECORD}.{quote(column.name)}", text)
                    wrong = f"({wrong} OR {wrapped})"
            found.append((f"{shown} IS NOT NULL AND {wrong}", misfit_text(column, shown)))
        return found

    def unwritable(self, columns: Mapping[str, str]) -> None:
        """Every value can be written; times that no reader takes are known by the columns' types only."""

    def write(self, columns: Mapping[str, str]) -> str:
        """One object; null fields are left out."""
        return f"CAST({json_object(columns)} AS BINARY)"


def parse_object(columns: Sequence[Column], payload: str) -> str:
    """A JSON object as a struct of columns and, if it does not fit, of its text; SQL text."""
    ddl = ", ".join(f"{quote(column.name)} {column.type}" for column in columns)
    text = f"CAST({payload} AS STRING)"
    parsed = f"from_json({text}, {literal(f'{ddl}, {_CORRUPT} STRING')}, {_OPTIONS})"
    return unless_too_long(columns, text, parsed)


def object_misfits(columns: Sequence[Column], payload: str, record: str) -> list[str]:
    """When ``record``, which `parse_object` made of a payload, has values that it does not hold; SQL text."""
    text = f"CAST({payload} AS STRING)"
    found = [
        f"{record}.{_CORRUPT} IS NOT NULL",
        # Spark replaces bytes that are not UTF-8 by other characters.
        f"NOT is_valid_utf8({text})",
        _is_followed(payload, text),
    ]
    for column in columns:
        field = f"{record}.{quote(column.name)}"
        if column.type == "STRING":
            plain = _stands_plainly(column.name, field, payload, text)
            no_text = f"{_may_not_be_text(field)} AND NOT {plain} AND {_kind(column.name, text)} <> 'STRING'"
            found.append(f"({no_text})")
        elif column.type in ("FLOAT", "DOUBLE"):
            infinite = f"(isnan({field}) OR abs({field}) = double('Infinity'))"
            word = f"CAST({_field(column.name, text)} AS STRING)"
            no_word = f"{_kind(column.name, text)} <> 'STRING' OR {word} NOT IN ({_NOT_FINITE})"
            found.append(f"({infinite} AND ({no_word}))")
        elif column.type == "TINYINT":
            found.append(f"({_is_wrapped(column.name, field, text)})")
    return found + [condition for condition, _ in misread_times(columns, text)]


def _is_wrapped(name: str, field: str, text: str) -> str:
    """True of a TINYINT that Spark has read from a number of 128 to 255, as a negative one."""
    return f"{field} < 0 AND NOT startswith(CAST({_field(name, text)} AS STRING), '-')"


def _is_followed(payload: str, text: str) -> str:
    """True if more text follows the object that was read.

    If the first closing brace is the last byte, nothing follows. Otherwise the text is counted as items of an
    array. If the text contains the bracket that closes the array, one more item makes no difference.
    """
    is_one = f"coalesce(json_array_length(concat('[', {text}, ']')) = 1, false)"
    makes_two = f"coalesce(json_array_length(concat('[', {text}, ',0]')) = 2, false)"
    return (
        f"({_closed_before_end(payload)} AND NOT ({is_one} AND (NOT contains({text}, ']') OR {makes_two})))"
    )


def _closed_before_end(payload: str) -> str:
    return f"contains(substring({payload}, 1, length({payload}) - 1), X'7d')"


def _stands_plainly(name: str, field: str, payload: str, text: str) -> str:
    """True if the payload contains the field in quotation marks, and no nested object."""
    key = json.dumps(name, ensure_ascii=False)
    found = [
        f"contains({text}, concat({literal(f'{key}:{space}')}, '\"', {field}, '\"'))" for space in ("", " ")
    ]
    return f"(NOT {_closed_before_end(payload)} AND ({' OR '.join(found)}))"


def _may_not_be_text(field: str) -> str:
    """True of a text that Spark may have read from a number, a bool, an array or an object."""
    return (
        f"({field} >= '-' AND {field} < ':' AND {field} RLIKE {literal(_NUMBER)}"
        f" OR {field} >= '[' AND {field} < '\\\\' AND endswith({field}, ']')"
        f" OR {field} >= '{{' AND {field} < '|' AND endswith({field}, '}}')"
        f" OR {field} IN ({_BARE}))"
    )


def _field(name: str, text: str) -> str:
    return f"from_json({text}, {literal(f'{quote(name)} VARIANT')}, {_OPTIONS}).{quote(name)}"


def _kind(name: str, text: str) -> str:
    """The type of a field in the payload; empty if the field is absent, or names a field of its own twice."""
    return f"coalesce(schema_of_variant({_field(name, text)}), '')"
