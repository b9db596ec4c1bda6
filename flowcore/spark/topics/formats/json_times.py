"""Values of TIMESTAMP fields that Spark reads as other times, as SQL text over JSON.

Spark multiplies a number of seconds by a million without a check, so 18446744073710 is half a second after
the beginning of 1970. A time of day without a date is one of today: a batch that is repeated after midnight
would have another. Most payloads have no text that looks like one of them, and nothing else is searched for
in them. Columns of the others are read once more, with times as text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pyspark.sql import types as T

from flowcore.api.schema import Column
from flowcore.spark.frame.sql import literal, quote
from flowcore.spark.topics.formats.sql_format import any_part, misfit_text, spark_type

__all__ = ["TIME_OF_DAY", "misread_times"]

_MOST_SECONDS = 9_223_372_036_854
"""Their microseconds have 64 bits."""
_LONG = r"[:\[,\s]-?([0-9]{14,19}|9[2-9][0-9]{11})(?![.0-9eE])"
"""A number in JSON that may be larger: an integer, and of 64 bits."""
_HOUR = r"T[0-9]|[0-9]{1,2}:"
TIME_OF_DAY = rf"^[\x00-\x20\x7f]*({_HOUR})"
"""How a text begins that Spark reads as a time of today."""
# An escape may stand for any character, and within a time for a digit or a colon.
_MAY_BE_TIME_OF_DAY = rf'"[ \x7f]*({_HOUR}|\\[bfnrtu])|\\u003[0-9aA]'
_MAY_BE_MISREAD = f"{_LONG}|{_MAY_BE_TIME_OF_DAY}"


def misread_times(columns: Sequence[Column], text: str) -> Iterator[tuple[str, str]]:
    """When JSON text has a value of a TIMESTAMP that Spark reads as another time, each with why it is bad."""
    for column in columns:
        if "TIMESTAMP" not in column.type:
            continue
        kind, name = spark_type(column), quote(column.name)
        value = f"from_json({text}, {literal(f'{name} {_with_texts(kind)}')}).{name}"
        if is_misread := any_part(value, kind, _is_misread):
            condition = f"({text} RLIKE {literal(_MAY_BE_MISREAD)} AND coalesce({is_misread}, false))"
            yield condition, misfit_text(column, f"CAST({value} AS STRING)")


def _with_texts(kind: T.DataType) -> str:
    """A type with STRING for each TIMESTAMP in it, as DDL."""
    match kind:
        case T.TimestampType():
            return "STRING"
        case T.StructType():
            fields = (f"{quote(each.name)}: {_with_texts(each.dataType)}" for each in kind.fields)
            return f"STRUCT<{', '.join(fields)}>"
        case T.ArrayType():
            return f"ARRAY<{_with_texts(kind.elementType)}>"
        case T.MapType():
            return f"MAP<{_with_texts(kind.keyType)}, {_with_texts(kind.valueType)}>"
        case _:
            return kind.simpleString()


def _is_misread(value: str, kind: T.DataType) -> str | None:
    if not isinstance(kind, T.TimestampType):
        return None
    seconds = (
        f"{value} RLIKE '^-?[0-9]{{13,}}$' AND abs(try_cast({value} AS DECIMAL(20,0))) > {_MOST_SECONDS}"
    )
    return f"({seconds} OR {value} RLIKE {literal(TIME_OF_DAY)})"
