"""The times, the order and the windows of bounded rows.

All sums stay within 64 bits: the distance from a row back to its window's start is subtracted only if the
result is within the range of 64-bit time.
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, VariantType

from flowcore.api.expressions import Expression
from flowcore.api.operators import Deduplicate, KeyedProcess, Ranked, Window
from flowcore.spark.frame.sql import literal, quote, struct, visible
from flowcore.spark.operators.key_group_context import RECORD_TIMESTAMP
from flowcore.spark.topics.event_times import milliseconds, require_time

__all__ = [
    "LAST", "MAX_MS", "MIN_MS", "START", "add_timestamps", "in_windows", "is_sortable", "order_by_time",
    "required_time", "row_time",
]  # fmt: skip

_DISTANCE = "_flowcore_behind_ms"
START, LAST = "_flowcore_start_ms", "_flowcore_last_ms"
"""The columns that `in_windows` adds."""
MIN_MS, MAX_MS = "(-9223372036854775807L - 1L)", "9223372036854775807L"
"""SQL texts of the ends of 64-bit time."""


def add_timestamps(node: Window | KeyedProcess | Deduplicate | Ranked, frame: DataFrame) -> DataFrame:
    """Add the column of the record timestamp; a row without a timestamp that needs one fails the stage."""
    time = "CAST(NULL AS BIGINT)"
    if node.timestamp is not None:
        time = row_time(frame, node.timestamp, node.name)
    consequence = _needs_time(node)
    if consequence is not None:
        text = "" if node.timestamp is None else node.timestamp.text
        time = required_time(time, node.name, node.by, node.timestamp, consequence, f"timestamp={text!r}")
    return frame.selectExpr("*", f"{time} AS {RECORD_TIMESTAMP}")


def row_time(frame: DataFrame, time: Expression, name: str, parameter: str = "timestamp") -> str:
    """SQL text of the milliseconds of a row's time.

    Raises:
        PlanError: The time is neither BIGINT nor TIMESTAMP.
    """
    require_time(frame, time.text, name, time.text, parameter)
    return milliseconds(frame, time.text)


def required_time(  # noqa: PLR0917 - the time, then the words of the error
    time: str, name: str, keys: Sequence[str], declared: Expression | None, consequence: str, parameter: str
) -> str:
    """SQL text of a row's time, which fails the stage if it is null; the error shows keys and the time."""
    read = () if declared is None else declared.columns
    seen = {column: quote(column) for column in dict.fromkeys((*keys, *read))}
    before = f"operator {name!r}: the record "
    after = (
        f" has no timestamp: {consequence}; let {parameter} give every row one, or leave such rows "
        "out with where(...)"
    )
    row = f"to_json({struct(seen)}, map('ignoreNullFields', 'false'))" if seen else "''"
    error = f"concat({literal(before)}, {visible(row)}, {literal(after)})"
    return f"coalesce({time}, CAST(raise_error({error}) AS BIGINT))"


def _needs_time(node: Window | KeyedProcess | Deduplicate | Ranked) -> str | None:
    """Why each row needs a timestamp; None if it needs none."""
    if isinstance(node, Window) and node.config.assigner.bounded:
        return "it belongs to no window of event time"
    if isinstance(node, Deduplicate) and node.within_ms is not None:
        return "it is not known what it repeats"
    if isinstance(node, Ranked) and node.rank is None:
        return "it is not known which row is newer"
    return None


def order_by_time(frame: DataFrame) -> list[Column]:
    """By time, if rows have it; those with equal times by their other columns, so that all runs are alike."""
    ties = [field.name for field in frame.schema.fields if is_sortable(field.dataType)]
    time = [RECORD_TIMESTAMP] if RECORD_TIMESTAMP in frame.columns else []
    return [F.col(quote(name)).asc_nulls_first() for name in dict.fromkeys((*time, *ties))]


def is_sortable(kind: DataType) -> bool:
    """Whether Spark can order values of a type."""
    match kind:
        case ArrayType(elementType=inner):
            return is_sortable(inner)
        case StructType(fields=fields):
            return all(is_sortable(field.dataType) for field in fields)
        case _:
            return not isinstance(kind, (MapType, VariantType))


def in_windows(frame: DataFrame, size_ms: int, slide_ms: int, offset_ms: int) -> DataFrame:
    """The rows, once for each of their windows, with the window's first and last millisecond."""
    time = RECORD_TIMESTAMP
    nearest = f"pmod(pmod({time}, {slide_ms}L) - {offset_ms % slide_ms}L, {slide_ms}L)"
    if slide_ms < size_ms:
        nearest = f"explode(sequence({nearest}, {size_ms - 1}L, {slide_ms}L))"
    ahead = f"({size_ms - 1}L - {_DISTANCE})"
    return frame.selectExpr("*", f"{nearest} AS {_DISTANCE}").selectExpr(
        "*",
        f"if({time} < {MIN_MS} + {_DISTANCE}, {MIN_MS}, {time} - {_DISTANCE}) AS {START}",
        f"if({time} > {MAX_MS} - {ahead}, {MAX_MS}, {time} + {ahead}) AS {LAST}",
    )
