"""Joins by event time of two bounded inputs, as Spark's own joins.

Each result is that of the operator of a live query when its input has ended. No row is late, and rows with
equal times are in order of their other columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import Window as Order
from pyspark.sql import functions as F

from flowcore.api.expressions import Expression
from flowcore.api.operators import JoinAsOf, JoinInterval, JoinWindow, StreamJoin
from flowcore.api.stream_joins import JOIN_WINDOW_COLUMNS
from flowcore.spark.frame.sql import displayable_timestamp, quote
from flowcore.spark.operators.bounded_rows import (
    LAST,
    MAX_MS,
    MIN_MS,
    START,
    in_windows,
    is_sortable,
    required_time,
    row_time,
)
from flowcore.spark.operators.key_group_context import RECORD_TIMESTAMP

__all__ = ["join_by_time"]

_NO_PARTNER = "it is not known which rows are its partners"
_ROW, _IS_LEFT, _PARTNER, _ALONE = "_row", "_is_left", "_partner", "_alone"


@dataclass(frozen=True, slots=True)
class _Side:
    """The rows of an input, with names that the other input does not have.

    Attributes:
        names: Its columns, in lower case, with their names in the frame.
        keys: Those joined on.
        time: The row's time.
    """

    frame: DataFrame
    names: Mapping[str, str]
    keys: Sequence[str]
    time: str

    def named(self, column: str) -> str:
        """The name of a further column of the frame."""
        return f"{self.time}{column}"


def join_by_time(node: StreamJoin, left: DataFrame, right: DataFrame) -> DataFrame:
    """The pairs of a join by event time, and the unmatched rows that it keeps."""
    given = zip((left, right), node.timestamps or (), strict=True)
    mine, theirs = (_prepare(node, number, *each) for number, each in enumerate(given))
    match node:
        case JoinInterval():
            lower = _earlier(mine.time, node.before_ms)
            upper = f"coalesce(try_add({mine.time}, {node.after_ms}L), {MAX_MS})"
            found = _join(node, mine, theirs, f"{theirs.time} BETWEEN {lower} AND {upper}")
            return found.selectExpr(*_texts(node, mine, theirs))
        case JoinWindow():
            bounds = [mine.named(START), mine.named(LAST)], [theirs.named(START), theirs.named(LAST)]
            found = _join(node, mine, theirs, f"{bounds[0][0]} = {bounds[1][0]}")
            kept = bounds if node.how in ("right", "full") else bounds[:1]
            start, last = (f"coalesce({', '.join(each)})" for each in zip(*kept, strict=True))
            ends = (displayable_timestamp(start), displayable_timestamp(f"try_add({last}, 1L)"))
            windows = (f"{text} AS {name}" for text, name in zip(ends, JOIN_WINDOW_COLUMNS, strict=True))
            return found.selectExpr(*_texts(node, mine, theirs), *windows)
        case JoinAsOf():
            return _join_as_of(node, mine, theirs).selectExpr(*_texts(node, mine, theirs))
        case _:
            raise NotImplementedError(type(node).__name__)


def _prepare(node: StreamJoin, number: int, frame: DataFrame, time: Expression) -> _Side:
    prefix = ("_l", "_r")[number]
    keys = [pair[number] for pair in node.on]
    parameter = f"timestamps={tuple(each.text for each in node.timestamps or ())!r}"
    time_ms = row_time(frame, time, node.name, "timestamps")
    text = required_time(time_ms, node.name, keys, time, _NO_PARTNER, parameter)
    frame = frame.selectExpr("*", f"{text} AS {RECORD_TIMESTAMP}")
    names = {column.lower(): f"{prefix}{place}" for place, column in enumerate(node.inputs[number].columns)}
    texts = [f"{quote(column)} AS {names[column.lower()]}" for column in node.inputs[number].columns]
    side = _Side(frame, names, [names[key.lower()] for key in keys], f"{prefix}_time")
    texts.append(f"{RECORD_TIMESTAMP} AS {side.time}")
    if isinstance(node, JoinWindow):
        frame = in_windows(frame, node.size_ms, node.size_ms, node.offset_ms)
        texts += [f"{each} AS {side.named(each)}" for each in (START, LAST)]
    return _Side(frame.selectExpr(*texts), names, side.keys, side.time)


def _earlier(time: str, length_ms: int) -> str:
    """A time that is earlier, within 64 bits."""
    return f"coalesce(try_subtract({time}, {length_ms}L), {MIN_MS})"


def _join(node: StreamJoin, left: _Side, right: _Side, condition: str) -> DataFrame:
    equal = [f"{mine} = {theirs}" for mine, theirs in zip(left.keys, right.keys, strict=True)]
    return left.frame.join(right.frame, F.expr(" AND ".join([*equal, condition])), node.how)


def _join_as_of(node: JoinAsOf, left: _Side, right: _Side) -> DataFrame:
    """The left rows with the newest right row up to their time.

    Both are in one order, so that a partner is the last right row before: each is shuffled and sorted once.
    """
    columns = [f"k{place}" for place in range(len(left.keys))]
    sides = [
        side.frame.select(
            *(F.col(key).alias(column) for key, column in zip(side.keys, columns, strict=True)),
            F.col(side.time).alias(RECORD_TIMESTAMP),
            F.lit(side is left).alias(_IS_LEFT),
            F.struct(*side.frame.columns).alias(_ROW if side is left else _PARTNER),
        )
        for side in (left, right)
    ]
    has_key = F.expr(" AND ".join(f"{column} IS NOT NULL" for column in columns))
    # A row without key has no partner, and a partition of its own.
    alone = F.when(~has_key, F.monotonically_increasing_id()).alias(_ALONE)
    rows = sides[0].unionByName(sides[1], allowMissingColumns=True).select("*", alone)
    order: list[Column] = [F.col(RECORD_TIMESTAMP), F.col(_IS_LEFT)]
    fields = right.frame.schema.fields
    order += [F.col(f"{_PARTNER}.{each.name}") for each in fields if is_sortable(each.dataType)]
    before = Order.partitionBy(*columns, _ALONE).orderBy(*order)
    newest = F.last(_PARTNER, ignorenulls=True).over(before.rowsBetween(Order.unboundedPreceding, 0))
    found = rows.select(_IS_LEFT, _ROW, newest.alias(_PARTNER)).where(_IS_LEFT)
    found = found.select(f"{_ROW}.*", _PARTNER)
    if node.tolerance_ms is not None:
        near_enough = f"{_PARTNER}.{right.time} >= {_earlier(left.time, node.tolerance_ms)}"
        near = F.when(F.expr(near_enough), F.col(_PARTNER))
        found = found.withColumn(_PARTNER, near)
    if node.how == "inner":
        found = found.where(f"{_PARTNER} IS NOT NULL")
    return found.select(*left.frame.columns, f"{_PARTNER}.*")


def _texts(node: StreamJoin, left: _Side, right: _Side) -> list[str]:
    """SQL texts of the output's columns besides those of windows, by name."""
    partner = {mine.lower(): right.names[theirs.lower()] for mine, theirs in node.on}
    texts = []
    for column in node.columns:
        name = column.lower()
        if name in left.names:
            text = left.names[name]
            if name in partner and node.how in ("right", "full"):
                text = f"coalesce({text}, {partner[name]})"
        elif name in right.names and node.how not in ("semi", "anti"):
            text = right.names[name]
        else:
            continue  # of windows
        texts.append(f"{text} AS {quote(column)}")
    return texts
