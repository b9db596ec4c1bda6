"""The source columns from which each column of a result is made.

Of what a Python function makes, all that it reads counts; see `flowcore.api.lineage` for what does not.
"""

from __future__ import annotations

from flowcore.api.lineage import Origins
from flowcore.api.operators import Operator, Read

__all__ = ["Origin", "trace_columns"]

Origin = tuple[Read, str]
"""A source, and one of its columns."""


def trace_columns(operator: Operator) -> dict[str, tuple[Origin, ...]]:
    """The origins of each output column of an operator, sorted by source and column."""
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
