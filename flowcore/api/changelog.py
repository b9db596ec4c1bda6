"""Build aggregates and rankings that take rows back, or count distinct values, after checking them."""

from collections.abc import Mapping, Sequence
from typing import Any

from flowcore.api.checks import refuse, require_distinct
from flowcore.api.operators import (
    ChangelogNormalize,
    DistinctAggregate,
    Operator,
    RetractingAggregate,
    RetractingTopN,
)
from flowcore.api.retraction import CHANGE_COLUMN, IS_DELETED
from flowcore.api.updating_rows import Replaced, require_lasting_ranks, require_replaced
from flowcore.api.window_aggregates import AggregatePlace, WindowAggregates, parse_window_aggregates
from flowcore.api.window_checks import rank_order
from flowcore.windows.built_in import BuiltIn

__all__ = ["build_distinct_aggregate", "build_retracting_top_n", "build_retraction"]

_RETRACTABLE = frozenset({"count", "count_if", "sum", "avg", "min", "max"})
"""The functions from which a value can be taken back; of distinct values only ``count``."""
_Refusal = tuple[str, str]
_PLACE = AggregatePlace("rows that can be taken back", "a group", "aggregate", "", _RETRACTABLE)


def build_retraction(
    fields: Mapping[str, Any], keys: tuple[str, ...], aggregates: Mapping[str, str], ttl_ms: int | None
) -> tuple[ChangelogNormalize, RetractingAggregate]:
    """Build an aggregate over rows that replace earlier rows: a changelog, and the aggregate that reads it.

    Args:
        fields: The fields of any operator.
        keys: The columns to group by.
        aggregates: Output column to one Spark SQL aggregate over any row expressions.
        ttl_ms: The time for which a row counts that is not replaced.

    Raises:
        PlanError: An operator upstream may drop a row that replaces an earlier one, the key of the rows is
            unknown, ranks are forgotten without output, or an aggregate cannot take a value back.
    """
    (node,), name = fields["inputs"], fields["name"]
    replaced = require_replaced(
        node, name, "put the condition into the aggregates, as in sum(if(condition, price, null))"
    )
    if ttl_ms is None:
        require_lasting_ranks(node, name)
    why = f"over {node.name!r}, whose rows replace earlier ones: a replaced value could not be taken back"
    found = _parse_counted(node, name, aggregates, why=(why, ""))
    for _, argument in found.computed:
        if not argument.is_deterministic:
            refuse(
                f"operator {name!r}: {argument.text!r} may have another value when a row of {node.name!r} is "
                "taken back than when it was added, so that a part of it would be counted for ever; make it "
                f"a column before, as in .with_columns(value={argument.text!r})"
            )
    changes = _build_changelog(node, name, replaced, ttl_ms)
    columns = (*fields["columns"], *([IS_DELETED] if keys else []))
    require_distinct(name, columns)
    aggregate = RetractingAggregate(
        **{**fields, "inputs": (changes,), "columns": columns}, by=keys, aggregates=found.columns,
        sql=tuple(aggregates.items()), computed=found.computed, uses=found.uses,
    )  # fmt: skip
    return changes, aggregate


def build_retracting_top_n(
    fields: Mapping[str, Any],
    keys: tuple[str, ...],
    ranks: tuple[int, str],
    order: str | Sequence[str],
    ttl_ms: int | None,
) -> tuple[ChangelogNormalize, RetractingTopN]:
    """Build a ranking of rows that replace earlier rows: a changelog, and the ranking that reads it.

    Args:
        fields: The fields of any operator.
        keys: The columns of the key.
        ranks: How many rows of a key have a rank, and the name of its column.
        order: The columns of the order, with their directions.
        ttl_ms: The time for which a row has a rank that is not replaced.

    Raises:
        PlanError: An operator upstream may drop a row that replaces an earlier one, the key of the rows is
            unknown, ranks upstream are forgotten without output, the order names no column, there are no
            ranks, or a column has the name of another one.
    """
    (node,), name = fields["inputs"], fields["name"]
    n, rank = ranks
    parsed = rank_order(node, name, n, order)
    column, descending = parsed[0]
    last = f"order={f'{column} desc' if descending else column!r}"
    replaced = require_replaced(
        node, name, f"give rows that do not count a value that is last in {last} instead"
    )
    if ttl_ms is None:
        require_lasting_ranks(node, name)
    changes = _build_changelog(node, name, replaced, ttl_ms)
    kept = (column for column in node.columns if column != replaced.deleted or column in keys)
    columns = (*kept, rank, IS_DELETED)
    require_distinct(name, columns)
    ranked = RetractingTopN(
        **{**fields, "inputs": (changes,), "columns": columns, "key": (*keys, rank), "updating": True},
        by=keys, n=n, order=parsed, time="arrival", rank=rank, row_key=replaced.key,
    )  # fmt: skip
    return changes, ranked


def _build_changelog(node: Operator, name: str, replaced: Replaced, ttl_ms: int | None) -> ChangelogNormalize:
    return ChangelogNormalize(
        name=f"{name}.changes", inputs=(node,), columns=(*node.columns, CHANGE_COLUMN), bounded=False,
        by=replaced.key, deleted=replaced.deleted, ttl_ms=ttl_ms,
    )  # fmt: skip


def build_distinct_aggregate(
    fields: Mapping[str, Any], keys: tuple[str, ...], aggregates: Mapping[str, str]
) -> DistinctAggregate:
    """Build an aggregate over final rows that counts distinct values.

    Args:
        fields: The fields of any operator.
        keys: The columns to group by.
        aggregates: Output column to one Spark SQL aggregate over any row expressions.

    Raises:
        PlanError: Another aggregate cannot be computed together with one of distinct values.
    """
    (node,), name = fields["inputs"], fields["name"]
    why = (
        f"beside a distinct aggregate of the unbounded {node.name!r}: its state does not have what it needs",
        "; compute it in an aggregate of its own, or declare ttl=",
    )
    distinct = (
        f"is of distinct values of the unbounded {node.name!r}: only their number is computed without ttl=",
        "; or declare ttl=",
    )
    found = _parse_counted(node, name, aggregates, why=why, distinct=distinct)
    return DistinctAggregate(
        **fields, by=keys, aggregates=found.columns, sql=tuple(aggregates.items()), computed=found.computed,
        uses=found.uses,
    )  # fmt: skip


def _parse_counted(
    node: Operator,
    name: str,
    aggregates: Mapping[str, str],
    *,
    why: _Refusal,
    distinct: _Refusal | None = None,
) -> WindowAggregates:
    """Parse aggregates that can be computed from sums and from the number of times that each value occurs.

    Args:
        why: Why another aggregate is refused, and a further way out, besides those that can be computed.
        distinct: The same of one of distinct values, if that is another.
    """
    found = parse_window_aggregates(node, name, aggregates, _PLACE)
    for column, each in found.columns:
        if not _is_counted(each):
            known = ", ".join(sorted(_RETRACTABLE))
            reason, change = distinct if each.distinct and distinct else why
            refuse(
                f"operator {name!r}: {column}={aggregates[column]!r} {reason}; those that can: {known}, "
                f"count(distinct ...){change}"
            )
    return found


def _is_counted(aggregate: BuiltIn) -> bool:
    """Whether an aggregate can be computed from sums and from the number of times that each value occurs."""
    return aggregate.function in _RETRACTABLE and (not aggregate.distinct or aggregate.function == "count")
