"""The buffer of a function's output in a live query: it keeps the latest output of each key until a flush.

It is an operator on key groups, and its outputs are the records with their coordinates. Downstream of windows
and process functions a buffer is part of their key groups instead, which saves an exchange.
"""

from collections.abc import Sequence

from flowcore.api.operators import Operator
from flowcore.keyed.output_columns import RESULTS
from flowcore.spark.frame.branches import Branch, BranchedFrame
from flowcore.spark.operators.key_group_context import RECORD_TIMESTAMP, KeyGroupContext
from flowcore.spark.operators.keyed_step import KeyedStep, StepOutput, make_buffer

__all__ = ["prepare_buffer"]


def prepare_buffer(
    node: Operator, _: BranchedFrame, branches: Sequence[Branch], context: KeyGroupContext
) -> KeyedStep:
    """The buffer of a function's output: the latest record of each key in an interval."""
    (branch,) = branches
    flush = context.query.buffers[node]
    names = {name.lower(): name for name in branch.columns}
    keys = [names[key.lower()] for key in flush.key or ()]
    return KeyedStep(
        node=node,
        context=context,
        keys=keys,
        branch=branch,
        columns=branch.columns,
        make=lambda records, _: make_buffer(flush, keys, RECORD_TIMESTAMP, records, context),
        outputs={
            RESULTS: StepOutput(
                nodes=[node],
                number=next(context.numbers),
                columns={name: name for name in branch.columns},
                passed=branch,
            )
        },
    )
