"""At the end of input: which operators put out nothing before, and which windows are then plain groups?

One window up to the end of a bounded input, with aggregates that Spark has itself, is a grouped aggregate:
nothing is late, nothing emits twice. What needs the records one by one (a function, a trigger or an
evictor of one's own) stays a window.
"""

from __future__ import annotations

from flowcore.api.operators import Aggregate, CoGroup, KeyedProcess, Operator, Window, Write
from flowcore.planner.model import Decision
from flowcore.planner.rules.forms import form_of, output_of
from flowcore.windows import EndOfStreamWindows

__all__ = ["is_grouped_aggregate", "output_time"]


def is_grouped_aggregate(node: Window) -> bool:
    """Whether windows are no more than the groups of a bounded input."""
    at_end = isinstance(node.config.assigner, EndOfStreamWindows)
    return at_end and form_of(node).value == "native"


def output_time(node: Operator) -> Decision:
    """When an operator puts out, from its attribute ``output_only_at_end`` and why it has it."""
    match node:
        case Write():
            return Decision("none", ("it is a sink",))
        case _ if node.declared_attributes.get("output_only_at_end"):
            return Decision("at the end of input", ("it declares output_only_at_end",))
        case Window() | KeyedProcess():
            return output_of(node)
        case _ if node.attributes().output_only_at_end:
            return Decision("at the end of input", (_complete(node),))
        case Aggregate():
            return Decision("at each change", ("its input has no end to wait for",))
        case _:
            return Decision("as input comes", ("it does not declare output_only_at_end",))


def _complete(node: Operator) -> str:
    match node:
        case CoGroup():
            return "a key has all its records when both inputs have ended"
        case _:
            return "a group is complete when its input has ended"
