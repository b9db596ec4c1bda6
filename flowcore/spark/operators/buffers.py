"""Buffers in a live query: the latest output of each key, held back by key group until a flush.

Behind windows and process functions the buffer is part of their key groups, since Spark keeps one operator
with state in a query reliably. Behind any other operator it is an operator on key groups of its own, which
hands records on as they were, with the coordinates of the record that they were made of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flowcore.api.operators import Operator
from flowcore.flush.buffered import BufferedOperator
from flowcore.flush.config import BufferOutput
from flowcore.flush.operator import FlushBuffers
from flowcore.keyed.operator import KeyGroupOperator
from flowcore.keyed.output_columns import RESULTS, TIMESTAMP
from flowcore.planner.model import Flush
from flowcore.spark.frame.branches import Branch, BranchedFrame
from flowcore.spark.frame.rows import RECORD_ORDINAL, SOURCE, TIMESTAMP_MS
from flowcore.spark.operators.by_key import (
    OF,
    STAMP,
    ByKey,
    coordinates,
    given,
    packed,
    put_out,
    records_of,
    topic_case,
)

__all__ = ["buffer_of", "buffered", "held_back"]

_QUIET_MS = 2_000
"""A stream that pauses for less than this has something available."""


def buffer_of(node: Operator, of: ByKey) -> Flush | None:
    """The buffer that a query keeps behind an operator, None if it keeps none there."""
    found = of.query.buffer
    return found if found is not None and found.operator is node else None


def buffered(node: Operator, operator: KeyGroupOperator, keys: Sequence[str], of: ByKey) -> KeyGroupOperator:
    """An operator on key groups, with a buffer behind its results if the plan wants one.

    Args:
        node: The operator, as declared.
        operator: What is done.
        keys: The columns of its results of which the latest is kept.
        of: The query.
    """
    flush = buffer_of(node, of)
    if flush is None:
        return operator
    rows = operator.outputs[RESULTS]
    config, quiet_ms = _config(flush, of)
    buffer = FlushBuffers(config=config, quiet_ms=quiet_ms, keys=tuple(keys), timestamp=TIMESTAMP, rows=rows)
    return BufferedOperator(operator=operator, buffer=buffer)


def held_back(
    flush: Flush, branched: BranchedFrame, branch: Branch, of: ByKey
) -> tuple[BranchedFrame, Branch]:
    """A branch's records, of each key the latest, once in an interval.

    Args:
        flush: The buffer.
        branched: Rows, the branch's among them.
        branch: The records.
        of: The query.
    """
    node, keys = flush.operator, flush.key or ()
    columns = {**branch.columns, **coordinates(of)}
    frame = given(keys, branched, branch, columns, of)
    rows = records_of(frame, columns)
    config, quiet_ms = _config(flush, of)
    names = {name.lower(): name for name in branch.columns}
    operator = FlushBuffers(
        config=config,
        quiet_ms=quiet_ms,
        keys=tuple(names[key.lower()] for key in keys),
        timestamp=STAMP,
        rows=rows,
    )
    results = Branch(next(of.numbers), {}, has_coordinates=branch.has_coordinates)
    outputs = {RESULTS: (results.number, operator.outputs[RESULTS])}
    stepped = put_out(node, packed(node, frame, operator, rows, of), outputs, branched)
    found = stepped.physical[RESULTS]
    beside = {
        "topic": topic_case(found[OF + SOURCE], of),
        "partition": f"coalesce({found[OF + 'partition']}, partition)",
        "offset": found[OF + "offset"],
        TIMESTAMP_MS: found[STAMP],
    }
    if of.has_ordinals:
        beside[RECORD_ORDINAL] = found[OF + RECORD_ORDINAL]
    texts = (f"{text} AS {name}" for name, text in beside.items())
    frame = stepped.frame.selectExpr("* EXCEPT (partition)", *texts)
    after = BranchedFrame(
        frame, branched.names, has_coordinates=branched.has_coordinates, has_markers=branched.has_markers
    )
    after.shared = True
    return after, replace(results, columns={name: found[name] for name in branch.columns})


def _config(flush: Flush, of: ByKey) -> tuple[BufferOutput, int | None]:
    """When the buffer of one key group is flushed, and how long nothing must have come for that."""
    config = flush.config or BufferOutput(None)
    if config.max_entries is not None:
        config = replace(config, max_entries=max(1, config.max_entries // of.key_groups))
    if of.query.mode.value == "slice":
        return config, None
    return config, min(config.interval_ms or 0, _QUIET_MS)
