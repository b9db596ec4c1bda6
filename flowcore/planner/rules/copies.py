"""Build chains of Python operators, and decide whether records between two of them are copied.

Python operators that follow each other run in one call of a Python worker, a *chain*. For each pair the plan
decides once whether a record is reused, copied shallowly (a new record with the same values) or deeply. A
keyed process begins a chain, since a shuffle by key precedes it; its chain runs in the call of its key
groups.

Source: FLIP-329, Add operator attribute to specify support for object-reuse.
"""

from collections.abc import Container, Mapping, Sequence

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

__all__ = ["build_chains", "choose_copy"]

_COLLECTOR = OperatorAttributes(input_record_stored=False)
"""The collector of records in the worker, until a batch is full."""


def build_chains(
    operators: Sequence[Operator], object_reuse: bool = False, ends: Container[Operator] = ()
) -> tuple[Chain, ...]:
    """The chains among the operators of one stage or live query.

    An operator continues a chain where all readers of its input in the stage are Python operators; else the
    records leave the worker there anyway, as after the operators in ``ends``, whose output is buffered.
    """
    readers: dict[Operator, list[Operator]] = {node: [] for node in operators}
    for node in operators:
        for parent in node.inputs:
            if parent in readers and parent not in ends and not isinstance(node, SideOutput):
                readers[parent].append(node)

    def feeds_python(node: Operator) -> bool:
        return bool(readers[node]) and all(isinstance(each, PythonOperator) for each in readers[node])

    def is_head(node: Operator) -> bool:
        if isinstance(node, KeyedProcess):
            return feeds_python(node)
        if not isinstance(node, PythonOperator):
            return False
        (parent,) = node.inputs
        return parent not in readers or not isinstance(parent, ChainOperator) or not feeds_python(parent)

    return tuple(
        _build_chain(node, readers, object_reuse)
        for node in operators
        if isinstance(node, ChainOperator) and is_head(node)
    )


def choose_copy(
    sender: OperatorAttributes,
    receiver: OperatorAttributes,
    *,
    names: tuple[str, str] = ("the sender", "the receiver"),
    object_reuse: bool = False,
) -> Decision:
    """``"reuse"``, ``"shallow"`` or ``"deep"``, for records from one operator to the next of a chain.

    With ``object_reuse`` (``pipeline.object-reuse``) nothing is copied, whatever the attributes are.
    """
    first, second = names
    if object_reuse:
        return Decision("reuse", ("pipeline.object-reuse is true",))
    if sender.output_value_stored:
        return Decision(
            "deep",
            (f"{first} may use its output records again",),
            (f"declare is_output_value_stored = False on the function of {first}, if it does not",),
        )
    if receiver.input_record_stored:
        return Decision(
            "shallow",
            (f"{second} may keep or change its record",),
            (f"declare input_record_stored=False on {second}, if it does not",),
        )
    return Decision("reuse", (f"{first} does not use its output records again, {second} keeps no record",))


def _build_chain(head: ChainOperator, readers: Mapping[Operator, list[Operator]], reuse: bool) -> Chain:
    members: list[ChainOperator] = []
    copies: dict[tuple[ChainOperator, ChainOperator], Decision] = {}
    outputs: dict[ChainOperator, Decision] = {}

    def decide(node: ChainOperator, receiver: ChainOperator | None) -> Decision:
        if node.emits_batches and (receiver is not None or isinstance(node, MapBatches)):
            return Decision("reuse", (f"{node.name} emits Arrow batches, which cannot be changed",))
        attributes = _COLLECTOR if receiver is None else receiver.attributes()
        names = node.name, "what collects them" if receiver is None else receiver.name
        return choose_copy(node.attributes(), attributes, names=names, object_reuse=reuse)

    def visit(node: ChainOperator) -> None:
        members.append(node)
        following = [each for each in readers[node] if isinstance(each, PythonOperator)]
        if not following or len(following) < len(readers[node]):
            outputs[node] = decide(node, None)
            return
        for receiver in following:
            copies[node, receiver] = decide(node, receiver)
            visit(receiver)

    visit(head)
    return Chain(tuple(members), copies, outputs)
