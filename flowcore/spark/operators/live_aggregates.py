"""Spark's native aggregate of a live query, with record ids, latency markers and timestamps.

A group counts its records. Key and count are the id of an output: they are the same if a batch runs again, in
whatever mode, and no two outputs of a group have the same count.

A latency marker must wait where records wait, so it passes the shuffle and the state with them, in a group
for each source partition that sends markers. The group keeps the latest marker. A marker's time is a number,
because Spark sorts all records to aggregate values without a fixed size. A marker's group is a text, and the
text of records is empty: with bytes or nulls Spark would use its slower hash table for every record.

If batches are a flush interval apart, the group keeps the earliest marker of a batch instead, since it waited
as long as the record that waited longest. The state keeps a maximum, so the number combines the batch's
second, in its upper bits, with the time since the marker was made. Such groups have a prefix, because a
restarted query may find state of the other kind.
"""

from pyspark.sql import functions as F
from pyspark.sql import types as T

from flowcore.api.operators import Aggregate
from flowcore.spark.frame.branches import Branch, BranchedFrame
from flowcore.spark.frame.record_ids import key_text
from flowcore.spark.frame.rows import BRANCH, RECORD_ID, RECORD_ORDINAL, TIMESTAMP_MS, VALUE, RowKind
from flowcore.spark.frame.sql import BATCH_CLOCK_MS, literal, quote, saturate_times
from flowcore.spark.topics import elements

__all__ = ["apply_aggregate"]

_SENDER, _MARKED, _COUNT = "sender", "marked", "count"
_BUFFERED = "X'FF'"  # no sender begins with it, since a subtask is not negative
_MOST_MS = (1 << 31) - 1


def apply_aggregate(
    node: Aggregate,
    branched: BranchedFrame,
    branch: Branch,
    label: str,
    *,
    timed: bool,
    buffered: bool = False,
) -> tuple[BranchedFrame, Branch]:
    """The groups of a branch's records, and latency markers.

    A group has a record id: label, key and the number of its records. If ``timed``, it has the timestamp of
    its newest record. If ``buffered``, a batch has all records of a flush interval.
    """
    frame = (
        branched.frame.where(f"{BRANCH} IN ({RowKind.MARKER}, {branch.number})")
        if branched.shared
        else branched.frame
    )
    columns = [
        f"{_grouped(frame.schema, now) if name in node.by else quote(now)} AS {quote(name)}"
        for name, now in branch.columns.items()
    ]
    keys = [F.col(quote(column)) for column in node.by]
    aggregates = [F.expr(saturate_times(each.text)).alias(name) for name, each in node.aggregates]
    aggregates.append(F.count("*").alias(_inner(_COUNT)))
    key = key_text({name: quote(name) for name in node.by})
    record_id = f"concat_ws(':', {literal(label)}, {key}, {_inner(_COUNT)})"
    rest = [f"{record_id} AS {RECORD_ID}", f"'0' AS {RECORD_ORDINAL}"]
    if timed:
        columns.append(f"{TIMESTAMP_MS} AS {_inner(TIMESTAMP_MS)}")
        aggregates.append(F.max(_inner(TIMESTAMP_MS)).alias(_inner(TIMESTAMP_MS)))
        rest.append(f"{_inner(TIMESTAMP_MS)} AS {TIMESTAMP_MS}")
    if branched.has_markers:
        is_event = f"CASE WHEN {BRANCH} = {RowKind.MARKER} THEN"
        sender, marked = elements.sender(VALUE), elements.marked_ms(VALUE)
        if buffered:
            sender, marked = f"concat({_BUFFERED}, {sender})", _earliness(marked)
        columns.append(f"{is_event} hex({sender}) ELSE '' END AS {_inner(_SENDER)}")
        columns.append(f"{is_event} {marked} END AS {_inner(_MARKED)}")
        columns.append(f"partition AS {_inner('partition')}")
        keys.append(F.col(_inner(_SENDER)))
        aggregates.append(F.max(_inner(_MARKED)).alias(_inner(_MARKED)))
        aggregates.append(F.max(_inner("partition")).alias(_inner("partition")))
        sender, marked = f"unhex({_inner(_SENDER)})", _inner(_MARKED)
        if buffered:
            sender, marked = f"substring({sender}, 2)", _marked_ms(marked)
        rest.append(f"{elements.event(marked, sender)} AS {VALUE}")
        rest.append(f"{_inner('partition')} AS partition")
        rest.append(
            f"CASE WHEN {_inner(_SENDER)} = '' THEN {branch.number} ELSE {RowKind.MARKER} END AS {BRANCH}"
        )
    frame = frame.selectExpr(*columns).groupBy(keys).agg(*aggregates)
    names = {column: next(branched.names) for column in node.columns}
    frame = frame.selectExpr(*(f"{quote(column)} AS {name}" for column, name in names.items()), *rest)
    after = BranchedFrame(frame, branched.names, has_coordinates=False, has_markers=branched.has_markers)
    return after, Branch(branch.number, names, has_record_id=True)


def _earliness(marked_ms: str) -> str:
    """A number that is higher for later batches and, within a batch, for earlier markers."""
    second = f"(({BATCH_CLOCK_MS} + 999) DIV 1000)"
    return f"{second} * {_MOST_MS + 1} + greatest(least({second} * 1000 - {marked_ms}, {_MOST_MS}), 0)"


def _marked_ms(number: str) -> str:
    """The marker's time in a number from `_earliness`, up to 24 days before its batch."""
    return f"(shiftright({number}, 31) * 1000 - ({number} & {_MOST_MS}))"


def _grouped(schema: T.StructType, column: str) -> str:
    """A key, without bytes that are not UTF-8 if it is text, and as nullable as before, as state has it."""
    field = next(each for each in schema.fields if each.name.lower() == column.lower())
    if not isinstance(field.dataType, T.StringType):
        return quote(column)
    text = f"make_valid_utf8({quote(column)})"
    return text if field.nullable else f"coalesce({text}, '')"


def _inner(column: str) -> str:
    """A column name that no user's column has."""
    return f"_flowcore_{column.lstrip('_')}"
