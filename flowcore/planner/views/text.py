"""A plan as text: what runs, and why."""

from collections.abc import Iterator
from dataclasses import asdict

from flowcore.api.decisions import Decision
from flowcore.api.operators import StatefulOperator, Write
from flowcore.api.updating_rows import decide_changes, explain_replaced, find_replacing
from flowcore.escaping import printable
from flowcore.planner.model import BoundedStage, Chain, Edge, LiveQuery, PlanData
from flowcore.planner.rules.compatibility import derive_needs
from flowcore.planner.rules.histories import decide_history, find_histories
from flowcore.planner.views.details import PartDetail, collect_details, describe

__all__ = ["render_text"]


def render_text(plan: PlanData, *, verbose: bool = False) -> str:
    """Stages, edges and modes of a plan, with reasons; if verbose, also all decisions for each operator."""
    lines = [f"flow {plan.flow}: {len(plan.stages)} stage{'s' * (len(plan.stages) != 1)}"]
    for number, stage in enumerate(plan.stages, 1):
        if isinstance(stage, BoundedStage):
            lines += ["", f"stage {number}: {stage.name} (batch, starts {stage.start.value})"]
            lines += _render_stage(stage, plan)
        else:
            starts = dict.fromkeys(query.start.value for query in stage.queries)
            after = f", starts {', '.join(starts)}" if len(starts) == 1 else ""
            lines += ["", f"stage {number}: live{after}"]
            for query in stage.queries:
                start = f", starts {query.start.value}" if len(starts) > 1 else ""
                lines += [f"  query {query.name} ({query.mode.value}{start})", *_render_query(query, plan)]
    if verbose:
        for part in collect_details(plan):
            lines += ["", *_render_part(part)]
    return "\n".join(map(printable, lines))


def _render_stage(stage: BoundedStage, plan: PlanData) -> Iterator[str]:
    yield from (f"  because {reason}" for reason in stage.decision.reasons)
    if stage.after:
        yield from (f"  starts {stage.start.value} because {reason}" for reason in stage.start.reasons)
    yield from (f"    {describe(node)}" for node in stage.operators)
    yield from (f"    {line}" for line in _render_python(stage, plan))
    yield from _render_topics(stage.edges)


def _render_query(query: LiveQuery, plan: PlanData) -> Iterator[str]:
    yield from (f"    {query.mode.value} because {reason}" for reason in query.mode.reasons)
    yield from (f"    {query.split.value} because {reason}" for reason in query.split.reasons)
    cuts = {source.written_by.name: source for source in query.sources if source.written_by is not None}
    for writer in plan.live_queries:
        for sink in (each for each in writer.sinks if each.name in cuts):
            yield f"    {cuts[sink.name].name} is a cut: query {writer.name} writes its topic"
    for node in find_histories(query.operators):
        yield f"    {node.live.name} begins with {node.history.name} {_because(decide_history(node))}"
    if query.results:
        yield f"    backlog {query.backlog.value}"
    yield from _render_elements(query.edges)
    if query.exactly_once:
        yield f"    delivery {_because(query.delivery)}"
    if query.latency.value != "off" and query.sinks:
        yield f"    latency markers {_because(query.latency)}"
    yield from (f"    {line}" for line in _render_exceptions(query))
    yield from (f"      {describe(node)}" for node in query.operators)
    yield from (f"      {line}" for line in _render_python(query, plan))
    yield from _render_topics(query.edges)
    yield from (f"      bad records of {each.name} -> {each.dead_letter}" for each in query.dead_letters)


def _render_exceptions(query: LiveQuery) -> Iterator[str]:
    """What is not the default of an operator."""
    for each in query.flushes:
        if each.way != "off":
            latest = f"the latest result of each ({', '.join(each.key)})" if each.key else "its latest result"
            yield f"{each.operator.name} emits {latest} {_because(each.decision)}"
    if query.idle_partitions is not None:
        yield _because(query.idle_partitions)
    for node in query.shuffled_joins:
        yield f"{node.name} is joined by a {_because(query.joins[node])}"
    for node in query.operators:
        if find_replacing(node) is node and not isinstance(node, Write):
            yield f"{node.name} is {_because(decide_changes(node))}"
        if found := explain_replaced(node):
            yield f"{node.name} {_because(found)}"
        if found := node.unbounded_state():
            yield f"the state of {node.name} is {_because(found)}"


