"""Names, strings and structs as Spark SQL text.

Live queries are built from text: a whole projection is one call into the JVM, while columns built from
functions need several calls for each function.
"""

from collections.abc import Mapping, Sequence

import sqlglot
from sqlglot import exp

from flowcore.api.expressions import is_aggregate

__all__ = [
    "BATCH_CLOCK_MS", "JSON_OPTIONS", "STRICT_TIMES", "TIME_FORMATS", "displayable_timestamp", "json_object",
    "literal", "options", "quote", "saturate_times", "struct", "unquote", "visible",
]  # fmt: skip

_INVISIBLE = r"[\p{C}\p{Zl}\p{Zp}]+"
"""Java's classes of control and format characters, of no characters, and of separators of lines."""
_LARGEST = {"timestamp_seconds": 9_223_372_036_854, "timestamp_millis": 9_223_372_036_854_775}
"""By function, the largest number whose microseconds have 64 bits; Spark raises for a larger one."""
_TIMES_SHOWN = (-62_135_596_800_000, 253_402_300_799_999)
"""The years 1 to 9999, whose times Spark can show; 64-bit milliseconds go far beyond them."""

BATCH_CLOCK_MS = "unix_millis(array_sort(array(current_timestamp()))[0])"
"""When the batch began, in milliseconds since 1970; the same if the batch is repeated.

Spark writes numbers into the code that it generates, and ``current_timestamp()`` is another one in each
batch: that code, which parses the records too, would be compiled for each batch and start cold. Spark
interprets ``array_sort`` instead, so the number is not in the code.
"""


def quote(name: str) -> str:
    """Quote a name with any characters.

    >>> quote("odd`name")
    '`odd``name`'
    """
    return "`" + name.replace("`", "``") + "`"


def unquote(text: str) -> str:
    """The name that was quoted.

    >>> unquote(quote("odd`name"))
    'odd`name'
    """
    return text[1:-1].replace("``", "`")


def literal(text: str) -> str:
    r"""A string literal.

    >>> print(literal("it's"))
    'it\'s'
    """
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def visible(text: str) -> str:
    r"""A text from data on one line, without what a terminal obeys, what reorders text or what draws nothing.

    >>> print(visible("name"))
    regexp_replace(name, '[\\p{C}\\p{Zl}\\p{Zp}]+', ' ')
    """
    return f"regexp_replace({text}, {literal(_INVISIBLE)}, ' ')"


def struct(fields: Mapping[str, str]) -> str:
    """A struct of named expressions."""
    return f"named_struct({', '.join(f'{literal(name)}, {value}' for name, value in fields.items())})"


_MICROSECONDS = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
TIME_FORMATS = {"timestampFormat": f"{_MICROSECONDS}XXX", "timestampNTZFormat": _MICROSECONDS}
"""Options of Spark's writers of text, which by default cut a time to milliseconds."""
STRICT_TIMES = {"enableDateTimeParsingFallback": "false", "dateFormat": "yyyy-MM-dd"}
"""Options of Spark's readers of JSON, which by default read "5" as the date 1970-01-06, and cut a time or any
text after a date."""


def options(values: Mapping[str, str]) -> str:
    """Options of Spark's functions on text."""
    return f"map({', '.join(literal(each) for pair in values.items() for each in pair)})"


JSON_OPTIONS = options(TIME_FORMATS)
"""How `json_object` writes times."""


def json_object(fields: Mapping[str, str]) -> str:
    """A JSON object of named expressions without the null ones; times have microseconds."""
    return f"to_json({struct(fields)}, {JSON_OPTIONS})"


def displayable_timestamp(time_ms: str) -> str:
    """A TIMESTAMP of milliseconds, null if Spark cannot show it."""
    least, most = _TIMES_SHOWN
    return f"CASE WHEN {time_ms} BETWEEN {least} AND {most} THEN timestamp_millis({time_ms}) END"


def saturate_times(text: str) -> str:
    """An expression whose times from numbers do not fail: a number that is too large is the largest one.

    A time of an aggregate is left as it is: the aggregate would be there several times.

    >>> saturate_times("timestamp_millis(`at`)")
    'timestamp_millis(CASE WHEN (`at`) > 9223372036854775 THEN 9223372036854775 WHEN (`at`) < \
-9223372036854775 THEN -9223372036854775 ELSE `at` END)'
    """
    if not any(name in text.lower() for name in _LARGEST):
        return text
    tokens = sqlglot.tokenize(text, dialect="spark")
    for number, token in enumerate(tokens[:-1]):
        most = _LARGEST.get(token.text.lower())
        if most is None or tokens[number + 1].text != "(" or text[token.start] == "`":
            continue
        start = tokens[number + 1].end + 1
        end = _closing(tokens[number + 2 :])
        if end is not None and not _aggregates(text[start:end]):
            argument = saturate_times(text[start:end])
            saturated = (
                f"CASE WHEN ({argument}) > {most} THEN {most} WHEN ({argument}) < -{most} THEN -{most} "
                f"ELSE {argument} END"
            )
            return f"{text[:start]}{saturated}{saturate_times(text[end:])}"
    return text


def _aggregates(text: str) -> bool:
    tree = sqlglot.parse_one(text, dialect="spark")
    return any(map(is_aggregate, tree.find_all(exp.Func, exp.Any)))


def _closing(tokens: Sequence[sqlglot.Token]) -> int | None:
    """Where the bracket closes that was opened before the tokens."""
    depth = 1
    for token in tokens:
        depth += (
            {"(": 1, ")": -1}.get(token.text, 0) if token.token_type.name in ("L_PAREN", "R_PAREN") else 0
        )
        if depth == 0:
            return token.start
    return None
