"""Find the used output columns of each operator, and the source columns that they are made of.

An unused column need not be computed, carried or joined. Names are lower case, as Spark compares them.
"""

from collections.abc import Collection, Mapping, Sequence

from flowcore.api.node import Origins
from flowcore.api.operators import Operator, Read, SideOutput

__all__ = ["find_used_columns", "trace_columns"]


def find_used_columns(
    operators: Sequence[Operator], ends: Collection[Operator] = ()
) -> Mapping[Operator, frozenset[str]]:
    """The output columns of each operator that its readers use; of ``ends``, such as buffers, all are used.

    ``operators`` has inputs before readers.
    """
    used: dict[Operator, set[str]] = {node: set() for node in operators}
    for node in ends:
        used[node].update(map(str.lower, node.columns))
    for node in reversed(operators):
        for parent in dict.fromkeys(node.inputs):
            if parent in used:
                # Late records have the columns of the window's input and not of its results.
                late = node.columns if isinstance(node, SideOutput) else ()
                used[parent] |= node.columns_read(used[node]) & {*map(str.lower, (*parent.columns, *late))}
    return {node: frozenset(columns) for node, columns in used.items()}


def trace_columns(operator: Operator) -> dict[str, tuple[tuple[Read, str], ...]]:
    """The sources and their columns from which each output column is made, sorted.

    All columns that a Python function reads count; see `flowcore.api.node` for those that do not.
    """
    known: dict[Operator, Origins] = {}
    sources: dict[str, Read] = {}
    for node in operator.upstream:
        known[node] = node.lineage(known)
        if isinstance(node, Read):
            sources[node.name] = node
    return {
        column: tuple(
            (sources[name], origin) for name, origin in sorted(known[operator].get(column.lower(), ()))
        )
        for column in operator.columns
    }
