"""Aggregates: how do grouped records, and what travels beside them, pass through Spark's native aggregate?

A latency marker has to wait where the records wait, so it goes through the shuffle and the state with
them: in a group of its own for each source partition that sends markers, of which only the latest is kept.
Its time is a number, because Spark sorts all records to aggregate what has no fixed size.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from flowcore.graph.operators import Aggregate
from flowcore.spark import batch, elements
from flowcore.spark.lanes import EVENT, LANE, TIME, VALUE, Lane, Tracks
from flowcore.spark.sql import quoted

__all__ = ["aggregated"]

_SENDER, _MARKED = "sender", "marked"


def aggregated(node: Aggregate, tracks: Tracks, lane: Lane, *, timed: bool) -> tuple[Tracks, Lane]:
    """The groups of a lane's records, and the markers beside them.

    Args:
        node: The operator.
        tracks: Rows, the lane's among them.
        lane: The records to group.
        timed: A group's timestamp is that of its newest record.
    """
    if not (tracks.marked or timed):
        frame = batch.grouped(tracks.only(lane), node.by, node.aggregates)
        return _renamed(node, frame, tracks, lane, [])
    frame = tracks.frame.where(f"{LANE} IN ({EVENT}, {lane.number})") if tracks.shared else tracks.frame
    columns = [f"{quoted(now)} AS {quoted(name)}" for name, now in lane.columns.items()]
    keys = [batch.named(column) for column in node.by]
    aggregates = [F.expr(expression.text).alias(name) for name, expression in node.aggregates]
    rest = []
    if timed:
        columns.append(f"{TIME} AS {_inner(TIME)}")
        aggregates.append(F.max(_inner(TIME)).alias(_inner(TIME)))
        rest.append(f"{_inner(TIME)} AS {TIME}")
    if tracks.marked:
        is_event = f"CASE WHEN {LANE} = {EVENT} THEN"
        columns.append(f"{is_event} {elements.sender(VALUE)} END AS {_inner(_SENDER)}")
        columns.append(f"{is_event} {elements.marked_ms(VALUE)} END AS {_inner(_MARKED)}")
        columns.append(f"partition AS {_inner('partition')}")
        keys.append(F.col(_inner(_SENDER)))
        aggregates.append(F.max(_inner(_MARKED)).alias(_inner(_MARKED)))
        aggregates.append(F.max(_inner("partition")).alias(_inner("partition")))
        rest.append(f"{elements.event(_inner(_MARKED), _inner(_SENDER))} AS {VALUE}")
        rest.append(f"{_inner('partition')} AS partition")
        rest.append(f"CASE WHEN {_inner(_SENDER)} IS NULL THEN {lane.number} ELSE {EVENT} END AS {LANE}")
    frame = frame.selectExpr(*columns).groupBy(keys).agg(*aggregates)
    return _renamed(node, frame, tracks, lane, rest)


def _inner(column: str) -> str:
    """A name that no user's column has, while theirs have their own names."""
    return f"_flowcore_{column.lstrip('_')}"


def _renamed(
    node: Aggregate, frame: DataFrame, tracks: Tracks, lane: Lane, rest: list[str]
) -> tuple[Tracks, Lane]:
    names = {column: next(tracks.names) for column in node.columns}
    frame = frame.selectExpr(*(f"{quoted(column)} AS {name}" for column, name in names.items()), *rest)
    after = Tracks(frame, tracks.names, identified=False, marked=tracks.marked)
    return after, Lane(lane.number, names)
