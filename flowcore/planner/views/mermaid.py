"""Diagram: a plan as a Mermaid flowchart, which GitHub draws.

One box a stage or query, one node an operator in it. A thick arrow is a blocking edge. An arrow
between two Python functions says what becomes of the records.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from flowcore.api.connectors import KafkaTopic
from flowcore.api.operators import Operator, PythonOperator, Read, Write
from flowcore.planner.model import BoundedStage, PlanData
from flowcore.planner.views.details import EdgeDetail, OperatorDetail, PartDetail, collect_details

__all__ = ["render_mermaid"]


def render_mermaid(plan: PlanData) -> str:
    """The flowchart, without a fence around it."""
    found = collect_details(plan)
    ids = [
        {node: f"p{number}n{index}" for index, node in enumerate(part.runs.operators, 1)}
        for number, part in enumerate(found, 1)
    ]
    made_by = {
        node: mine[node]
        for part, mine in zip(found, ids, strict=True)
        if isinstance(part.runs, BoundedStage)
        for node in part.runs.operators
    }
    lines = ["flowchart TD"]
    for number, (part, mine) in enumerate(zip(found, ids, strict=True), 1):
        lines += [f"  subgraph p{number}[{_quoted(_title(part))}]"]
        lines += [f"    {line}" for line in _nodes(part, mine, f"p{number}")]
        lines += [
            f"    {line}"
            for edge in part.edges
            if edge.kind.value != "blocking"
            for line in _edge(edge, mine)
        ]
        lines += ["  end"]
    for part, mine in zip(found, ids, strict=True):
        lines += [
            f"  {made_by[sender]} ==>|blocking| {mine[receiver]}"
            for sender, receiver in (
                (edge.sender, edge.receiver) for edge in part.edges if edge.kind.value == "blocking"
            )
            if not isinstance(sender, KafkaTopic) and not isinstance(receiver, KafkaTopic)
        ]
        lines += list(_dead_letters(part, mine))
    return "\n".join(lines)


def _title(part: PartDetail) -> str:
    runs = part.runs
    if isinstance(runs, BoundedStage):
        return f"stage {part.number}: {runs.name} (batch, checkpoint {runs.checkpoint.value})"
    how = f"{runs.mode.value}, {runs.split.value}, checkpoint {runs.checkpoint.value}"
    return f"stage {part.number}: query {runs.name} ({how})"


def _nodes(part: PartDetail, ids: Mapping[Operator, str], prefix: str) -> Iterator[str]:
    """Those of a chain in a box of their own."""
    chained: set[Operator] = {node for chain in part.runs.chains for node in chain.operators}
    yield from (f"{ids[each.node]}{_node(each)}" for each in part.operators if each.node not in chained)
    for number, chain in enumerate(part.runs.chains, 1):
        yield f'subgraph {prefix}c{number}["python chain"]'
        members: set[Operator] = {*chain.operators}
        yield from (f"  {ids[each.node]}{_node(each)}" for each in part.operators if each.node in members)
        yield "end"


def _node(detail: OperatorDetail) -> str:
    node = detail.node
    outcomes = [detail.compiled.value]
    if not isinstance(node, Write):
        outcomes += [f"out {detail.output.value}", f"flush {detail.flush.decision.value}"]
    lines = [f"{node.name}: {node.describe()}", "; ".join(outcomes)]
    text = _quoted("<br>".join(_escaped(line) for line in lines))
    match node:
        case Read() | Write():
            return f"[({text})]"
        case node if isinstance(node, PythonOperator):
            return f"[[{text}]]"
        case _:
            return f"[{text}]"


def _edge(edge: EdgeDetail, ids: Mapping[Operator, str]) -> Iterator[str]:
    if isinstance(edge.sender, KafkaTopic) or isinstance(edge.receiver, KafkaTopic):
        return
    labels = [decision.value for decision in (edge.elements, edge.copy) if decision.value != "none"]
    label = f"|{', '.join(labels)}|" if labels else ""
    yield f"{ids[edge.sender]} -->{label} {ids[edge.receiver]}"


def _dead_letters(part: PartDetail, ids: Mapping[Operator, str]) -> Iterator[str]:
    if not isinstance(part.runs, BoundedStage):
        for source in part.runs.dead_letters:
            text = _quoted(_escaped(f"{source.name}.dead-letter"))
            yield f"  {ids[source]} -.->|bad records| {ids[source]}d[({text})]"


def _escaped(text: str) -> str:
    """Text in which nothing means anything to Mermaid or to HTML."""
    for character, code in (
        ("#", "#35;"),
        ("&", "#38;"),
        ('"', "#34;"),
        ("<", "#60;"),
        (">", "#62;"),
        ("`", "#96;"),
    ):
        text = text.replace(character, code)
    return text


def _quoted(text: str) -> str:
    return f'"{text}"'
