"""Sorting by event time in a live query: branches of the records in order, and of late ones."""

from collections.abc import Sequence

from flowcore.api.operators import EventTimeSort, Operator
from flowcore.keyed.output_columns import LATE, RESULTS
from flowcore.sorting.keyed import Sorting
from flowcore.spark.frame.branches import Branch, BranchedFrame
from flowcore.spark.frame.rows import KEY_GROUP
from flowcore.spark.operators.key_group_context import PASSED, RECORD_TIMESTAMP, KeyGroupContext
from flowcore.spark.operators.keyed_step import Columns, KeyedStep, StepOutput

__all__ = ["prepare_sorting"]

_CHANNEL = "@partition"
"""The key of records that have none: the partition that they are from, or the key group upstream."""


def prepare_sorting(
    node: EventTimeSort, branched: BranchedFrame, branches: Sequence[Branch], context: KeyGroupContext
) -> KeyedStep:
    """Sorting of a branch's records; late ones leave if they are read."""
    (branch,) = branches
    used, sides = context.query.used_columns, context.side_outputs.get(LATE, ())
    late = {column.lower() for each in sides for column in used[each]}
    results = node.stored_columns(used[node])
    rejected = [name for name in branch.columns if name.lower() in late]
    keys: Columns = {name: branch.physical_names[name.lower()] for name in node.by}
    if not keys:
        text = "partition"
        if context.reads_operators:
            text = f"coalesce({KEY_GROUP}, partition)" if context.reads_topics else KEY_GROUP
        keys = branched.compute(branch, {_CHANNEL: text}, [_CHANNEL]).columns
    message = context.message_columns(branched.frame.columns)
    own = {f"{PASSED}{name}": branch.physical_names[name.lower()] for name in (*results, *rejected)}
    passed, dropped = (
        (RECORD_TIMESTAMP, *(f"{PASSED}{name}" for name in names), *message, *context.coordinates)
        for names in (results, rejected)
    )

    def output(nodes: Sequence[Operator], names: Sequence[str]) -> StepOutput:
        return StepOutput(
            nodes=nodes,
            number=next(context.numbers),
            columns={name: f"{PASSED}{name}" for name in names},
            passed=branch,
            kept=message,
        )

    return KeyedStep(
        node=node,
        context=context,
        keys=[*keys],
        branch=branch,
        columns={**keys, **own, **{name: name for name in message}},
        make=lambda records, _: Sorting(
            keys=tuple(keys),
            timestamp=RECORD_TIMESTAMP,
            rows=records,
            passed=passed,
            late=None if node.late == "drop" else dropped if sides else (),
        ),
        outputs={
            RESULTS: output([node], results),
            **({LATE: output(sides, rejected)} if sides else {}),
        },
    )
