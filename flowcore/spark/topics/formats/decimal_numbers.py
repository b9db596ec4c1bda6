"""Numbers of DECIMAL fields that Spark must not read, as SQL text over JSON.

Java writes out all digits of a number before Spark rounds it or finds it too large: ``1e100000000``, eleven
bytes of a message, costs minutes, and more zeros cost hours. Such a number is found before Spark's reader
sees it. Most payloads have no text that looks like one, and nothing else is searched for in them. The fields
of the others are read as VARIANT, which makes a number with an exponent a DOUBLE.
"""

from __future__ import annotations

from collections.abc import Sequence

from flowcore.api.schema import Column
from flowcore.spark.frame.sql import literal, quote
from flowcore.spark.topics.formats.sql_format import misfit_text

__all__ = ["OTHER_TEXT", "is_decimal", "short_number", "too_long_numbers", "unless_too_long"]

LONGEST_NUMBER = 1000
"""Most characters of a number, as for Spark's reader; reading a text of a million digits takes minutes."""

# Spark reads texts as numbers, too: without their commas, and with the digits of any script.
_LONG = r"[\p{Nd}.,][eE][-+,]*[\p{Nd},]{5}|(?<![\p{Nd}.,])[\p{Nd}.,]{%d}" % (LONGEST_NUMBER + 1)  # noqa: UP031
_MAY_BE_LONG = rf"{_LONG}|\\u"  # an escape may stand for any character
_SHORT = r"[-+]?[\p{Nd}.,]{1,%d}([eE][-+]?\p{Nd}{1,4})?" % LONGEST_NUMBER  # noqa: UP031
_OUT_OF_RANGE = r'Infinity|(?<![0-9."])0[.]0(?![0-9"])'
"""A DOUBLE that has lost its exponent, as VARIANT shows it; it shows 0 without an exponent as ``0``."""
# Possessive, since Java's recursion for each character of a long text would overflow its stack.
_TEXT = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
OTHER_TEXT = rf'{_TEXT}:|"([\p{{Nd}}.,eE+-]*+|-?Infinity)"|{_TEXT}'
"""Texts within the JSON of an array, a map or a struct; the group is one that Spark may read as a number."""
_NUMBER_TEXT = '"$1"'


def is_decimal(column: Column) -> bool:
    """Whether values of a column are DECIMAL, or may contain some."""
    return "DECIMAL" in column.type.upper()


def short_number(text: str) -> str:
    """A text that Spark may cast to DECIMAL, or null if it is, or may be, a number too long; SQL text."""
    is_long = f"length({text}) > {LONGEST_NUMBER} OR {text} RLIKE {literal(_LONG)}"
    return f"CASE WHEN NOT ({is_long}) THEN {text} END"


def unless_too_long(columns: Sequence[Column], text: str, parsed: str) -> str:
    """``parsed``, or null if a number is too long; SQL text."""
    conditions = [condition for condition, _ in too_long_numbers(columns, text)]
    if not conditions:
        return parsed
    return f"CASE WHEN {' OR '.join(conditions)} THEN NULL ELSE {parsed} END"


def too_long_numbers(columns: Sequence[Column], text: str) -> list[tuple[str, str]]:
    """When JSON text has a number too long for a DECIMAL column, each with why it is bad."""
    decimals = [column for column in columns if is_decimal(column)]
    if not decimals:
        return []
    may_be = f"{text} RLIKE {literal(_MAY_BE_LONG)}"
    # An object that names a field twice has no VARIANT.
    is_object = f"coalesce(schema_of_variant(try_parse_json({text})) LIKE 'OBJECT%', false)"
    why = literal("it may hold a number too long to be read, and is not an object that names each field once")
    found = [(f"({may_be} AND NOT {is_object})", why)]
    for column in decimals:
        value = f"from_json({text}, {literal(f'{quote(column.name)} VARIANT')}).{quote(column.name)}"
        shown = f"CAST({value} AS STRING)"
        is_text = f"schema_of_variant({value}) = 'STRING'"
        long_text = f"{shown} NOT RLIKE {literal(f'^{_SHORT}$')}"
        # Names and other texts beside a DECIMAL may look like a long number, as digests and ids do.
        numbers = f"regexp_replace({shown}, {literal(OTHER_TEXT)}, {literal(_NUMBER_TEXT)})"
        long_number = f"{numbers} RLIKE {literal(f'{_LONG}|{_OUT_OF_RANGE}')}"
        is_long = f"CASE WHEN {is_text} THEN {long_text} ELSE {long_number} END"
        found.append((f"({may_be} AND coalesce({is_long}, false))", misfit_text(column, shown)))
    return found
