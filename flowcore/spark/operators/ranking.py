"""Ranking in a live query: from a branch of records to a branch of rows whose rank has changed.

The records are final rows, or a changelog of rows that replace each other.
"""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from flowcore.api.operators import Ranked, RetractingTopN
from flowcore.api.retraction import CHANGE_COLUMN, IS_DELETED
from flowcore.errors import PlanError
from flowcore.keyed.output_columns import DELETED, RESULTS, TIMESTAMP
from flowcore.ranking.keyed import RANK, Ranking, is_sortable
from flowcore.retraction.ranking import RetractingRanking
from flowcore.spark.frame.branches import Branch, BranchedFrame
from flowcore.spark.operators.key_group_context import PASSED, PREFIX, RECORD_TIMESTAMP, KeyGroupContext
from flowcore.spark.operators.keyed_step import KeyedStep, StepOutput, key_and_passed_columns

__all__ = ["prepare_ranking", "prepare_retracting_top_n", "require_sortable"]

_ROW_KEY = f"{PREFIX}key_"
"""The prefix of the columns of a row's key in key groups, where it has one form for equal values."""


def prepare_ranking(
    node: Ranked, branched: BranchedFrame, branches: Sequence[Branch], context: KeyGroupContext
) -> KeyedStep:
    """Ranking of a branch's records."""
    del branched
    (branch,) = branches
    used = context.query.used_columns[node] | {name.lower() for name in node.buffer_key or ()}
    names = node.stored_columns(used)
    passed = {TIMESTAMP: RECORD_TIMESTAMP, **{name: name for name in context.coordinates}}
    passed |= {f"{PASSED}{name}": f"{PASSED}{name}" for name in names}
    results = {name: f"{PASSED}{name}" for name in names}
    if node.rank is not None and node.rank.lower() in used:
        results[node.rank] = RANK
    return KeyedStep(
        node=node,
        context=context,
        keys=node.by,
        branch=branch,
        columns=key_and_passed_columns(branch, node.by, [*names, *(name for name, _ in node.order)]),
        make=lambda records, _: _make_ranking(node, records, passed),
        outputs={
            RESULTS: StepOutput(
                nodes=[node],
                number=next(context.numbers),
                columns=results,
                record_id=lambda found: context.result_id(node, found, *_rank(node, found)),
            )
        },
        result_key=[*(f"{PASSED}{name}" for name in node.by), *([RANK] if node.rank is not None else [])],
    )


def prepare_retracting_top_n(
    node: RetractingTopN, branched: BranchedFrame, branches: Sequence[Branch], context: KeyGroupContext
) -> KeyedStep:
    """Ranking of the changelog in a branch."""
    del branched
    (branch,) = branches
    used = context.query.used_columns[node]
    row_key = {f"{_ROW_KEY}{name}": name for name in node.row_key if name not in node.by}
    results = {name: f"{PASSED}{name}" for name in node.stored_columns(used)}
    passed = {TIMESTAMP: RECORD_TIMESTAMP, **{name: name for name in context.coordinates}}
    columns = {name: name for name in node.by} | {name: name for name in results}
    columns |= {node.columns[-2]: RANK, IS_DELETED: DELETED}
    physical = branch.physical_names
    read = key_and_passed_columns(branch, node.by, [*results, *(name for name, _ in node.order)])
    read = {**read, **{name: physical[column.lower()] for name, column in row_key.items()}}
    return KeyedStep(
        node=node,
        context=context,
        keys=node.by,
        branch=branch,
        columns={**read, CHANGE_COLUMN: physical[CHANGE_COLUMN]},
        make=lambda records, _: _make_retracting_ranking(node, records, [*row_key], [*results], passed),
        outputs={
            RESULTS: StepOutput(
                nodes=[node],
                number=next(context.numbers),
                columns={name: columns[name] for name in node.columns if name in columns},
                record_id=lambda found: context.result_id(node, found, *_rank(node, found)),
            )
        },
        identifying=[*row_key],
        result_key=[*node.by, RANK],
    )


def _make_retracting_ranking(
    node: RetractingTopN,
    records: pa.Schema,
    row_key: Sequence[str],
    results: Sequence[str],
    passed: Mapping[str, str],
) -> RetractingRanking:
    require_sortable(node.name, {name: records.field(f"{PASSED}{name}").type for name, _ in node.order})
    return RetractingRanking(
        keys=node.by,
        row_key=tuple(row_key),
        n=node.n,
        order=tuple((f"{PASSED}{name}", descending) for name, descending in node.order),
        change=CHANGE_COLUMN,
        rows=records,
        results={name: f"{PASSED}{name}" for name in results},
        passed=passed,
    )


def require_sortable(operator: str, types: Mapping[str, pa.DataType]) -> None:
    """Check that there is an order of the values by which rows are ranked.

    Raises:
        PlanError: A type has none.
    """
    for name, kind in types.items():
        if not is_sortable(kind):
            msg = (
                f"operator {operator!r}: order by {name!r}, which is {kind}: which value is larger is not "
                "defined for arrays, maps and structs; order by one of its fields"
            )
            raise PlanError(msg)


def _make_ranking(node: Ranked, records: pa.Schema, passed: Mapping[str, str]) -> Ranking:
    require_sortable(node.name, {name: records.field(f"{PASSED}{name}").type for name, _ in node.order})
    is_latest = node.rank is None
    by_time = is_latest and node.time == "event"
    order = tuple((f"{PASSED}{name}", descending) for name, descending in node.order)
    return Ranking(
        keys=node.by,
        n=node.n,
        order=((RECORD_TIMESTAMP, True),) if by_time else order,
        newest_first=is_latest,
        timestamp=RECORD_TIMESTAMP if by_time else None,
        rows=records,
        passed=passed,
        ttl_ms=node.ttl_ms,
    )


def _rank(node: Ranked, found: Mapping[str, str]) -> list[str]:
    """The rank of a row as a part of its id, since it may have several one after the other."""
    return [] if node.rank is None else [f"CAST({found[RANK]} AS STRING)"]
