"""Copies between Python functions are decided once, by the attributes of sender and receiver."""

import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowcore import (
    Flow,
    KafkaTopic,
    OperatorAttributes,
    OperatorAttributesBuilder,
    Parquet,
    Stream,
)
from flowcore.api.operators import Operator, PythonOperator
from flowcore.planner import plan_flow
from flowcore.planner.model import Chain
from flowcore.planner.plan import Plan
from flowcore.planner.rules.copies import build_chains, choose_copy
from flowcore.settings import Settings
from tests.idle_functions import IdleRich

ROW = "a INT, b STRING"

# output_value_stored of the sender, input_record_stored of the receiver, pipeline.object-reuse
TABLE = {
    (False, False, False): "reuse",
    (False, True, False): "shallow",
    (True, False, False): "deep",
    (True, True, False): "deep",
    (False, False, True): "reuse",
    (False, True, True): "reuse",
    (True, False, True): "reuse",
    (True, True, True): "reuse",
}


@pytest.mark.parametrize("case", TABLE, ids=str)
def test_copy_is_decided_by_the_table(case: tuple[bool, bool, bool]) -> None:
    """A stored value needs a deep copy, a stored record a shallow one; object reuse needs none."""
    stored, kept, reuse = case
    sender = OperatorAttributes(output_value_stored=stored)
    receiver = OperatorAttributes(input_record_stored=kept)

    decision = choose_copy(sender, receiver, names=("a", "b"), object_reuse=reuse)

    assert decision.value == TABLE[case]
    assert decision.reasons
    assert bool(decision.change) == (decision.value != "reuse")


@pytest.mark.parametrize("field", ["output_only_at_end", "output_on_checkpoint", "output_idempotent"])
def test_copy_does_not_depend_on_other_attributes(field: str) -> None:
    """They concern the time of output, not the ownership of objects."""
    for value in (True, False):
        sender = OperatorAttributes(output_value_stored=False, **{field: value})
        receiver = OperatorAttributes(input_record_stored=False, **{field: value})

        assert choose_copy(sender, receiver).value == "reuse"


def _same(record: Any) -> Any:
    return record


class _Rich(IdleRich):
    pass


def _stored(value: bool) -> OperatorAttributesBuilder:
    return OperatorAttributesBuilder().set_output_value_stored(value)


class _FlowBuilder:
    """Builds a flow; `plan` writes each passed stream to a topic of its name."""

    def __init__(self) -> None:
        self.flow = Flow("f")
        self.bids = self.flow.read("bids", KafkaTopic("bids", schema=ROW))

    def map(self, parent: Stream, name: str, **settings: Any) -> Stream:
        settings = {"function": _same, "schema": ROW, **settings}
        return parent.map(name=name, **settings)

    def plan(self, *ends: Stream, **settings: Any) -> Plan:
        for end in ends:
            end.write(f"to_{end.operator.name}", KafkaTopic(end.operator.name))
        return plan_flow(self.flow, settings=Settings.of(settings, environment={}))


def _chains(plan: Plan) -> tuple[Chain, ...]:
    assert plan.live is not None
    return tuple(chain for query in plan.live.queries for chain in query.chains)


def _copies(chain: Chain) -> dict[str, str]:
    return {f"{one.name} {other.name}": d.value for (one, other), d in chain.copies.items()}


def test_chain_shares_what_its_sender_does_not_keep() -> None:
    """op1(s=false) -> op2(s=true) -> op3: op2 gets op1's objects, op3 none of op2's."""
    builder = _FlowBuilder()
    op1 = builder.map(builder.bids, "op1", attributes=_stored(False))
    op2 = builder.map(op1, "op2", attributes=_stored(True))

    (chain,) = _chains(builder.plan(builder.map(op2, "op3")))

    assert _copies(chain) == {"op1 op2": "reuse", "op2 op3": "deep"}
    assert chain.name == "op1 > op2 > op3"
    assert {node.name: d.value for node, d in chain.outputs.items()} == {"op3": "reuse"}


def test_fan_out_is_decided_for_each_receiver() -> None:
    """op1(s=false) -> {op2, op3(s=true) -> {op4, op5}}: op4 and op5 share no objects."""
    builder = _FlowBuilder()
    op1 = builder.map(builder.bids, "op1", attributes=_stored(False))
    op2, op3 = builder.map(op1, "op2"), builder.map(op1, "op3", attributes=_stored(True))
    op4, op5 = builder.map(op3, "op4"), builder.map(op3, "op5")

    (chain,) = _chains(builder.plan(op2, op4, op5))

    assert _copies(chain) == {"op1 op2": "reuse", "op1 op3": "reuse", "op3 op4": "deep", "op3 op5": "deep"}
    assert chain.name == "op1 > {op2, op3 > {op4, op5}}"
    assert [node.name for node in chain.receivers(chain.head)] == ["op2", "op3"]
    assert {node.name for node in chain.outputs} == {"op2", "op4", "op5"}


def test_fan_out_copies_only_for_the_receiver_that_asks() -> None:
    """A receiver that changes its record gets a copy; the other receiver gets the object."""
    builder = _FlowBuilder()
    op1 = builder.map(builder.bids, "op1")
    changing = OperatorAttributesBuilder().set_input_record_stored(True)

    (chain,) = _chains(builder.plan(builder.map(op1, "op2", attributes=changing), builder.map(op1, "op3")))

    assert _copies(chain) == {"op1 op2": "shallow", "op1 op3": "reuse"}


