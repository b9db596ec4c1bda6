"""Columns: which of an operator's output columns does anything behind it use?

What nobody uses need not be computed, carried or joined. Names are lower case, as Spark compares them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from flowcore.api.operators import (
    Aggregate,
    Apply,
    CoGroup,
    Filter,
    FlatMap,
    Join,
    KeyedProcess,
    Map,
    MapBatches,
    Operator,
    Read,
    Select,
    SideOutput,
    Union,
    Where,
    Window,
    WithColumns,
    Write,
)

__all__ = ["columns_read", "find_used_columns"]


def find_used_columns(
    operators: Sequence[Operator], ends: Collection[Operator] = ()
) -> Mapping[Operator, frozenset[str]]:
    """The output columns of each operator that its readers among the operators use.

    Args:
        operators: Inputs before readers.
        ends: Those of which all is used, whoever reads them.
    """
    used: dict[Operator, set[str]] = {node: set() for node in operators}
    for node in ends:
        used[node] |= _lower(node.columns)
    for node in reversed(operators):
        for parent in dict.fromkeys(node.inputs):
            if parent in used:
                # Late records have the columns of the window's input and not of its results.
                here = _lower(
                    (*parent.columns, *node.columns) if isinstance(node, SideOutput) else parent.columns
                )
                used[parent] |= here & columns_read(node, used[node])
    return {node: frozenset(columns) for node, columns in used.items()}


def columns_read(node: Operator, used: Collection[str]) -> frozenset[str]:
    """What an operator reads of its inputs' columns, from what is used of its own (in lower case)."""
    return frozenset(_lower(_reads(node, used)))


def _reads(node: Operator, used: Collection[str]) -> Collection[str]:
    match node:
        case Select(expressions=expressions) | WithColumns(expressions=expressions):
            # A generator (explode) decides how many rows there are, whoever reads its column.
            kept = [e for name, e in expressions if name.lower() in used or e.generates]
            passed = set(used) - {name.lower() for name, _ in expressions}
            reads = {column for expression in kept for column in expression.columns}
            return reads if isinstance(node, Select) else reads | passed
        case Where(condition=condition):
            return {*used, *condition.columns}
        case Aggregate(by=by, aggregates=aggregates):
            return {*by, *(column for _, expression in aggregates for column in expression.columns)}
        case Join(on=on) | CoGroup(on=on):
            keys = {column for pair in on for column in pair}
            mine = node.aggregates if isinstance(node, CoGroup) else ()
            return keys.union(() if mine else used, *(aggregate.columns for _, aggregate in mine))
        case Filter() | Map() | FlatMap() | MapBatches():
            read = node.inputs[0].columns if node.uses is None else node.uses
            return {*used, *read} if isinstance(node, Filter) else read
        case Window() | KeyedProcess():
            return _reads_by_key(node, used)
        case Apply() | Write():
            return node.inputs[0].columns
        case Read() | Union() | SideOutput():
            return used


def _reads_by_key(node: Window | KeyedProcess, used: Collection[str]) -> Collection[str]:
    expressions = [] if node.timestamp is None else [node.timestamp]
    late: Collection[str] = ()
    if isinstance(node, Window):
        expressions += [expression for _, expression in node.computed]
        late = used if node.config.late == "side-output" else ()
    read = {column for expression in expressions for column in expression.columns}
    return {*node.by, *node.uses, *read, *late}


def _lower(columns: Collection[str]) -> set[str]:
    return {column.lower() for column in columns}
