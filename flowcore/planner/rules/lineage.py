"""Lineage: from which columns of which sources is a column of a result made?

What decides only whether a record is there (a condition, a function that filters) is not counted.
Of what a Python function makes, all that it reads counts. Names are
lower case inside, as Spark compares them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from flowcore.api.expressions import Expression
from flowcore.api.operators import (
    Aggregate,
    Apply,
    CoGroup,
    FlatMap,
    Join,
    KeyedProcess,
    Map,
    MapBatches,
    Operator,
    Read,
    Select,
    SideOutput,
    Window,
    WithColumns,
    upstream,
)
from flowcore.api.stateful import LATE, WINDOW_COLUMNS
from flowcore.planner.rules.columns import columns_read

__all__ = ["Origin", "column_lineage"]

Origin = tuple[Read, str]
"""A source, and one of its columns."""

_Origins = Mapping[str, frozenset[Origin]]
"""By output column."""


def column_lineage(operator: Operator) -> dict[str, tuple[Origin, ...]]:
    """The origins of each output column of an operator, sorted by source and column."""
    known: dict[Operator, _Origins] = {}
    for node in upstream(operator):
        known[node] = _origins(node, [known[parent] for parent in node.inputs], known)
    return {
        column: tuple(sorted(known[operator].get(column.lower(), ()), key=lambda one: (one[0].name, one[1])))
        for column in operator.columns
    }


def _origins(node: Operator, inputs: Sequence[_Origins], known: Mapping[Operator, _Origins]) -> _Origins:
    match node:
        case Read():
            return {column.lower(): frozenset({(node, column)}) for column in node.columns}
        case Select(expressions=expressions):
            return _made(expressions, inputs)
        case WithColumns(expressions=expressions):
            return {**inputs[0], **_made(expressions, inputs)}
        case Aggregate(by=by, aggregates=aggregates):
            return {**_same(by, inputs), **_made(aggregates, inputs)}
        case Join() | CoGroup():
            return _of_two(node, inputs)
        case Window():
            return _of_window(node, inputs)
        case SideOutput(inputs=(Window() | KeyedProcess() as sender,)):
            before = [known[parent] for parent in sender.inputs]
            late = node.output == LATE
            return _same(node.columns, before) if late else _read_by(sender, node.columns, before)
        case Map() | FlatMap() | MapBatches() | KeyedProcess() | Apply():
            passes = () if isinstance(node, (KeyedProcess, Apply)) else node.passes
            return {**_read_by(node, node.columns, inputs), **_same(passes, inputs)}
        case _:
            return _same(node.columns, inputs)


def _of_two(node: Join | CoGroup, inputs: Sequence[_Origins]) -> _Origins:
    if isinstance(node, CoGroup):
        sides = {"left": inputs[:1], "right": inputs[1:]}
        made = {name.lower(): _of(sides[one.side], one.columns) for name, one in node.aggregates}
        return {**_keys(node.on, inputs), **made}
    right = {} if node.how in ("semi", "anti") else inputs[1]
    # A row that only the right side has takes its key from there.
    keys = _keys(node.on, inputs if node.how in ("right", "full") else inputs[:1])
    return {**right, **inputs[0], **keys}


def _of_window(node: Window, inputs: Sequence[_Origins]) -> _Origins:
    times = node.timestamp.columns if node.timestamp is not None else ()
    computed = {column for _, expression in node.computed for column in expression.columns}
    made = dict.fromkeys(map(str.lower, node.values), _of(inputs, {*computed, *node.uses}))
    return {**_same(node.by, inputs), **made, **dict.fromkeys(WINDOW_COLUMNS, _of(inputs, times))}


def _made(expressions: Iterable[tuple[str, Expression]], inputs: Sequence[_Origins]) -> _Origins:
    return {name.lower(): _of(inputs, expression.columns) for name, expression in expressions}


def _read_by(node: Operator, columns: Iterable[str], inputs: Sequence[_Origins]) -> _Origins:
    """Each of these columns is made of all that the operator reads."""
    return dict.fromkeys(map(str.lower, columns), _of(inputs, columns_read(node, ())))


def _of(inputs: Sequence[_Origins], columns: Iterable[str]) -> frozenset[Origin]:
    """The origins of several columns, wherever they come from."""
    nothing: frozenset[Origin] = frozenset()
    return nothing.union(*(one.get(column.lower(), nothing) for column in columns for one in inputs))


def _same(columns: Iterable[str], inputs: Sequence[_Origins]) -> _Origins:
    return {column.lower(): _of(inputs, [column]) for column in columns}


def _keys(on: Iterable[tuple[str, str]], inputs: Sequence[_Origins]) -> _Origins:
    return {left.lower(): _of(inputs[:1], [left]).union(_of(inputs[1:], [right])) for left, right in on}
