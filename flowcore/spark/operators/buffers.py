"""Buffers in a live query: they keep the latest output of each key, by key group, until a flush.

Downstream of windows and process functions the buffer is part of their key groups, which saves an exchange.
Downstream of any other operator it is an operator on key groups itself; its outputs are the records with
their coordinates.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from flowcore.api.operators import Operator
from flowcore.flush.buffered import BufferedOperator
from flowcore.flush.config import BufferOutput
from flowcore.flush.operator import FlushBuffers
from flowcore.flush.quiet_input import QUIET_MS
from flowcore.keyed.operator import KeyGroupOperator
from flowcore.keyed.output_columns import RESULTS, TIMESTAMP
from flowcore.planner.model import Flush, LiveQuery
from flowcore.spark.frame.branches import Branch, BranchedFrame
from flowcore.spark.frame.rows import RECORD_ORDINAL, SOURCE, TIMESTAMP_MS
from flowcore.spark.operators.exchanges import run_exchange
from flowcore.spark.operators.keyed_step import (
    COORDINATE_PREFIX,
    RECORD_TIMESTAMP,
    KeyGroupContext,
    StepMember,
    StepOutput,
    select_inputs,
)

__all__ = ["add_buffer", "apply_buffer", "find_buffer"]


def find_buffer(node: Operator, query: LiveQuery) -> Flush | None:
    """The buffer downstream of an operator, None if there is none."""
    return query.buffers.get(node)


def add_buffer(
    node: Operator, operator: KeyGroupOperator, keys: Sequence[str], context: KeyGroupContext
) -> KeyGroupOperator:
    """An operator on key groups, with a buffer for its latest results by key if the plan has one."""
    flush = find_buffer(node, context.query)
    if flush is None:
        return operator
    buffer = _make_buffer(flush, keys, TIMESTAMP, operator.outputs[RESULTS], context)
    return BufferedOperator(operator=operator, buffer=buffer)


def apply_buffer(
    flush: Flush, branched: BranchedFrame, branch: Branch, context: KeyGroupContext
) -> tuple[BranchedFrame, Branch]:
    """The latest record of each key, once in a flush interval."""
    keys = flush.key or ()
    inputs = select_inputs(
        flush.operator, keys, branched, branch, branch.columns, context, with_coordinates=True
    )
    names = {name.lower(): name for name in branch.columns}
    key_columns = [names[key.lower()] for key in keys]
    operator = _make_buffer(flush, key_columns, RECORD_TIMESTAMP, inputs.records, context)
    number = next(context.numbers)

    def finish(outputs: Mapping[str, Mapping[str, str]]) -> StepOutput:
        found = outputs[RESULTS]
        texts = {
            "topic": f"CASE {found[COORDINATE_PREFIX + SOURCE]} {context.topic_cases} END",
            "partition": found[COORDINATE_PREFIX + "partition"],
            "offset": found[COORDINATE_PREFIX + "offset"],
        }
        if context.query.carries_timestamps(flush.operator):
            texts[TIMESTAMP_MS] = found[RECORD_TIMESTAMP]
        if context.has_ordinals:
            texts[RECORD_ORDINAL] = found[COORDINATE_PREFIX + RECORD_ORDINAL]
        results = {name: found[name] for name in branch.columns}
        return StepOutput(
            {flush.operator: Branch(number, results, has_coordinates=branch.has_coordinates)},
            by_branch={name: {number: text} for name, text in texts.items()},
        )

    member = StepMember(inputs, operator, {RESULTS: number}, finish)
    after, branches = run_exchange([member], branched, {}, context)
    return after, branches[flush.operator]


def _make_buffer(
    flush: Flush, keys: Sequence[str], timestamp: str, rows: pa.Schema, context: KeyGroupContext
) -> FlushBuffers:
    config, quiet_ms = flush.config or BufferOutput(None), None
    if config.max_entries is not None:
        config = replace(config, max_entries=max(1, config.max_entries // context.query.key_groups))
    if context.query.mode.value != "slice":
        quiet_ms = min(config.interval_ms or 0, QUIET_MS)
    return FlushBuffers(config=config, quiet_ms=quiet_ms, keys=tuple(keys), timestamp=timestamp, rows=rows)
