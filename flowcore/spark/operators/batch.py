"""Native operators over bounded input, as DataFrames."""

from collections.abc import Mapping
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from flowcore.api import operators as api
from flowcore.api.expressions import Expression
from flowcore.api.stateful import LATE_RIGHT_OUTPUT
from flowcore.errors import PlanError
from flowcore.spark.errors import translate_plan_errors
from flowcore.spark.frame.sql import quote
from flowcore.spark.operators.bounded_joins import join_by_time
from flowcore.spark.operators.bounded_native import aggregate_windows, drop_repeats, rank_rows
from flowcore.spark.operators.co_groups import apply_co_group
from flowcore.spark.operators.distinct_keys import has_distinct_keys

__all__ = ["apply_function", "apply_native", "group"]


def apply_native(  # noqa: C901, PLR0911, PLR0912 - a case for each kind
    node: api.Operator, inputs: Mapping[api.Operator, DataFrame]
) -> DataFrame:
    """The output of an operator, from those of its inputs.

    Raises:
        PlanError: Spark refuses the operator; the message names it.
    """
    with translate_plan_errors(node.name):
        frames = [inputs[parent] for parent in node.inputs]
        match node:
            case api.Select() | api.WithColumns():
                new = {column: F.expr(e.text).alias(column) for column, e in node.expressions}
                return frames[0].select([new.get(column, F.col(quote(column))) for column in node.columns])
            case api.Drop():
                return frames[0].select([F.col(quote(column)) for column in node.columns])
            case api.Where(condition=condition):
                return frames[0].where(condition.text)
            case api.Aggregate(by=by, aggregates=aggregates):
                keys = [F.col(quote(column)) for column in by]
                distinct = has_distinct_keys(node.name, [(node.inputs[0], frames[0], keys)])
                return group(frames[0].repartition(*keys) if distinct else frames[0], by, aggregates)
            case api.Join():
                return _join(node, *frames)
            case api.CoGroup():
                return apply_co_group(node, *frames)
            case api.Window() if node.compiled().value == "native":
                return aggregate_windows(node, frames[0])
            case api.Deduplicate() if node.compiled().value == "native":
                return drop_repeats(node, frames[0])
            case api.Ranked():
                return rank_rows(node, frames[0])
            case api.StreamJoin():
                return join_by_time(node, *frames)
            case api.SideOutput(inputs=(api.Window() | api.StreamJoin() as timed,)):  # no record is late
                side = timed.inputs[1 if node.output == LATE_RIGHT_OUTPUT else 0]
                return inputs[side].where("false")
            case api.Union():
                return reduce(DataFrame.unionByName, frames)
            case api.Apply():
                return apply_function(node, frames[0])
            case _:
                msg = f"operator {node.name!r} is not a native operator, or runs in a chain"
                raise PlanError(msg)


def group(frame: DataFrame, by: tuple[str, ...], aggregates: tuple[tuple[str, Expression], ...]) -> DataFrame:
    """One row per group."""
    keys = [F.col(quote(column)) for column in by]
    if not aggregates:
        return frame.select(keys).distinct()
    groups: DataFrame = frame.groupBy(keys).agg(*(F.expr(e.text).alias(c) for c, e in aggregates))
    return groups


def apply_function(node: api.Apply, frame: DataFrame) -> DataFrame:
    """Call a user's DataFrame function, and check its result against the declared columns.

    Raises:
        PlanError: The function did not return a DataFrame, or returned other columns.
    """
    result = node.function(frame)
    found = result.columns if isinstance(result, DataFrame) else None
    if found is None or {c.lower() for c in found} != {c.lower() for c in node.columns}:
        what = f"the columns {', '.join(found)}" if found is not None else f"a {type(result).__name__}"
        msg = (
            f"operator {node.name!r}: its function returned {what}, and {', '.join(node.columns)} were "
            "declared: downstream operators would not find them; pass schema= with its actual columns"
        )
        raise PlanError(msg)
    checked: DataFrame = result.select([F.col(quote(column)) for column in node.columns])
    return checked


def _join(node: api.Join, left: DataFrame, right: DataFrame) -> DataFrame:
    # Aliases, because both sides may read the same source.
    on = F.lit(True)
    for mine, theirs in node.on:
        on &= F.col(f"l.`{mine}`") == F.col(f"r.`{theirs}`")
    joined = left.alias("l").join(right.alias("r"), on, node.how)
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
