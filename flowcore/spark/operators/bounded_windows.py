"""Windows over bounded input that compile to Spark's own aggregate.

Arithmetic on a row's time assigns it to its windows, and rows are grouped by window as by any other column.
All sums stay within 64 bits: the distance from a row back to its window's start is subtracted only if the
result is within the range of 64-bit time.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from flowcore.api.operators import KeyedProcess, Window
from flowcore.api.window_operator import WINDOW_COLUMNS
from flowcore.spark.frame.sql import displayable_timestamp, literal, quote, struct
from flowcore.spark.operators.keyed_step import RECORD_TIMESTAMP
from flowcore.windows import SlidingWindows, TumblingWindows

__all__ = ["add_timestamps", "aggregate_windows"]

_DISTANCE, _START, _LAST = "_flowcore_behind_ms", "_flowcore_start_ms", "_flowcore_last_ms"
_MIN, _MAX = "(-9223372036854775807L - 1L)", "9223372036854775807L"


def aggregate_windows(node: Window, frame: DataFrame) -> DataFrame:
    """One row for each key and window, for windows that compile to Spark's aggregate."""
    match node.config.assigner:
        case TumblingWindows(size_ms=size_ms, offset_ms=offset_ms):
            frame = _in_windows(add_timestamps(node, frame), size_ms, size_ms, offset_ms)
        case SlidingWindows(size_ms=size_ms, slide_ms=slide_ms, offset_ms=offset_ms):
            frame = _in_windows(add_timestamps(node, frame), size_ms, slide_ms, offset_ms)
        case _:
            # Grouped by constants if there are neither keys nor windows, so that no rows give no window.
            frame = frame.selectExpr("*", f"{_MIN} AS {_START}", f"{_MAX} AS {_LAST}")
    groups = frame.groupBy([F.col(quote(name)) for name in (*node.by, _START, _LAST)]).agg(
        *(F.expr(text).alias(name) for name, text in node.sql)
    )
    start, end, firing, late = WINDOW_COLUMNS
    return groups.selectExpr(
        *map(quote, (*node.by, *node.values)),
        f"{displayable_timestamp(_START)} AS {start}",
        f"{displayable_timestamp(f'try_add({_LAST}, 1L)')} AS {end}",
        f"1 AS {firing}",
        f"false AS {late}",
    )


def add_timestamps(node: Window | KeyedProcess, frame: DataFrame) -> DataFrame:
    """Add the column of the record timestamp; a row without a timestamp that needs one fails the stage."""
    time = "CAST(NULL AS BIGINT)"
    if node.timestamp is not None:
        text = node.timestamp.text
        kind = frame.selectExpr(text).schema.fields[0].dataType.typeName()
        whole = kind in ("long", "integer", "short", "byte")
        time = f"CAST({text} AS BIGINT)" if whole else f"unix_millis(CAST({text} AS TIMESTAMP))"
    if isinstance(node, Window) and node.config.assigner.bounded:
        time = f"coalesce({time}, CAST(raise_error({_without_time(node)}) AS BIGINT))"
    return frame.selectExpr("*", f"{time} AS {RECORD_TIMESTAMP}")


def _in_windows(frame: DataFrame, size_ms: int, slide_ms: int, offset_ms: int) -> DataFrame:
    """The rows, once for each of their windows, with the window's first and last millisecond."""
    time = RECORD_TIMESTAMP
    nearest = f"pmod(pmod({time}, {slide_ms}L) - {offset_ms % slide_ms}L, {slide_ms}L)"
    if slide_ms < size_ms:
        nearest = f"explode(sequence({nearest}, {size_ms - 1}L, {slide_ms}L))"
    ahead = f"({size_ms - 1}L - {_DISTANCE})"
    return frame.selectExpr("*", f"{nearest} AS {_DISTANCE}").selectExpr(
        "*",
        f"if({time} < {_MIN} + {_DISTANCE}, {_MIN}, {time} - {_DISTANCE}) AS {_START}",
        f"if({time} > {_MAX} - {ahead}, {_MAX}, {time} + {ahead}) AS {_LAST}",
    )


def _without_time(node: Window) -> str:
    """SQL text of the error for a row that belongs to no window."""
    text = "" if node.timestamp is None else node.timestamp.text
    read = () if node.timestamp is None else node.timestamp.columns
    seen = {name: quote(name) for name in dict.fromkeys((*node.by, *read))}
    before = f"operator {node.name!r}: the record "
    after = (
        f" has no timestamp: it belongs to no window of event time; let timestamp={text!r} give every row "
        "one, or leave such rows out with where(...)"
    )
    row = f"to_json({struct(seen)}, map('ignoreNullFields', 'false'))" if seen else "''"
    return f"concat({literal(before)}, {row}, {literal(after)})"
