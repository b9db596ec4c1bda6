"""The source columns from which columns are made.

Conditions and functions that only decide whether a record exists do not count. Names are lower case, as
Spark compares them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from flowcore.api.expressions import Expression

__all__ = ["Origins", "trace", "trace_each", "trace_expressions", "trace_pairs", "trace_to_all"]

Origins = Mapping[str, frozenset[tuple[str, str]]]
"""By column: pairs of a source's name and one of the source's columns."""


def trace(inputs: Sequence[Origins], columns: Iterable[str]) -> frozenset[tuple[str, str]]:
    """The origins of several columns together, whichever input they are from."""
    nothing: frozenset[tuple[str, str]] = frozenset()
    return nothing.union(*(each.get(column.lower(), nothing) for column in columns for each in inputs))


def trace_each(inputs: Sequence[Origins], columns: Iterable[str]) -> Origins:
    """The origins of columns that are passed on unchanged."""
    return {column.lower(): trace(inputs, [column]) for column in columns}


def trace_to_all(inputs: Sequence[Origins], columns: Iterable[str], read: Iterable[str]) -> Origins:
    """The origins of columns that are each made of everything that is read."""
    return dict.fromkeys(map(str.lower, columns), trace(inputs, read))


def trace_expressions(inputs: Sequence[Origins], expressions: Iterable[tuple[str, Expression]]) -> Origins:
    """The origins of ``(name, expression)`` columns."""
    return {name.lower(): trace(inputs, expression.columns) for name, expression in expressions}


def trace_pairs(inputs: Sequence[Origins], on: Iterable[tuple[str, str]]) -> Origins:
    """The origins of key columns, from pairs of a left and a right column."""
    return {left.lower(): trace(inputs[:1], [left]).union(trace(inputs[1:], [right])) for left, right in on}
