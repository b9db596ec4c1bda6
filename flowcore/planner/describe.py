"""Describe: what does an operator do, in one line?"""

from __future__ import annotations

from flowcore.api.functions import name_of
from flowcore.api.operators import (
    Aggregate,
    Apply,
    CoGroup,
    Filter,
    FlatMap,
    Join,
    KeyedProcess,
    Map,
    MapBatches,
    Operator,
    PythonOperator,
    Read,
    Select,
    SideOutput,
    Union,
    Where,
    Window,
    WithColumns,
    Write,
    topic_of,
)
from flowcore.planner.describe_windows import what_by_key

__all__ = ["describe", "what"]

_FUNCTIONS: dict[type[Operator], str] = {
    Apply: "apply", Map: "map", Filter: "filter", FlatMap: "flat map", MapBatches: "map batches",
}  # fmt: skip


def describe(node: Operator) -> str:
    """One operator in one line."""
    return f"{node.name} <- {', '.join(parent.name for parent in node.inputs) or '.'}: {what(node)}"


def what(node: Operator) -> str:
    """What an operator does, without names of operators."""
    match node:
        case Read():
            return f"read {_end(node.source)}{_time(node)}"
        case Write():
            key = f", key {', '.join(node.key) or 'constant'}" if node.key is not None else ""
            return f"write {_end(node.sink)}{key}"
        case Select() | WithColumns():
            pairs = (f"{e.text} as {name}" if e.text != name else name for name, e in node.expressions)
            return f"{'select' if isinstance(node, Select) else 'with'} {', '.join(pairs)}"
        case Where():
            return f"where {node.condition.text}"
        case Aggregate():
            values = ", ".join(f"{e.text} as {name}" for name, e in node.aggregates)
            when = "at the end of input" if node.bounded else "at each change"
            return f"aggregate {values} by {', '.join(node.by) or 'nothing'}, out {when}"
        case Join() | CoGroup():
            return _two(node)
        case Union():
            return "union"
        case Window() | KeyedProcess() | SideOutput():
            return what_by_key(node)
        case _:
            return f"{_FUNCTIONS[type(node)]} {name_of(node.function)}{_uses(node)}"


def _two(node: Join | CoGroup) -> str:
    pairs = ", ".join(left if left == right else f"{left} = {right}" for left, right in node.on)
    if isinstance(node, Join):
        return f"{node.how} join on {pairs}"
    values = ", ".join(f"{e.expression.text} as {name}" for name, e in node.aggregates)
    return f"co-group on {pairs}, {values}, out at the end of input"


def _uses(node: Apply | PythonOperator) -> str:
    columns = None if isinstance(node, Apply) else node.uses
    return "" if columns is None else f", using {', '.join(columns) or 'no column'}"


def _time(read: Read) -> str:
    topic = topic_of(read)
    if topic is None or (topic.event_time is None and topic.watermark is None):
        return ""
    watermarks = f", {topic.watermark}" if topic.watermark else ""
    return f", event time {topic.event_time or 'as Kafka keeps it'}{watermarks}"


def _end(end: object) -> str:
    name = getattr(end, "name", None) or getattr(end, "path", None) or getattr(end, "function", end)
    return f"{type(end).__name__} {getattr(name, '__qualname__', name)}"
