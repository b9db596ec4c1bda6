"""Move filters upstream of Python functions where the result is the same.

A record that a filter drops needs no way to a Python worker and back. A `where` moves upstream of a function
if the result is the same: the function passes on the columns of the condition unchanged, keeps no state, has
no other reader, and the condition has the same value for the same record. A filter moves past a function that
may drop records only in a stream, where failing arithmetic gives null. In a batch the condition could fail on
a record that the function would have dropped.

Spark itself pushes filters past everything else.
"""

from collections import Counter
from dataclasses import replace

from flowcore.api.decisions import Decision, Obstacle
from flowcore.api.functions import is_rich
from flowcore.api.operators import Map, Operator, PythonOperator, Where, Write
from flowcore.planner.ways import find_upstream

__all__ = ["push_filters"]


def push_filters(
    operators: tuple[Operator, ...],
) -> tuple[tuple[Operator, ...], tuple[tuple[str, Decision], ...]]:
    """The operators with filters as early as possible, and the decision about each filter.

    A filter that does not read a Python function is left to Spark, without a decision.
    """
    pushing = _Pushing(operators)
    return pushing.operators, tuple(pushing.decisions)


class _Pushing:
    def __init__(self, operators: tuple[Operator, ...]) -> None:
        needed = find_upstream(node for node in operators if isinstance(node, Write))
        self.operators = operators
        self.readers = Counter(parent for node in needed for parent in node.inputs)
        self.placed: dict[Operator, Operator] = {}
        self.decisions: list[tuple[str, Decision]] = []
        for node in needed:
            self.placed[node] = self._place(node)
        if any(old is not new for old, new in self.placed.items()):
            ends = [self.placed[node] for node in needed if isinstance(node, Write)]
            now = {node.name: node for node in find_upstream(ends)}
            self.operators = tuple(now.get(node.name, node) for node in operators)

    def _place(self, node: Operator) -> Operator:
        inputs = tuple(self.placed[parent] for parent in node.inputs)
        moved = node if inputs == node.inputs else replace(node, inputs=inputs)
        self.readers[moved] = self.readers[node]
        if not isinstance(moved, Where) or not isinstance(inputs[0], PythonOperator):
            return moved
        functions = self._find_functions(inputs[0])
        obstacles = [found for each in functions if (found := self._find_obstacle(moved, each))]
        if obstacles:
            change = tuple(dict.fromkeys(each.change for each in obstacles if each.change))
            why = tuple(dict.fromkeys(each.why for each in obstacles))
            self.decisions.append((node.name, Decision("where it stands", why, change)))
            return moved
        passed = f"{'it passes' if len(functions) == 1 else 'they pass'} its columns on unchanged"
        place = f"before {', '.join(each.name for each in reversed(functions))}"
        self.decisions.append((node.name, Decision(place, (passed,))))
        below = functions[-1].inputs[0]
        top: Operator = replace(
            moved, inputs=(below,), columns=below.columns, key=below.key, updating=below.updating
        )
        self.readers[top] = 1
        for function in reversed(functions):
            top = replace(function, inputs=(top,))
            self.readers[top] = 1
        self.readers[top] = self.readers[node]
        return top

    def _find_functions(self, node: Operator) -> list[PythonOperator]:
        """The functions in a row that end with this one, the last first.

        A filter moves past all of them or stays: between two it would make two calls of a worker of one.
        """
        found: list[PythonOperator] = []
        while isinstance(node, PythonOperator):
            found.append(node)
            (node,) = node.inputs
        return found

    def _find_obstacle(self, where: Where, parent: PythonOperator) -> Obstacle | None:
        passed = {column.lower() for column in parent.passed_columns}
        others = [column for column in where.condition.columns if column.lower() not in passed]
        if others:
            return Obstacle(
                f"{parent.name} does not say that it passes {', '.join(others)} on unchanged",
                f"declare passes={others!r} on {parent.name}, if it does",
            )
        if is_rich(parent.function) or parent.attributes().output_value_stored:
            return Obstacle(
                f"{parent.name} may keep state, and would see fewer records", f"put it before {parent.name}"
            )
        if parent.updating and not parent.bounded:
            if not parent.inputs[0].updating:
                return Obstacle(f"rows of {parent.name} replace earlier ones, and it does not retract these")
            if parent.flush_ms != 0 and parent.flush_obstacle() is None:
                return Obstacle(
                    f"in a flush buffer of {parent.name} a row may replace one for which it is true",
                    f"declare flush=timedelta(0) on {parent.name}, if it need not buffer",
                )
        if self.readers[parent] > 1:
            return Obstacle(
                f"{parent.name} is read by others, which need what it would drop",
                f"put it before {parent.name}, if they do not",
            )
        if not where.condition.is_deterministic:
            return Obstacle(f"its condition may change from call to call ({where.condition.text})")
        if parent.bounded and not isinstance(parent, Map):
            return Obstacle(
                f"in a batch it could fail on a record that {parent.name} drops",
                f"put it before {parent.name}, if it cannot",
            )
        return None