def _render_elements(edges: tuple[Edge, ...]) -> Iterator[str]:
    elements: dict[Decision, list[str]] = {}
    for edge in edges:
        if edge.topic is None:
            elements.setdefault(edge.elements, []).append(str(edge))
    for decision, names in elements.items():
        where = f" on {', '.join(names)}" if len(elements) > 1 else ""
        yield f"    {decision.value} elements{where} because {_join(decision.reasons)}"


def _render_topics(edges: tuple[Edge, ...]) -> Iterator[str]:
    for edge in edges:
        topic, form = edge.topic, edge.elements.value
        if topic is not None and form != "plain":
            how = " in headers" if topic.headers and form == "tagged" else ""
            why = "as what arrives" if topic.elements == "auto" else f"because {_join(edge.elements.reasons)}"
            yield f"      {edge}: {form} elements{how} {why}"


def _render_python(runs: BoundedStage | LiveQuery, plan: PlanData) -> Iterator[str]:
    for chain in runs.chains:
        yield from _render_chain(chain, runs)
    for node in runs.operators:
        if isinstance(node, StatefulOperator):
            form = node.compiled()
            state = node.placed_state(runs.key_groups) if isinstance(runs, LiveQuery) else None
            yield f"{node.name} is {form.value}{f' in {state.value}' if state else ''} {_why(form)}"
    places = dict(plan.filters)
    yield from (f"{n.name} is done {_because(places[n.name])}" for n in runs.operators if n.name in places)


def _render_chain(chain: Chain, runs: BoundedStage | LiveQuery) -> Iterator[str]:
    where = f", that of {chain.head.name}'s key groups" if chain.process else ""
    yield f"python chain {chain.name}: one call of a worker{where}"
    for (sender, receiver), decision in chain.copies.items():
        yield f"  {sender.name} -> {receiver.name}: {_because(decision)}"
    for sender, decision in chain.outputs.items():
        if decision.change:
            yield f"  {sender.name} -> out of the chain: {_because(decision)}"
    for node in runs.operators:
        senders = [each.name for each in node.inputs if each in chain.outputs]
        if isinstance(node, StatefulOperator) and senders:
            yield (
                f"  {senders[0]} -> {node.name}: not in one call, because records are shuffled by key before "
                f"{node.name}"
            )
    for sender in chain.operators:
        same = [r.name for r in chain.receivers(sender) if chain.copies[sender, r].value == "reuse"]
        if len(same) > 1:
            yield f"  {', '.join(same)} get the same objects, so none of them may change one"


def _render_part(part: PartDetail) -> Iterator[str]:
    yield f"every decision for {part.runs.name}"
    runs = part.runs
    outcomes = {"mode": part.mode, "checkpoint": runs.checkpoint, "start": runs.start}
    if isinstance(runs, LiveQuery):
        outcomes |= {
            "backlog": runs.backlog, "catch up": runs.catch_up, "latency": runs.latency,
            "delivery": runs.delivery,
        }  # fmt: skip
    yield from (f"  {name}: {_because(decision)}" for name, decision in outcomes.items())
    if isinstance(runs, LiveQuery):
        yield f"  continues from checkpoints with the fingerprint {derive_needs(runs).fingerprint[:12]}"
    for each in part.operators:
        yield f"  {describe(each.node)}"
        for name, decision in each.outcomes.items():
            yield f"    {name.replace('_', ' ')}: {_because(decision)}"
        attributes, undeclared = asdict(each.node.attributes()), each.node.undeclared_attributes()
        promises = (f"{name}={str(value).lower()}" for name, value in attributes.items())
        unknown = f"; safe defaults, as not declared: {', '.join(undeclared)}" if undeclared else ""
        yield f"    attributes: {', '.join(promises)}{unknown}"
    for edge in part.edges:
        yield f"  {edge}"
        for name, decision in (("edge", edge.kind), ("elements", edge.elements), ("copy", edge.copy)):
            yield f"    {name}: {_because(decision)}"
        if edge.columns is not None:
            yield f"    columns: {', '.join(edge.columns) or 'none'}"


def _because(decision: Decision) -> str:
    return f"{decision.value} {_why(decision)}"


def _why(decision: Decision) -> str:
    change = f"; to change it, {' and '.join(decision.change)}" if decision.change else ""
    return f"because {_join(decision.reasons)}{change}"


def _join(reasons: tuple[str, ...]) -> str:
    return "; ".join(reasons)  # a reason may have commas
