"""Idempotent aggregates: a later result of a group replaces the earlier ones.

They are those that FLIP-365 lists, under Spark SQL's names. Nothing is known of other functions, so their
output is not buffered unless the flow declares ``output_idempotent``.

Source: FLIP-365, Introduce flush interval to adjust the interval of emitting results.
"""

from __future__ import annotations

from functools import cache

import sqlglot
from sqlglot import exp

from flowcore.api.expressions import is_aggregate

__all__ = ["IDEMPOTENT", "find_not_idempotent"]

IDEMPOTENT = frozenset({
    "sum", "min", "max", "min_by", "max_by", "count", "avg", "mean", "first_value", "first", "any_value",
    "last_value", "last", "listagg", "string_agg", "stddev_pop", "stddev_samp", "stddev", "std", "var_pop",
    "var_samp", "variance", "collect_list", "array_agg", "collect_set",
})  # fmt: skip
"""Names of the functions. A group without functions (distinct) is idempotent too, and so is an expression
over results of these functions: ``coalesce(sum(x), 0)`` is FLIP-365's sum0."""

_NAMES: dict[type[exp.Expr], str] = {
    exp.Sum: "sum", exp.Min: "min", exp.Max: "max", exp.ArgMin: "min_by", exp.ArgMax: "max_by",
    exp.Count: "count", exp.Avg: "avg", exp.FirstValue: "first_value", exp.First: "first",
    exp.AnyValue: "any_value", exp.LastValue: "last_value", exp.Last: "last", exp.GroupConcat: "listagg",
    exp.StddevPop: "stddev_pop", exp.StddevSamp: "stddev_samp", exp.Stddev: "stddev",
    exp.VariancePop: "var_pop", exp.Variance: "var_samp", exp.ArrayAgg: "collect_list",
    exp.ArrayUniqueAgg: "collect_set",
}  # fmt: skip
"""The functions as sqlglot parses them; several names share a class."""


@cache
def find_not_idempotent(text: str) -> tuple[str, ...]:
    """The functions in an aggregate expression that are not known to be idempotent.

    An unknown function may be a user's aggregate, unless it is called with aggregates.

    >>> find_not_idempotent("max(price) / count(*)"), find_not_idempotent("median(price) + sum(price)")
    ((), ('median',))
    """
    tree = sqlglot.parse_one(text, dialect="spark")
    calls = [node for node in tree.find_all(exp.Func, exp.Any) if is_aggregate(node)]
    within = {id(inner) for call in calls for inner in call.walk() if inner is not call}
    unknown = [
        node
        for node in tree.find_all(exp.Anonymous)
        if id(node) not in within and not any(inner is call for inner in node.walk() for call in calls)
    ]
    names = (
        _NAMES.get(type(node)) or node.sql(dialect="spark").partition("(")[0].strip().lower()
        for node in (*calls, *unknown)
    )
    return tuple(dict.fromkeys(name for name in names if name not in IDEMPOTENT))
