"""Pushdown: which filters can be done before Python functions instead of behind them?

A record that a filter drops needs no way to a Python worker and back. A `where` goes below a function
if the result is the same: the function hands the columns of the condition on unchanged, keeps no
state, is read by nothing else, and the condition has the same value for the same record. Below a
function that may drop records itself it goes only in a stream, where arithmetic that fails gives
null: in a batch the condition could fail on a record that the function would have dropped.

Spark itself pushes filters below everything else.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

from flowcore.api.decisions import Decision
from flowcore.api.functions import is_rich
from flowcore.api.operators import Filter, Map, Operator, PythonOperator, Where, Write, upstream

__all__ = ["push_filters"]

_ANOTHER_EACH_TIME = re.compile(
    r"\b(rand\w*|uuid|shuffle|monotonically_increasing_id|spark_partition_id|input_file_\w+|current_\w+|now"
    r"|reflect|try_reflect|java_method)\b",
    re.IGNORECASE,
)


def push_filters(
    operators: tuple[Operator, ...],
) -> tuple[tuple[Operator, ...], tuple[tuple[str, Decision], ...]]:
    """The operators with filters as early as they can be, and what was decided for each filter.

    Filters that are not behind a Python function are Spark's to place, and not decided about.
    """
    needed = tuple(upstream(*(node for node in operators if isinstance(node, Write))))
    return _Pushing(needed).result(operators)


class _Pushing:
    def __init__(self, needed: tuple[Operator, ...]) -> None:
        self.needed = needed
        self.readers = Counter(parent for node in needed for parent in node.inputs)
        self.done: dict[Operator, Operator] = {}
        self.decisions: list[tuple[str, Decision]] = []

    def result(
        self, operators: tuple[Operator, ...]
    ) -> tuple[tuple[Operator, ...], tuple[tuple[str, Decision], ...]]:
        for node in self.needed:
            self.done[node] = self._placed(node)
        if all(old is new for old, new in self.done.items()):
            return operators, tuple(self.decisions)
        ends = [self.done[node] for node in self.needed if isinstance(node, Write)]
        now = {node.name: node for node in upstream(*ends)}
        return tuple(now.get(node.name, node) for node in operators), tuple(self.decisions)

    def _placed(self, node: Operator) -> Operator:
        inputs = tuple(self.done[parent] for parent in node.inputs)
        moved = node if inputs == node.inputs else replace(node, inputs=inputs)
        self.readers[moved] = self.readers[node]
        if not isinstance(moved, Where) or not isinstance(inputs[0], PythonOperator):
            return moved
        behind = self._functions(inputs[0])
        obstacles = [found for each in behind if (found := self._obstacle(moved, each))]
        self.decisions.append((node.name, _decision(behind, obstacles)))
        if obstacles:
            return moved
        top: Operator = self._filtered(moved, behind[-1].inputs[0])
        for function in reversed(behind):
            top = replace(function, inputs=(top,))
            self.readers[top] = 1
        self.readers[top] = self.readers[node]
        return top

    def _functions(self, node: Operator) -> list[PythonOperator]:
        """The functions in a row that end with this one, the last first.

        A filter goes below all of them or stays: between two it would make two calls of a worker of one.
        """
        found: list[PythonOperator] = []
        while isinstance(node, PythonOperator):
            found.append(node)
            (node,) = node.inputs
        return found

    def _filtered(self, where: Where, below: Operator) -> Where:
        alike = replace(where, inputs=(below,), columns=below.columns, key=below.key, updating=below.updating)
        self.readers[alike] = 1
        return alike

    def _obstacle(self, where: Where, parent: PythonOperator) -> tuple[str, str] | None:
        """Why the filter cannot go below the function, and what to do about it, None if it can."""
        passes = parent.columns if isinstance(parent, Filter) else parent.passes
        passed = {column.lower() for column in passes}
        others = [column for column in where.condition.columns if column.lower() not in passed]
        if others:
            return (
                f"{parent.name} does not say that it hands {', '.join(others)} on unchanged",
                f"declare passes={others!r} on {parent.name}, if it does",
            )
        if is_rich(parent.function) or parent.attributes().output_value_stored:
            return (
                f"{parent.name} may keep state, and would see fewer records",
                f"put it before {parent.name}",
            )
        if self.readers[parent] > 1:
            return (
                f"{parent.name} is read by others, which need what it would drop",
                f"put it before {parent.name}, if they do not",
            )
        if _ANOTHER_EACH_TIME.search(where.condition.text):
            return f"its condition may change from call to call ({where.condition.text})", ""
        if parent.bounded and not isinstance(parent, Map):
            return (
                f"in a batch it could fail on a record that {parent.name} drops",
                f"put it before {parent.name}, if it cannot",
            )
        return None


def _decision(behind: list[PythonOperator], obstacles: list[tuple[str, str]]) -> Decision:
    if obstacles:
        change = tuple(dict.fromkeys(what for _, what in obstacles if what))
        return Decision("where it stands", tuple(dict.fromkeys(why for why, _ in obstacles)), change)
    same = f"{'it hands' if len(behind) == 1 else 'they hand'} its columns on unchanged"
    return Decision(f"before {', '.join(node.name for node in reversed(behind))}", (same,))
