"""Explain: a plan as text that a person reads to learn what runs, and why so."""

from __future__ import annotations

from collections.abc import Iterator

from flowcore.graph.functions import name_of
from flowcore.graph.operators import (
    Aggregate,
    Apply,
    Filter,
    FlatMap,
    Join,
    Map,
    MapBatches,
    Operator,
    PythonOperator,
    Read,
    Select,
    Union,
    Where,
    WithColumns,
    Write,
    topic_of,
)
from flowcore.planner.plan import BoundedStage, Decision, Edge, LiveQuery, Plan

__all__ = ["explain"]

_FUNCTIONS: dict[type[Operator], str] = {
    Apply: "apply", Map: "map", Filter: "filter", FlatMap: "flat map", MapBatches: "map batches",
}  # fmt: skip


def explain(plan: Plan) -> str:
    """Stages, edges and modes of a plan, each with its reasons."""
    lines = [f"flow {plan.flow}: {len(plan.stages)} stage{'s' * (len(plan.stages) != 1)}"]
    for number, stage in enumerate(plan.stages, 1):
        if isinstance(stage, BoundedStage):
            lines += ["", f"stage {number}: {stage.name} (batch)", *_bounded(stage)]
            lines += _topics(plan.edges_of(stage.operators))
        else:
            needs = ", ".join(dict.fromkeys(r.name for q in stage.queries for r in q.results))
            after = f", starts when {needs} is committed" if needs else ""
            lines += ["", f"stage {number}: live{after}"]
            for query in stage.queries:
                lines += [
                    f"  query {query.name} ({query.mode.value})",
                    *_query(query, plan.edges_of(query.operators)),
                ]
    return "\n".join(lines)


def _bounded(stage: BoundedStage) -> Iterator[str]:
    yield from (f"  because {reason}" for reason in stage.decision.reasons)
    yield from (f"    {describe(node)}" for node in stage.operators)


def _query(query: LiveQuery, edges: tuple[Edge, ...]) -> Iterator[str]:
    yield from (f"    {query.mode.value} because {reason}" for reason in query.mode.reasons)
    yield from (f"    {query.split.value} because {reason}" for reason in query.split.reasons)
    yield from _elements(edges)
    yield from (f"      {describe(node)}" for node in query.operators)
    yield from _topics(edges)
    yield from (
        f"      bad records of {source.name} -> {source.name}.dead-letter" for source in query.dead_letters
    )


def _elements(edges: tuple[Edge, ...]) -> Iterator[str]:
    decisions: dict[Decision, list[str]] = {}
    for edge in edges:
        if edge.topic is None:
            decisions.setdefault(edge.elements, []).append(str(edge))
    for decision, names in decisions.items():
        where = f" on {', '.join(names)}" if len(decisions) > 1 else ""
        yield f"    {decision.value} elements{where} because {', '.join(decision.reasons)}"


def _topics(edges: tuple[Edge, ...]) -> Iterator[str]:
    for edge in edges:
        topic, (form, reasons) = edge.topic, (edge.elements.value, edge.elements.reasons)
        if topic is not None and form != "plain":
            how = " in headers" if topic.headers and form == "tagged" else ""
            why = "as what arrives" if topic.elements == "auto" else f"because {', '.join(reasons)}"
            yield f"      {edge}: {form} elements{how} {why}"


def describe(node: Operator) -> str:
    """One operator in one line."""
    return f"{node.name} <- {', '.join(parent.name for parent in node.inputs) or '.'}: {_what(node)}"


def _what(node: Operator) -> str:
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
        case Join():
            pairs = (left if left == right else f"{left} = {right}" for left, right in node.on)
            return f"{node.how} join on {', '.join(pairs)}"
        case Union():
            return "union"
        case _:
            return f"{_FUNCTIONS[type(node)]} {name_of(node.function)}{_uses(node)}"


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
