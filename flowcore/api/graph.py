"""The graph of a flow: its operators by name, and the checks of each new one."""

from __future__ import annotations

from flowcore.api import checks
from flowcore.api.flushing import require_flushable
from flowcore.api.operators import Operator, Write

__all__ = ["Graph"]


class Graph:
    """The named operators of one flow.

    Args:
        name: Letters, digits, ``_``, ``-``, ``.``; names folders, checkpoints and Dagster assets.
    """

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
        """The operators that write."""
        return tuple(node for node in self.operators if isinstance(node, Write))

    def register(self, node: Operator) -> None:
        """Add a new operator.

        Raises:
            PlanError: Its name is taken or cannot name a folder, or it waits for the end of an unbounded
                input.
        """
        checks.require_name("operator", node.name)
        if node.name.lower() in self._operators:
            checks.refuse(
                f"flow {self.name!r} has two operators named {node.name!r}: their results and "
                "checkpoints could not be told apart; give one another name"
            )
        checks.require_attributes(node)
        require_flushable(node)
        self._operators[node.name.lower()] = node

    def free_name(self, kind: str) -> str:
        """A name for an operator that was given none: ``select_1``, ``select_2``, ..."""
        number = 1
        while f"{kind}_{number}" in self._operators:
            number += 1
        return f"{kind}_{number}"
