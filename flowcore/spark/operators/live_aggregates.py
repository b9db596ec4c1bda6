"""Aggregates: how do grouped records, and what travels beside them, pass through Spark's native aggregate?

A latency marker has to wait where the records wait, so it goes through the shuffle and the state with
them: in a group of its own for each source partition that sends markers, of which only the latest is kept.
Its time is a number, because Spark sorts all records to aggregate what has no fixed size. Its group is a text
that is empty for records: with bytes or nulls Spark would find every record's group in its slower table.

Where batches are as far apart as a flush interval, the earliest of a batch is kept instead: it has waited as
long as the record that waited longest. State knows only what is higher, so the batch's second stands in front
of how much earlier the marker was made, and a later batch counts for more. Such groups have a prefix: state
of either kind may be met by the other.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from flowcore.api.operators import Aggregate
from flowcore.spark.frame.branches import Branch, BranchedFrame
from flowcore.spark.frame.rows import BRANCH, TIMESTAMP_MS, VALUE, RowKind
from flowcore.spark.frame.sql import quote
from flowcore.spark.operators import batch
from flowcore.spark.topics import elements

__all__ = ["aggregated"]

_SENDER, _MARKED = "sender", "marked"
_HELD = "X'FF'"  # no sender begins so: a subtask is a number from 0 up
_MOST_MS = (1 << 31) - 1


def aggregated(
    node: Aggregate, branched: BranchedFrame, branch: Branch, *, timed: bool, held: bool = False
) -> tuple[BranchedFrame, Branch]:
    """The groups of a branch's records, and the markers beside them.

    Args:
        node: The operator.
        branched: Rows, the branch's among them.
        branch: The records to group.
        timed: A group's timestamp is that of its newest record.
        held: A batch takes all that has come in a flush interval.
    """
    if not (branched.has_markers or timed):
        frame = batch.grouped(branched.rows_of(branch), node.by, node.aggregates)
        return _renamed(node, frame, branched, branch, [])
    frame = (
        branched.frame.where(f"{BRANCH} IN ({RowKind.MARKER}, {branch.number})")
        if branched.shared
        else branched.frame
    )
    columns = [f"{quote(now)} AS {quote(name)}" for name, now in branch.columns.items()]
    keys = [F.col(quote(column)) for column in node.by]
    aggregates = [F.expr(expression.text).alias(name) for name, expression in node.aggregates]
    rest = []
    if timed:
        columns.append(f"{TIMESTAMP_MS} AS {_inner(TIMESTAMP_MS)}")
        aggregates.append(F.max(_inner(TIMESTAMP_MS)).alias(_inner(TIMESTAMP_MS)))
        rest.append(f"{_inner(TIMESTAMP_MS)} AS {TIMESTAMP_MS}")
    if branched.has_markers:
        is_event = f"CASE WHEN {BRANCH} = {RowKind.MARKER} THEN"
        sender, marked = elements.sender(VALUE), elements.marked_ms(VALUE)
        if held:
            sender, marked = f"concat({_HELD}, {sender})", _earlier(marked)
        columns.append(f"{is_event} hex({sender}) ELSE '' END AS {_inner(_SENDER)}")
        columns.append(f"{is_event} {marked} END AS {_inner(_MARKED)}")
        columns.append(f"partition AS {_inner('partition')}")
        keys.append(F.col(_inner(_SENDER)))
        aggregates.append(F.max(_inner(_MARKED)).alias(_inner(_MARKED)))
        aggregates.append(F.max(_inner("partition")).alias(_inner("partition")))
        sender, marked = f"unhex({_inner(_SENDER)})", _inner(_MARKED)
        if held:
            sender, marked = f"substring({sender}, 2)", _marked_ms(marked)
        rest.append(f"{elements.event(marked, sender)} AS {VALUE}")
        rest.append(f"{_inner('partition')} AS partition")
        rest.append(
            f"CASE WHEN {_inner(_SENDER)} = '' THEN {branch.number} ELSE {RowKind.MARKER} END AS {BRANCH}"
        )
    frame = frame.selectExpr(*columns).groupBy(keys).agg(*aggregates)
    return _renamed(node, frame, branched, branch, rest)


def _earlier(marked_ms: str) -> str:
    """A number that is the higher the later the batch and, in a batch, the earlier the marker."""
    second = "((unix_millis(current_timestamp()) + 999) DIV 1000)"
    return f"{second} * {_MOST_MS + 1} + greatest(least({second} * 1000 - {marked_ms}, {_MOST_MS}), 0)"


def _marked_ms(number: str) -> str:
    """The time of the marker that such a number was made of, up to 24 days before its batch."""
    return f"(shiftright({number}, 31) * 1000 - ({number} & {_MOST_MS}))"


def _inner(column: str) -> str:
    """A name that no user's column has, while theirs have their own names."""
    return f"_flowcore_{column.lstrip('_')}"


def _renamed(
    node: Aggregate, frame: DataFrame, branched: BranchedFrame, branch: Branch, rest: list[str]
) -> tuple[BranchedFrame, Branch]:
    names = {column: next(branched.names) for column in node.columns}
    frame = frame.selectExpr(*(f"{quote(column)} AS {name}" for column, name in names.items()), *rest)
    after = BranchedFrame(frame, branched.names, has_coordinates=False, has_markers=branched.has_markers)
    return after, Branch(branch.number, names)
