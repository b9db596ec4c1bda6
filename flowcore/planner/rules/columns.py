"""The output columns of each operator that any reader uses.

An unused column need not be computed, carried or joined. Names are lower case, as Spark compares them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from flowcore.api.operators import Operator, SideOutput

__all__ = ["find_used_columns"]


def find_used_columns(
    operators: Sequence[Operator], ends: Collection[Operator] = ()
) -> Mapping[Operator, frozenset[str]]:
    """The output columns of each operator that its readers among the operators use.

    Args:
        operators: Inputs before readers.
        ends: Operators of which all columns are used.
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
