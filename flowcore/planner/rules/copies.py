"""Copies: what does one Python operator hand to the next, its object or a copy of it?

Python operators that follow each other run in one call of a Python worker, a *chain*. Between two of
them the plan decides once whether a record is reused, copied shallowly (a new record with the same
values) or deeply; the worker only does what was decided. A keyed process begins a chain, since its records
are brought together by key before it; what follows it runs in the call of its key groups.

Source: FLIP-329, Add operator attribute to specify support for object-reuse.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

from flowcore.api.attributes import OperatorAttributes
from flowcore.api.decisions import Decision
from flowcore.api.operators import (
    ChainOperator,
    KeyedProcess,
    MapBatches,
    Operator,
    PythonOperator,
    SideOutput,
)
from flowcore.planner.model import Chain

__all__ = ["build_chains", "copy_between"]


def build_chains(
    operators: Sequence[Operator], object_reuse: bool = False, ends: Container[Operator] = ()
) -> tuple[Chain, ...]:
    """The chains among the operators of one stage or live query.

    An operator goes on a chain where everything that reads its input within the stage is a Python
    operator; else records leave the worker there anyway.

    Args:
        operators: Inputs before readers.
        object_reuse: ``pipeline.object-reuse``.
        ends: Operators behind which something else holds their records.
    """
    readers: dict[Operator, list[Operator]] = {node: [] for node in operators}
    for node in operators:
        for parent in node.inputs:
            if parent in readers and parent not in ends and not isinstance(node, SideOutput):
                readers[parent].append(node)

    def chained(node: Operator) -> bool:
        """Its input is in the worker already when it is called."""
        (parent,) = node.inputs
        if parent in ends or parent not in readers:
            return False
        return isinstance(parent, ChainOperator) and _all_python(readers[parent])

    def heads(node: Operator) -> bool:
        if isinstance(node, KeyedProcess):
            return bool(readers[node]) and _all_python(readers[node])
        return isinstance(node, PythonOperator) and not chained(node)

    return tuple(
        _chain(node, readers, object_reuse)
        for node in operators
        if isinstance(node, ChainOperator) and heads(node)
    )


def copy_between(
    sender: OperatorAttributes,
    receiver: OperatorAttributes,
    *,
    names: tuple[str, str] = ("the sender", "the receiver"),
    object_reuse: bool = False,
) -> Decision:
    """``"reuse"``, ``"shallow"`` or ``"deep"``, for records from one operator to the next of a chain.

    Args:
        sender: What the one that puts out promises.
        receiver: What the one that is given them promises.
        names: Of both, for the reasons.
        object_reuse: ``pipeline.object-reuse``: whatever they promise, no copy.
    """
    if object_reuse:
        return Decision("reuse", ("pipeline.object-reuse is true",))
    if sender.output_value_stored:
        return Decision(
            "deep",
            (f"{names[0]} may use again what it has put out",),
            (f"declare is_output_value_stored = False on the function of {names[0]}, if it does not",),
        )
    if receiver.input_record_stored:
        return Decision(
            "shallow",
            (f"{names[1]} may keep or change its record",),
            (f"declare input_record_stored=False on {names[1]}, if it does not",),
        )
    return Decision(
        "reuse", (f"{names[0]} does not use again what it has put out, {names[1]} keeps no record",)
    )


def _chain(head: ChainOperator, readers: Mapping[Operator, list[Operator]], reuse: bool) -> Chain:
    members: list[ChainOperator] = []
    copies: dict[tuple[ChainOperator, ChainOperator], Decision] = {}
    outputs: dict[ChainOperator, Decision] = {}

    def visit(node: ChainOperator) -> None:
        members.append(node)
        following = [each for each in readers[node] if isinstance(each, PythonOperator)]
        if not following or len(following) < len(readers[node]):
            outputs[node] = _way_out(node, reuse)
            return
        for receiver in following:
            copies[node, receiver] = _between(node, receiver, reuse)
            visit(receiver)

    visit(head)
    return Chain(tuple(members), copies, outputs)


def _between(sender: ChainOperator, receiver: ChainOperator, reuse: bool) -> Decision:
    if sender.emits_batches:
        return Decision("reuse", (f"{sender.name} puts out Arrow batches, which cannot be changed",))
    return copy_between(
        sender.attributes(), receiver.attributes(), names=(sender.name, receiver.name), object_reuse=reuse
    )


def _way_out(node: ChainOperator, reuse: bool) -> Decision:
    """Records wait in the worker until a batch of them is full."""
    if isinstance(node, MapBatches):
        return Decision("reuse", (f"{node.name} puts out Arrow batches, which cannot be changed",))
    nobody = OperatorAttributes(input_record_stored=False)
    return copy_between(
        node.attributes(), nobody, names=(node.name, "what collects them"), object_reuse=reuse
    )


def _all_python(nodes: Iterable[Operator]) -> bool:
    return all(isinstance(node, PythonOperator) for node in nodes)
