"""Batch: which DataFrame is the output of a bounded operator?"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from flowcore.errors import PlanError
from flowcore.graph.expressions import Expression
from flowcore.graph.operators import (
    Aggregate,
    Apply,
    CoGroup,
    Join,
    Operator,
    Select,
    Union,
    Where,
    Window,
    WithColumns,
)
from flowcore.graph.stateful import WINDOW_COLUMNS
from flowcore.planner.at_end import is_grouped_aggregate
from flowcore.spark.boundary import declared_by
from flowcore.spark.co_groups import co_grouped

__all__ = ["applied", "named", "output"]


def output(node: Operator, inputs: Mapping[Operator, DataFrame]) -> DataFrame:
    """The output of an operator, from the outputs of those it reads.

    Raises:
        PlanError: Spark refuses it; the message names the operator.
    """
    with declared_by(node.name):
        frames = [inputs[parent] for parent in node.inputs]
        match node:
            case Select() | WithColumns():
                return _projected(node, frames[0])
            case Where(condition=condition):
                return frames[0].where(condition.text)
            case Aggregate(by=by, aggregates=aggregates):
                return grouped(frames[0], by, aggregates)
            case Join():
                return _joined(node, *frames)
            case CoGroup():
                return co_grouped(node, *frames)
            case Window() if is_grouped_aggregate(node):
                return _grouped_at_end(node, frames[0])
            case Union():
                return _united(frames)
            case Apply():
                return applied(node, frames[0])
            case _:
                msg = f"operator {node.name!r} is no transformation of one frame, or runs in a chain"
                raise PlanError(msg)


def named(column: str) -> Column:
    """A column by its exact name, whatever characters it holds."""
    return F.col(f"`{column}`")


def grouped(
    frame: DataFrame, by: tuple[str, ...], aggregates: tuple[tuple[str, Expression], ...]
) -> DataFrame:
    """One row per group."""
    keys = [named(column) for column in by]
    if not aggregates:
        return frame.select(keys).distinct()
    groups: DataFrame = frame.groupBy(keys).agg(*(F.expr(e.text).alias(c) for c, e in aggregates))
    return groups


def applied(node: Apply, frame: DataFrame) -> DataFrame:
    """What a user's DataFrame function returns, checked against what was declared.

    Raises:
        PlanError: It returned no DataFrame, or other columns.
    """
    result = node.function(frame)
    got = result.columns if isinstance(result, DataFrame) else None
    if got is None or {c.lower() for c in got} != {c.lower() for c in node.columns}:
        what = f"the columns {', '.join(got)}" if got is not None else f"a {type(result).__name__}"
        msg = (
            f"operator {node.name!r}: its function returned {what}, and {', '.join(node.columns)} were "
            "declared: later operators would not find them; pass schema= with what it returns"
        )
        raise PlanError(msg)
    checked: DataFrame = result.select([named(column) for column in node.columns])
    return checked


def _grouped_at_end(node: Window, frame: DataFrame) -> DataFrame:
    # By a constant where there is no key: of no records there is no window.
    keys = [named(column) for column in node.by] or [F.lit(0).alias("_all")]
    groups = frame.groupBy(keys).agg(*(F.expr(text).alias(column) for column, text in node.sql))
    start, end = (F.lit(None).cast("timestamp").alias(name) for name in WINDOW_COLUMNS[:2])
    firing, late = F.lit(1).alias(WINDOW_COLUMNS[2]), F.lit(False).alias(WINDOW_COLUMNS[3])
    return groups.select(*map(named, (*node.by, *node.values)), start, end, firing, late)


def _projected(node: Select | WithColumns, frame: DataFrame) -> DataFrame:
    new = {column: F.expr(e.text).alias(column) for column, e in node.expressions}
    return frame.select([new.get(column, named(column)) for column in node.columns])


def _joined(node: Join, left: DataFrame, right: DataFrame) -> DataFrame:
    # Aliases, because both sides may come from the same source.
    on = F.lit(True)
    for mine, theirs in node.on:
        on &= F.col(f"l.`{mine}`") == F.col(f"r.`{theirs}`")
    how = {"semi": "left_semi", "anti": "left_anti"}.get(node.how, node.how)
    joined = left.alias("l").join(right.alias("r"), on, how)
    if node.how in ("semi", "anti"):
        return joined.select([F.col(f"l.`{column}`") for column in left.columns])
    partner = {mine.lower(): theirs for mine, theirs in node.on}
    known = {column.lower() for column in left.columns}
    columns = []
    for column in node.columns:
        value = F.col(f"l.`{column}`" if column.lower() in known else f"r.`{column}`")
        if column.lower() in partner and node.how in ("right", "full"):
            value = F.coalesce(value, F.col(f"r.`{partner[column.lower()]}`"))
        columns.append(value.alias(column))
    return joined.select(columns)


def _united(frames: list[DataFrame]) -> DataFrame:
    first, *rest = frames
    for frame in rest:
        first = first.unionByName(frame)
    return first
