"""Explain: a plan as text that a person reads to learn what runs, and why so."""

from __future__ import annotations

from collections.abc import Iterator

from flowcore.graph.operators import Aggregate, Apply, Join, Operator, Read, Select, Where, WithColumns, Write
from flowcore.planner.plan import BoundedStage, LiveQuery, Plan

__all__ = ["explain"]


def explain(plan: Plan) -> str:
    """Stages, edges and modes of a plan, each with its reasons."""
    lines = [f"flow {plan.flow}: {len(plan.stages)} stage{'s' * (len(plan.stages) != 1)}"]
    for number, stage in enumerate(plan.stages, 1):
        if isinstance(stage, BoundedStage):
            lines += ["", f"stage {number}: {stage.name} (batch)", *_bounded(stage)]
        else:
            needs = ", ".join(dict.fromkeys(r.name for q in stage.queries for r in q.results))
            after = f", starts when {needs} is committed" if needs else ""
            lines += ["", f"stage {number}: live{after}"]
            for query in stage.queries:
                lines += [f"  query {query.name} ({query.mode.value})", *_query(query)]
    return "\n".join(lines)


def _bounded(stage: BoundedStage) -> Iterator[str]:
    yield from (f"  because {reason}" for reason in stage.decision.reasons)
    yield from (f"    {describe(node)}" for node in stage.operators)


def _query(query: LiveQuery) -> Iterator[str]:
    yield from (f"    {query.mode.value} because {reason}" for reason in query.mode.reasons)
    yield from (f"    {query.split.value} because {reason}" for reason in query.split.reasons)
    yield from (f"      {describe(node)}" for node in query.operators)
    yield from (
        f"      bad records of {source.name} -> {source.name}.dead-letter" for source in query.dead_letters
    )


def describe(node: Operator) -> str:
    """One operator in one line."""
    return f"{node.name} <- {', '.join(parent.name for parent in node.inputs) or '.'}: {_what(node)}"


def _what(node: Operator) -> str:
    match node:
        case Read():
            return f"read {_end(node.source)}"
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
        case Apply():
            return f"apply {getattr(node.function, '__qualname__', node.function)}"
        case _:
            return "union"


def _end(end: object) -> str:
    name = getattr(end, "name", None) or getattr(end, "path", None) or getattr(end, "function", end)
    return f"{type(end).__name__} {getattr(name, '__qualname__', name)}"
