"""The core of a stream: the output of an operator, and how an operator is added downstream of it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Self

from flowcore.api.attributes import Attributes, OperatorAttributes, collect_declared
from flowcore.api.checks import refuse
from flowcore.api.flushing import flush_interval_ms
from flowcore.api.graph import Graph
from flowcore.api.operators import Operator

__all__ = ["StreamCore"]


class StreamCore:
    """The output of one operator.

    Attributes:
        graph: The graph of its flow.
        operator: The operator whose output it is.
    """

    def __init__(self, graph: Graph, operator: Operator) -> None:
        self.graph = graph
        self.operator = operator

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of its columns, in order."""
        return self.operator.columns

    @property
    def bounded(self) -> bool:
        """True if it ends."""
        return self.operator.bounded

    def attributes(self) -> OperatorAttributes:
        """The attributes of its operator."""
        return self.operator.attributes()

    def append(self, node: Operator) -> Self:
        """Add an operator to the graph; its output is a stream of the same class.

        Raises:
            PlanError: As for `Graph.register`.
        """
        self.graph.register(node)
        return type(self)(self.graph, node)

    def _fields(
        self, name: str, attributes: Attributes | None, *, flush: timedelta | None = None, **changed: Any
    ) -> dict[str, Any]:
        """The fields of a new operator that reads this stream and passes on its columns.

        Args:
            name: The name of the operator.
            attributes: Its declared attributes.
            flush: Its declared flush interval.
            changed: Fields that differ, or that only its class has.
        """
        node = self.operator
        return {
            "name": name, "inputs": (node,), "columns": node.columns, "bounded": node.bounded,
            "updating": node.updating, "declared_attributes": collect_declared(attributes),
            "flush_ms": flush_interval_ms(name, flush), **changed,
        }  # fmt: skip

    def _require_same_flow(self, other: StreamCore, name: str) -> None:
        if other.graph is not self.graph:
            refuse(
                f"operator {name!r} takes {other.operator.name!r} of the flow {other.graph.name!r} into "
                f"{self.graph.name!r}: they are planned and run apart; read the source in this flow too"
            )
