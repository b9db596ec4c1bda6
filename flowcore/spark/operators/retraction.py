"""Aggregates over rows that replace earlier rows, in a live query: the changelog, and the aggregate of it."""

from collections.abc import Sequence

import pyarrow as pa

from flowcore.api.operators import ChangelogNormalize, DistinctAggregate, RetractingAggregate
from flowcore.api.retraction import CHANGE_COLUMN, IS_DELETED
from flowcore.errors import PlanError
from flowcore.keyed.output_columns import DELETED, RESULTS, TIMESTAMP
from flowcore.ranking.keyed import is_sortable
from flowcore.retraction.aggregates import RetractingAggregates
from flowcore.retraction.changelog import CHANGE, Changelog
from flowcore.spark.frame.branches import Branch, BranchedFrame
from flowcore.spark.operators.key_group_context import PASSED, RECORD_TIMESTAMP, KeyGroupContext
from flowcore.spark.operators.keyed_step import KeyedStep, StepOutput, key_and_passed_columns
from flowcore.windows.columnar.accumulators import is_summable

__all__ = ["prepare_changelog", "prepare_retracting_aggregate"]


def prepare_changelog(
    node: ChangelogNormalize, branched: BranchedFrame, branches: Sequence[Branch], context: KeyGroupContext
) -> KeyedStep:
    """The changelog of a branch's records."""
    del branched
    (branch,) = branches
    used = context.query.used_columns[node]
    names = [name for name in node.inputs[0].columns if name.lower() in used]
    kept = [*names, *([node.deleted] if node.deleted else [])]
    passed = {TIMESTAMP: RECORD_TIMESTAMP, **{name: name for name in context.coordinates}}
    passed |= {f"{PASSED}{name}": f"{PASSED}{name}" for name in names}
    # A join keeps a row as long as its time to live, and not only until then: the row must be known as long.
    ttl_ms = None if node.ttl_ms is None else node.ttl_ms + (not node.retracts_expired)
    return KeyedStep(
        node=node,
        context=context,
        keys=node.by,
        branch=branch,
        columns=key_and_passed_columns(branch, node.by, kept),
        make=lambda records, _: Changelog(
            keys=node.by,
            rows=records,
            passed=passed,
            deleted=f"{PASSED}{node.deleted}" if node.deleted else None,
            ttl_ms=ttl_ms,
            retracts_expired=node.retracts_expired,
        ),
        outputs={
            RESULTS: StepOutput(
                nodes=[node],
                number=next(context.numbers),
                columns={**{name: f"{PASSED}{name}" for name in names}, CHANGE_COLUMN: CHANGE},
                # A row is inserted and retracted under different ids.
                record_id=lambda found: context.result_id(
                    node, found, f"CASE WHEN {found[CHANGE]} < 0 THEN '-' ELSE '+' END"
                ),
            )
        },
    )


def prepare_retracting_aggregate(
    node: RetractingAggregate, branched: BranchedFrame, branches: Sequence[Branch], context: KeyGroupContext
) -> KeyedStep:
    """An aggregate of the changelog in a branch, or of its records."""
    (branch,) = branches
    is_final = isinstance(node, DistinctAggregate)
    if is_final:  # each record is inserted
        branch = branched.compute(branch, {CHANGE_COLUMN: "1"}, [*branch.columns, CHANGE_COLUMN])
    computed = {name: branch.expression(expression) for name, expression in node.computed}
    if computed:
        branch = branched.compute(branch, computed, [*branch.columns, *computed])
    physical = branch.physical_names
    read = [*node.by, *node.uses, *computed, CHANGE_COLUMN]
    passed = {TIMESTAMP: RECORD_TIMESTAMP, **{name: name for name in context.coordinates}}
    results = {IS_DELETED: DELETED} if node.by and not is_final else {}
    compared = [each for _, each in node.aggregates if each.function in {"min", "max"} or each.distinct]
    return KeyedStep(
        node=node,
        context=context,
        keys=node.by,
        branch=branch,
        columns={name: physical[name.lower()] for name in read},
        make=lambda records, _: _make_aggregate(node, records, passed),
        outputs={
            RESULTS: StepOutput(
                nodes=[node],
                number=next(context.numbers),
                columns={name: results.get(name, name) for name in node.columns},
                record_id=lambda found: context.result_id(node, found),
            )
        },
        compared=[*dict.fromkeys(column for each in compared for column in each.columns)],
        result_key=node.by,
    )


def _make_aggregate(
    node: RetractingAggregate, records: pa.Schema, passed: dict[str, str]
) -> RetractingAggregates:
    for (_, each), (name, text) in zip(node.aggregates, node.sql, strict=True):
        kind = records.field(each.columns[0]).type if each.columns else None
        summed = each.function in {"sum", "avg"}
        compared = each.function in {"min", "max"} or each.distinct
        if kind is not None and ((summed and not is_summable(kind)) or (compared and not is_sortable(kind))):
            what = "numbers are" if summed else "single values are, and no arrays, maps or structs"
            msg = (
                f"operator {node.name!r}: {name}={text!r} of {kind}: only {what} aggregated over rows that "
                "replace earlier ones; cast the column, or aggregate one of its fields"
            )
            raise PlanError(msg)
    return RetractingAggregates(
        keys=node.by, aggregates=node.aggregates, change=CHANGE_COLUMN, rows=records, passed=passed
    )