def test_nothing_declared_is_copied_everywhere() -> None:
    """Operators without declared attributes get copies, and their output is copied, too."""
    builder = _FlowBuilder()
    op1 = builder.map(builder.bids, "op1", attributes=OperatorAttributes())

    (chain,) = _chains(builder.plan(builder.map(op1, "op2", attributes=OperatorAttributes())))

    assert _copies(chain) == {"op1 op2": "deep"}
    assert [decision.value for decision in chain.outputs.values()] == ["deep"]


@pytest.mark.parametrize("reuse", [False, True])
def test_object_reuse_is_a_setting(reuse: bool) -> None:
    """It overrides all attributes, also for the outputs of a chain."""
    builder = _FlowBuilder()
    op1 = builder.map(builder.bids, "op1", function=_Rich())
    plan = builder.plan(builder.map(op1, "op2", function=_Rich()), **{"pipeline.object-reuse": reuse})
    (chain,) = _chains(plan)
    wanted = "reuse" if reuse else "deep"

    assert [d.value for d in (*chain.copies.values(), *chain.outputs.values())] == [wanted, wanted]


def test_batches_are_never_copied_on_their_way_on() -> None:
    """An Arrow batch is immutable; records that become a batch are copied like others."""
    builder = _FlowBuilder()
    batches = builder.map(builder.bids, "op1", function=_Rich()).map_batches(_Rich(), schema=ROW, name="op2")

    (chain,) = _chains(builder.plan(builder.map(batches, "op3")))

    assert _copies(chain) == {"op1 op2": "deep", "op2 op3": "reuse"}


def test_chain_ends_at_another_reader() -> None:
    """The records leave the worker there, so downstream functions are a new call."""
    builder = _FlowBuilder()
    op1 = builder.map(builder.bids, "op1")
    plan = builder.plan(builder.map(op1, "op2"), op1.select("a", name="native"))

    assert [chain.name for chain in _chains(plan)] == ["op1", "op2"]


def test_chains_are_those_of_one_query() -> None:
    """Each query has its own readers, so it has its own chains."""
    builder = _FlowBuilder()
    op1 = builder.map(builder.bids, "op1")
    counted = builder.map(op1, "op2").aggregate(by="a", n="count(*)", name="counted")
    plan = builder.plan(builder.map(op1, "op3"), counted)
    assert plan.live is not None

    named = {query.name: [chain.name for chain in query.chains] for query in plan.live.queries}

    assert named == {"bids-batches": ["op1 > op3"], "to_counted": ["op1 > op2"]}


def test_bounded_stages_have_chains_too() -> None:
    """Bounded input is chained as a stream is."""
    flow = Flow("f")
    sales = flow.read("sales", Parquet("sales", schema=ROW))
    sales.filter(_same, name="op1").map(_Rich(), schema=ROW, name="op2").write("out", Parquet("out"))
    (stage,) = plan_flow(flow).bounded
    (chain,) = stage.chains

    assert chain.name == "op1 > op2"
    assert {node.name: d.value for node, d in chain.outputs.items()} == {"op2": "deep"}


KINDS: list[Callable[[Stream], Stream]] = [
    lambda s: s.map(_same, schema=ROW),
    lambda s: s.map(_Rich(), schema=ROW),
    lambda s: s.filter(_same),
    lambda s: s.flat_map(_Rich(), schema=ROW),
    lambda s: s.map_batches(_same, schema=ROW),
    lambda s: s.select("a", "b"),
    lambda s: s.where("a > 1"),
]


@settings(max_examples=150, deadline=None)
@given(steps=st.lists(st.tuples(st.integers(0, 50), st.sampled_from(range(len(KINDS)))), max_size=14))
def test_chains_divide_the_python_operators(steps: list[tuple[int, int]]) -> None:
    """Each operator is in one chain; an edge has a copy within it, or its sender is an output."""
    flow = Flow("f")
    streams = [flow.read("bids", KafkaTopic("bids", schema=ROW))]
    for parent, kind in steps:
        streams.append(KINDS[kind](streams[parent % len(streams)]))
    operators: tuple[Operator, ...] = flow.operators

    chains = build_chains(operators)
    inside = [node for chain in chains for node in chain.operators]
    python = [node for node in operators if isinstance(node, PythonOperator)]

    assert sorted(node.name for node in inside) == sorted(node.name for node in python)
    for chain in chains:
        assert not {*chain.outputs} & {sender for sender, _ in chain.copies}
        assert {*chain.outputs} | {sender for sender, _ in chain.copies} == {*chain.operators}
        assert {receiver for _, receiver in chain.copies} == {*chain.operators[1:]}
        assert all(receiver.inputs == (sender,) for sender, receiver in chain.copies)
    heads = {chain.head for chain in chains}
    for node in heads:
        (parent,) = node.inputs
        readers = [each for each in operators if parent in each.inputs]
        assert not isinstance(parent, PythonOperator) or not all(
            isinstance(each, PythonOperator) for each in readers
        )


def test_decisions_can_be_sent_to_a_worker() -> None:
    """They are plain data."""
    decision = choose_copy(OperatorAttributes(), OperatorAttributes())

    assert pickle.loads(pickle.dumps(decision)) == decision  # noqa: S301 - our own bytes
