"""A plan as a Mermaid flowchart, which GitHub draws.

Each stage and each query is a box, each operator a node. A thick arrow is a blocking edge or a cut.
The label of another edge says what travels beside the values, and how records are copied.
"""

from collections.abc import Iterator, Mapping

from flowcore.api.operators import Operator, PythonOperator, Read, Write
from flowcore.escaping import mermaid_text
from flowcore.planner.model import BoundedStage, PlanData
from flowcore.planner.views.details import OperatorDetail, PartDetail, collect_details

__all__ = ["render_mermaid"]


def render_mermaid(plan: PlanData) -> str:
    """The flowchart, without a fence around it."""
    found = collect_details(plan)
    ids = [
        {node: f"p{number}n{index}" for index, node in enumerate(part.runs.operators, 1)}
        for number, part in enumerate(found, 1)
    ]
    results: dict[Operator, str] = {}
    sinks = {node.name: name for mine in ids for node, name in mine.items() if isinstance(node, Write)}
    lines = ["flowchart TD"]
    for number, (part, mine) in enumerate(zip(found, ids, strict=True), 1):
        if isinstance(part.runs, BoundedStage):
            results |= mine
        lines.append(f'  subgraph p{number}["{mermaid_text(_title(part))}"]')
        lines += [f"    {line}" for line in _nodes(part, mine, f"p{number}")]
        for edge in part.edges:
            if isinstance(edge.sender, Operator) and edge.receiver in mine and edge.kind.value != "blocking":
                labels = [each.value for each in (edge.elements, edge.copy) if each.value != "none"]
                label = f"|{', '.join(map(mermaid_text, labels))}|" if labels else ""
                lines.append(f"    {mine[edge.sender]} -->{label} {mine[edge.receiver]}")
        lines.append("  end")
    for part, mine in zip(found, ids, strict=True):
        lines += [f"  {line}" for line in _between(part, mine, results, sinks)]
    return "\n".join(lines)


def _between(
    part: PartDetail, mine: Mapping[Operator, str], results: Mapping[Operator, str], sinks: Mapping[str, str]
) -> Iterator[str]:
    """The arrows into a box from others, and to dead letters."""
    for edge in part.edges:
        sender, receiver = edge.sender, edge.receiver
        if edge.kind.value == "blocking" and isinstance(sender, Operator) and isinstance(receiver, Operator):
            yield f"{results[sender]} ==>|blocking| {mine[receiver]}"
    for source in part.runs.sources:
        if source.written_by is not None:
            yield f"{sinks[source.written_by.name]} ==>|cut| {mine[source]}"
    for source in () if isinstance(part.runs, BoundedStage) else part.runs.dead_letters:
        text = mermaid_text(source.dead_letter)
        yield f'{mine[source]} -.->|bad records| {mine[source]}d[("{text}")]'


def _title(part: PartDetail) -> str:
    runs = part.runs
    if isinstance(runs, BoundedStage):
        return f"stage {part.number}: {runs.name} (batch, checkpoint {runs.checkpoint.value})"
    how = f"{runs.mode.value}, {runs.split.value}, checkpoint {runs.checkpoint.value}"
    return f"stage {part.number}: query {runs.name} ({how})"


def _nodes(part: PartDetail, ids: Mapping[Operator, str], prefix: str) -> Iterator[str]:
    """The nodes; those of a chain are in a box of their own."""
    chained: set[Operator] = {node for chain in part.runs.chains for node in chain.operators}
    yield from (f"{ids[each.node]}{_node(each)}" for each in part.operators if each.node not in chained)
    for number, chain in enumerate(part.runs.chains, 1):
        yield f'subgraph {prefix}c{number}["python chain"]'
        members: set[Operator] = {*chain.operators}
        yield from (f"  {ids[each.node]}{_node(each)}" for each in part.operators if each.node in members)
        yield "end"


def _node(detail: OperatorDetail) -> str:
    node = detail.node
    outcomes = [detail.outcomes["compiled"].value]
    if not isinstance(node, Write):
        outcomes += [f"emitted {detail.outcomes['output'].value}", f"flush {detail.flush.decision.value}"]
    name = mermaid_text(f"{node.name}: {node.describe()}")
    text = f'"{name}<br>{mermaid_text("; ".join(outcomes))}"'
    if isinstance(node, Read | Write):
        return f"[({text})]"
    return f"[[{text}]]" if isinstance(node, PythonOperator) else f"[{text}]"
