"""Deduplication in a live query: from a branch's records to a branch without repeats."""

from collections.abc import Sequence

import pyarrow as pa

from flowcore.api.operators import Deduplicate
from flowcore.deduplication.keyed import Deduplication
from flowcore.keyed.output_columns import RESULTS
from flowcore.spark.frame.branches import Branch, BranchedFrame
from flowcore.spark.operators.key_group_context import PASSED, RECORD_TIMESTAMP, KeyGroupContext
from flowcore.spark.operators.keyed_step import KeyedStep, StepOutput, key_and_passed_columns

__all__ = ["make_deduplication", "prepare_deduplication"]


def prepare_deduplication(
    node: Deduplicate, branched: BranchedFrame, branches: Sequence[Branch], context: KeyGroupContext
) -> KeyedStep:
    """Deduplication of a branch's records."""
    (branch,) = branches
    names = [name for name in node.columns if name.lower() in context.query.used_columns[node]]
    message = context.message_columns(branched.frame.columns)
    passed = (RECORD_TIMESTAMP, *(f"{PASSED}{name}" for name in names), *message, *context.coordinates)
    return KeyedStep(
        node=node,
        context=context,
        keys=node.by,
        branch=branch,
        columns={**key_and_passed_columns(branch, node.by, names), **{name: name for name in message}},
        make=lambda records, _: make_deduplication(node, records, passed),
        outputs={
            RESULTS: StepOutput(
                nodes=[node],
                number=next(context.numbers),
                columns={name: f"{PASSED}{name}" for name in names},
                passed=branch,
                kept=message,
            )
        },
        spreads_null_keys=node.pass_null_keys,
    )


def make_deduplication(node: Deduplicate, records: pa.Schema, passed: tuple[str, ...]) -> Deduplication:
    """The operator on key groups.

    Args:
        records: The columns of records, including `RECORD_TIMESTAMP`.
        passed: The columns of a record that passes.
    """
    return Deduplication(
        keys=node.by,
        within_ms=node.within_ms,
        time=node.time,
        timestamp=RECORD_TIMESTAMP,
        rows=records,
        passed=passed,
        pass_null_keys=node.pass_null_keys,
    )
