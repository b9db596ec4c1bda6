"""Windows, deduplication and ranks over bounded input, with Spark's own operators.

Arithmetic on a row's time assigns it to its windows, and rows are grouped by window as by any other column.
"""

from pyspark.sql import DataFrame
from pyspark.sql import Window as Order
from pyspark.sql import functions as F

from flowcore.api.operators import Deduplicate, Ranked, Window
from flowcore.api.window_operator import WINDOW_COLUMNS
from flowcore.spark.frame.sql import displayable_timestamp, quote
from flowcore.spark.operators.bounded_rows import (
    LAST,
    MAX_MS,
    MIN_MS,
    START,
    add_timestamps,
    in_windows,
    order_by_time,
)
from flowcore.spark.operators.key_group_context import RECORD_TIMESTAMP
from flowcore.windows import SlidingWindows, TumblingWindows

__all__ = ["aggregate_windows", "drop_repeats", "rank_rows"]

_NUMBER = "_flowcore_number"


def aggregate_windows(node: Window, frame: DataFrame) -> DataFrame:
    """One row for each key and window, for windows that compile to Spark's aggregate."""
    match node.config.assigner:
        case TumblingWindows(size_ms=size_ms, offset_ms=offset_ms):
            frame = in_windows(add_timestamps(node, frame), size_ms, size_ms, offset_ms)
        case SlidingWindows(size_ms=size_ms, slide_ms=slide_ms, offset_ms=offset_ms):
            frame = in_windows(add_timestamps(node, frame), size_ms, slide_ms, offset_ms)
        case _:
            # Grouped by constants if there are neither keys nor windows, so that no rows give no window.
            frame = frame.selectExpr("*", f"{MIN_MS} AS {START}", f"{MAX_MS} AS {LAST}")
    groups = frame.groupBy([F.col(quote(name)) for name in (*node.by, START, LAST)]).agg(
        *(F.expr(text).alias(name) for name, text in node.sql)
    )
    start, end, firing, late = WINDOW_COLUMNS
    return groups.selectExpr(
        *map(quote, (*node.by, *node.values)),
        f"{displayable_timestamp(START)} AS {start}",
        f"{displayable_timestamp(f'try_add({LAST}, 1L)')} AS {end}",
        f"1 AS {firing}",
        f"false AS {late}",
    )


def drop_repeats(node: Deduplicate, frame: DataFrame) -> DataFrame:
    """The first row of each key, in order of time and then of the other columns."""
    ordered = add_timestamps(node, frame)
    keys = [F.col(quote(name)) for name in node.by]
    if node.pass_null_keys:  # each row without key has one of its own
        keys.append(F.when(keys[0].isNull(), F.monotonically_increasing_id()))
    first = F.row_number().over(Order.partitionBy(keys).orderBy(order_by_time(ordered)))
    numbered = ordered.withColumn(_NUMBER, first).where(f"{_NUMBER} = 1")
    return numbered.select([F.col(quote(name)) for name in node.columns])


def rank_rows(node: Ranked, frame: DataFrame) -> DataFrame:
    """The first rows of each key, in their order; equal rows are in order of the other columns."""
    ordered = add_timestamps(node, frame)
    ties = order_by_time(ordered.drop(RECORD_TIMESTAMP))
    columns = [(quote(name), descending) for name, descending in node.order] or [(RECORD_TIMESTAMP, True)]
    order = [F.col(name).desc() if descending else F.col(name).asc() for name, descending in columns]
    keys = [F.col(quote(name)) for name in node.by]
    rank = F.row_number().over(Order.partitionBy(keys).orderBy([*order, *ties]))
    numbered = ordered.withColumn(_NUMBER, rank).where(f"{_NUMBER} <= {node.n}")
    own = [F.col(quote(name)) for name in node.inputs[0].columns]
    return numbered.select([*own, *([] if node.rank is None else [F.col(_NUMBER).alias(node.rank)])])
