"""Collect all decisions about operators and edges, with their reasons and what would change them.

The short text of a plan (`flowcore.planner.views.text`) has what a reader needs; the details also cover what
is off or at its default.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from flowcore.api.connectors import KafkaTopic
from flowcore.api.decisions import Decision
from flowcore.api.operators import Operator, PythonOperator, Read, SideOutput, StatefulOperator, Write
from flowcore.api.updating_rows import decide_changes, explain_replaced
from flowcore.planner.model import BoundedStage, Chain, Flush, LiveQuery, PlanData

__all__ = ["EdgeDetail", "OperatorDetail", "PartDetail", "collect_details", "describe", "name_end"]

_BATCH = Decision("none", ("rows of a table are not stream elements",))
_PIPELINED = Decision("pipelined", ("both ends run in the same job",))
_BLOCKING = Decision("blocking", ("a live query reads bounded data only as a committed result",))


@dataclass(frozen=True, slots=True)
class OperatorDetail:
    """The decisions about one operator.

    Attributes:
        flush: Whether its output is buffered, and by what.
        outcomes: By name, in the order in which they are shown: ``compiled``, its form; ``filter``, whether
            it runs upstream of Python functions; ``join``, how it reads a table; ``state``, where it is kept;
            ``late``, what happens to late records; ``alignment`` of partitions; ``output``, when it emits;
            ``changes``, whether a later row replaces an earlier one; ``replaced_input``, what it does with
            rows that replace earlier ones if it does not take these back; ``flush``; ``failure``, what
            happens to a record for which its function raises; ``unbounded_state``. Those that do not apply
            are left out.
    """

    node: Operator
    flush: Flush
    outcomes: Mapping[str, Decision]


@dataclass(frozen=True, slots=True)
class EdgeDetail:
    """The decisions about one edge.

    Attributes:
        kind: ``"pipelined"`` or ``"blocking"``.
        elements: What travels beside the values.
        copy: How records are copied.
        columns: The columns that need to cross, None to and from a topic.
    """

    sender: Operator | KafkaTopic
    receiver: Operator | KafkaTopic
    kind: Decision
    elements: Decision
    copy: Decision
    columns: tuple[str, ...] | None

    def __str__(self) -> str:
        return f"{name_end(self.sender)} -> {name_end(self.receiver)}"


@dataclass(frozen=True, slots=True)
class PartDetail:
    """A bounded stage or a live query, with all decisions about it."""

    number: int
    runs: BoundedStage | LiveQuery
    operators: tuple[OperatorDetail, ...]
    edges: tuple[EdgeDetail, ...]

    @property
    def mode(self) -> Decision:
        """How it runs."""
        return self.runs.decision if isinstance(self.runs, BoundedStage) else self.runs.mode


def collect_details(plan: PlanData) -> tuple[PartDetail, ...]:
    """Every bounded stage, then every live query."""
    found: list[PartDetail] = []
    places = dict(plan.filters)
    for number, stage in enumerate(plan.stages, 1):
        for runs in (stage,) if isinstance(stage, BoundedStage) else stage.queries:
            operators = tuple(_operator(node, runs, places.get(node.name)) for node in runs.operators)
            found.append(PartDetail(number, runs, operators, tuple(_edges(runs))))
    return tuple(found)


def _operator(node: Operator, runs: BoundedStage | LiveQuery, place: Decision | None) -> OperatorDetail:
    if isinstance(runs, LiveQuery):
        flush = next(each for each in runs.flushes if each.operator is node)
    else:
        why = "it is a sink" if isinstance(node, Write) else "its stage emits once"
        flush = Flush(node, "off", Decision("off", (why,)))
    outcomes = {
        "compiled": _compiled(node, runs.chains),
        "filter": place,
        "join": runs.joins.get(node) if isinstance(runs, LiveQuery) else None,
        "state": node.placed_state(runs.key_groups) if isinstance(runs, LiveQuery) else None,
        "late": node.late_records(),
        "alignment": node.alignment(),
        "output": node.emission(),
        "changes": None if node.bounded or isinstance(node, Write) else decide_changes(node),
        "replaced_input": explain_replaced(node),
        "flush": flush.decision,
        "failure": runs.failures.get(node),
        "unbounded_state": node.unbounded_state(),
    }
    return OperatorDetail(node, flush, {name: each for name, each in outcomes.items() if each is not None})


def _compiled(node: Operator, chains: tuple[Chain, ...]) -> Decision:
    if not isinstance(node, PythonOperator):
        return node.compiled()
    chain = next(chain for chain in chains if node in chain.operators)
    return Decision(
        "python chain",
        (f"a Python function runs in a worker, in one call for {chain.name}",),
        ("say it in Spark SQL: select, with_columns, where",),
    )


def _edges(runs: BoundedStage | LiveQuery) -> Iterator[EdgeDetail]:
    elements = {(edge.sender, edge.receiver): edge.elements for edge in runs.edges}
    for node in runs.operators:
        topic = node.topic
        if isinstance(node, Read) and topic is not None:
            yield _outside(topic, node, elements[topic, node])
        for parent in dict.fromkeys(node.inputs):
            read = node.columns_read(runs.used_columns[node])
            crossing = node.columns if isinstance(node, SideOutput) else parent.columns
            columns = tuple(column for column in crossing if column.lower() in read)
            kind = _BLOCKING if parent.bounded and not node.bounded else _PIPELINED
            form = _BATCH if parent.bounded else elements[parent, node]
            yield EdgeDetail(parent, node, kind, form, _copy(parent, node, runs), columns)
        if isinstance(node, Write) and topic is not None:
            yield _outside(node, topic, elements[node, topic])


def _outside(sender: Operator | KafkaTopic, receiver: Operator | KafkaTopic, form: Decision) -> EdgeDetail:
    written = Decision("none", ("what crosses is bytes",))
    return EdgeDetail(sender, receiver, Decision("pipelined", ("it is a topic",)), form, written, None)


def _copy(sender: Operator, receiver: Operator, runs: BoundedStage | LiveQuery) -> Decision:
    for chain in runs.chains:
        for pair, decision in chain.copies.items():
            if pair == (sender, receiver):
                return decision
        for node, decision in chain.outputs.items():
            if node is sender:
                why = f"the output of the chain {chain.name} is collected for Spark"
                return Decision(decision.value, (why, *decision.reasons), decision.change)
    if isinstance(receiver, PythonOperator):
        return Decision("none", (f"its records are made for {receiver.name}",))
    if isinstance(sender, StatefulOperator) or isinstance(receiver, StatefulOperator):
        return Decision("none", ("what crosses is columns",))
    return Decision("none", ("neither end is a Python function",))


def describe(node: Operator) -> str:
    """An operator in one line: its name, its inputs, what it does."""
    inputs = f" <- {', '.join(parent.name for parent in node.inputs)}" if node.inputs else ""
    return f"{node.name}{inputs}: {node.describe()}"


def name_end(end: Operator | KafkaTopic) -> str:
    """The name of an end of an edge."""
    return f"topic {end.name}" if isinstance(end, KafkaTopic) else end.name
