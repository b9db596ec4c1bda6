"""Batch: which DataFrame is the output of a bounded operator?"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from flowcore.api.expressions import Expression
from flowcore.api.operators import (
    Aggregate,
    Apply,
    CoGroup,
    Drop,
    Join,
    Operator,
    Select,
    SideOutput,
    Union,
    Where,
    Window,
    WithColumns,
)
from flowcore.errors import PlanError
from flowcore.spark.errors import translate_plan_errors
from flowcore.spark.frame.sql import quote
from flowcore.spark.operators.bounded_windows import windowed
from flowcore.spark.operators.co_groups import co_grouped
from flowcore.spark.operators.distinct_keys import by_key_first

__all__ = ["applied", "output"]


def output(  # noqa: C901, PLR0911 - a case for each kind
    node: Operator, inputs: Mapping[Operator, DataFrame]
) -> DataFrame:
    """The output of an operator, from the outputs of those it reads.

    Raises:
        PlanError: Spark refuses it; the message names the operator.
    """
    with translate_plan_errors(node.name):
        frames = [inputs[parent] for parent in node.inputs]
        match node:
            case Select() | WithColumns():
                return _projected(node, frames[0])
            case Drop():
                return frames[0].select([F.col(quote(column)) for column in node.columns])
            case Where(condition=condition):
                return frames[0].where(condition.text)
            case Aggregate(by=by, aggregates=aggregates):
                return grouped(_arranged(node, frames[0]), by, aggregates)
            case Join():
                return _joined(node, *frames)
            case CoGroup():
                return co_grouped(node, *frames)
            case Window() if node.compiled().value == "native":
                return windowed(node, frames[0])
            case SideOutput(inputs=(Window() as windows,)):  # nothing is late
                return inputs[windows.inputs[0]].where("false")
            case Union():
                return _united(frames)
            case Apply():
                return applied(node, frames[0])
            case _:
                msg = f"operator {node.name!r} is no transformation of one frame, or runs in a chain"
                raise PlanError(msg)


def grouped(
    frame: DataFrame, by: tuple[str, ...], aggregates: tuple[tuple[str, Expression], ...]
) -> DataFrame:
    """One row per group."""
    keys = [F.col(quote(column)) for column in by]
    if not aggregates:
        return frame.select(keys).distinct()
    groups: DataFrame = frame.groupBy(keys).agg(*(F.expr(e.text).alias(c) for c, e in aggregates))
    return groups


def _arranged(node: Aggregate, frame: DataFrame) -> DataFrame:
    keys = [F.col(quote(column)) for column in node.by]
    return frame.repartition(*keys) if by_key_first(node.name, [(node.inputs[0], frame, keys)]) else frame


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
    checked: DataFrame = result.select([F.col(quote(column)) for column in node.columns])
    return checked


def _projected(node: Select | WithColumns, frame: DataFrame) -> DataFrame:
    new = {column: F.expr(e.text).alias(column) for column, e in node.expressions}
    return frame.select([new.get(column, F.col(quote(column))) for column in node.columns])


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
