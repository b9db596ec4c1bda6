"""The graph of a flow: its operators by name, and the core of a stream, the output of one of them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NoReturn, Self

from flowcore.api import checks, connector_checks, type_checks
from flowcore.api.attributes import Attributes, OperatorAttributes, collect_declared
from flowcore.api.operators import Operator, Read, Write

__all__ = ["Graph", "StreamCore"]


class Graph:
    """The named operators of one flow."""

    def __init__(self, name: str) -> None:
        checks.require_name("flow", name)
        self.name = name
        self._operators: dict[str, Operator] = {}

    @property
    def operators(self) -> tuple[Operator, ...]:
        """All operators in the order of their declaration."""
        return tuple(self._operators.values())

    @property
    def sinks(self) -> tuple[Write, ...]:
        return tuple(node for node in self.operators if isinstance(node, Write))

    def register(self, node: Operator) -> None:
        """Add a new operator.

        Raises:
            PlanError: Its name is taken or cannot name a folder, or it waits for the end of an unbounded
                input.
        """
        checks.require_name("operator", node.name)
        taken = self._operators.get(node.name.lower())
        if taken is not None:
            _refuse_name(self.name, node, taken)
        checks.require_attributes(node)
        checks.require_flushable(node)
        type_checks.require_keys(node)
        connector_checks.require_own_topic(node, self.operators)
        connector_checks.require_no_loop(node, self.operators)
        connector_checks.require_apart(node, self.operators)
        self._operators[node.name.lower()] = node

    def free_name(self, kind: str) -> str:
        """A name for an operator that was given none: ``select_1``, ``select_2``, ..."""
        number = 1
        while f"{kind}_{number}" in self._operators:
            number += 1
        return f"{kind}_{number}"


def _refuse_name(flow: str, node: Operator, taken: Operator) -> NoReturn:
    """Refuse an operator whose name another one has."""
    if isinstance(node, Write) == isinstance(taken, Write):
        checks.refuse(
            f"flow {flow!r} has two operators named {node.name!r}: their results and checkpoints could not "
            "be distinguished; give one another name"
        )
    sink, other = (node, taken) if isinstance(node, Write) else (taken, node)
    what = "source" if isinstance(other, Read) else "operator"
    checks.refuse(
        f"sink {sink.name!r} has the name of {what} {other.name!r}: sinks and operators share their names, "
        "and results and checkpoints of both could not be distinguished; call the sink "
        f"for instance '{sink.name}_out': write('{sink.name}_out', ...)"
    )


class StreamCore:
    """The output of one operator."""

    def __init__(self, graph: Graph, operator: Operator) -> None:
        self.graph = graph
        self.operator = operator

    @property
    def columns(self) -> tuple[str, ...]:
        return self.operator.columns

    @property
    def bounded(self) -> bool:
        return self.operator.bounded

    def attributes(self) -> OperatorAttributes:
        return self.operator.attributes()

    def append(self, node: Operator) -> Self:
        """`Graph.register` an operator; its output is a stream of the same class."""
        self.graph.register(node)
        return type(self)(self.graph, node)

    def _fields(
        self, name: str, attributes: Attributes | None, *, flush: timedelta | None = None, **changed: Any
    ) -> dict[str, Any]:
        """The fields of an operator that reads this stream and passes on its columns, except the changed."""
        node = self.operator
        return {
            "name": name, "inputs": (node,), "columns": node.columns, "bounded": node.bounded,
            "updating": node.updating, "declared_attributes": collect_declared(attributes),
            "flush_ms": checks.flush_interval_ms(name, flush), **changed,
        }  # fmt: skip

    def _require_same_flow(self, other: object, name: str) -> None:
        if not isinstance(other, StreamCore):
            of_windows = isinstance(getattr(other, "stream", None), StreamCore)
            what = "windows whose function is missing" if of_windows else "not a stream"
            instead = "call aggregate(...) on them" if of_windows else "pass what flow.read(...) returns"
            given = type(other).__name__ if of_windows else repr(other)
            checks.refuse(
                f"operator {name!r} of {self.operator.name!r} takes {given}, which is {what}: it has no "
                f"records; {instead}"
            )
        if other.graph is not self.graph:
            checks.refuse(
                f"operator {name!r} takes {other.operator.name!r} of the flow {other.graph.name!r} into "
                f"{self.graph.name!r}: they are planned and run apart; read the source in this flow too"
            )
