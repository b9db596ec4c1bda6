"""Windows over bounded input that are Spark's own aggregate: which rows do they give?

A row is put into each of its windows by arithmetic on its time, and windows are grouped like any other
column. All sums stay inside of 64 bits: a window is told by how far its start is behind the row, and only
where that is inside of 64-bit time are they subtracted.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from flowcore.api.operators import KeyedProcess, Window
from flowcore.api.window_operator import WINDOW_COLUMNS
from flowcore.spark.frame.sql import displayable_timestamp, literal, quote, struct
from flowcore.spark.operators.by_key import STAMP
from flowcore.windows import SlidingWindows, TumblingWindows

__all__ = ["TIME", "timed", "windowed"]

TIME = STAMP
"""The column of a row's time, BIGINT milliseconds, null if it has none."""

_BEHIND, _START, _LAST = "_flowcore_behind_ms", "_flowcore_start_ms", "_flowcore_last_ms"
_MIN, _MAX = "(-9223372036854775807L - 1L)", "9223372036854775807L"


def windowed(node: Window, frame: DataFrame) -> DataFrame:
    """One row for each key and window, for windows that compile to Spark's aggregate."""
    match node.config.assigner:
        case TumblingWindows(size_ms=size_ms, offset_ms=offset_ms):
            frame = _in_windows(timed(node, frame), size_ms, size_ms, offset_ms)
        case SlidingWindows(size_ms=size_ms, slide_ms=slide_ms, offset_ms=offset_ms):
            frame = _in_windows(timed(node, frame), size_ms, slide_ms, offset_ms)
        case _:
            # By constants where there are neither keys nor windows: of no rows there is no window.
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


def timed(node: Window | KeyedProcess, frame: DataFrame) -> DataFrame:
    """The rows with their time beside their columns; one that needs a time and has none fails the stage."""
    time = "CAST(NULL AS BIGINT)"
    if node.timestamp is not None:
        text = node.timestamp.text
        kind = frame.selectExpr(text).schema.fields[0].dataType.typeName()
        whole = kind in ("long", "integer", "short", "byte")
        time = f"CAST({text} AS BIGINT)" if whole else f"unix_millis(CAST({text} AS TIMESTAMP))"
    if isinstance(node, Window) and node.config.assigner.bounded:
        time = f"coalesce({time}, CAST(raise_error({_without_time(node)}) AS BIGINT))"
    return frame.selectExpr("*", f"{time} AS {TIME}")


def _in_windows(frame: DataFrame, size_ms: int, slide_ms: int, offset_ms: int) -> DataFrame:
    """The rows, once for each window that they are in, with its first and last millisecond."""
    nearest = f"pmod(pmod({TIME}, {slide_ms}L) - {offset_ms % slide_ms}L, {slide_ms}L)"
    if slide_ms < size_ms:
        nearest = f"explode(sequence({nearest}, {size_ms - 1}L, {slide_ms}L))"
    ahead = f"({size_ms - 1}L - {_BEHIND})"
    return frame.selectExpr("*", f"{nearest} AS {_BEHIND}").selectExpr(
        "*",
        f"if({TIME} < {_MIN} + {_BEHIND}, {_MIN}, {TIME} - {_BEHIND}) AS {_START}",
        f"if({TIME} > {_MAX} - {ahead}, {_MAX}, {TIME} + {ahead}) AS {_LAST}",
    )


def _without_time(node: Window) -> str:
    """What is said of a row that belongs to no window, as SQL."""
    text = "" if node.timestamp is None else node.timestamp.text
    read = () if node.timestamp is None else node.timestamp.columns
    seen = {name: quote(name) for name in dict.fromkeys((*node.by, *read))}
    before = f"operator {node.name!r}: the record "
    behind = (
        f" has no timestamp: it belongs to no window of event time; let timestamp={text!r} give every row "
        "one, or leave such rows out with where(...)"
    )
    row = f"to_json({struct(seen)}, map('ignoreNullFields', 'false'))" if seen else "''"
    return f"concat({literal(before)}, {row}, {literal(behind)})"
