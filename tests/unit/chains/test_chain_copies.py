"""A chain calls each function with the copy that the plan has chosen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from flowcore.chains import ChainSpec, Receiver, RecordDict, Step
from tests.unit.chains.spied_ops import INPUT, SCHEMA, Op, Tree, chain, line, outputs, plain, rich


def _same(receiver: Op, sender: Op) -> bool:
    """Return whether the receiver got the very objects of the sender."""
    assert receiver.received
    same = {given is put for given, put in zip(receiver.received, sender.emitted, strict=True)}
    assert len(same) == 1
    return same == {True}


def _inner_shared(left: Op, right: Op) -> bool:
    pairs = zip(left.received, right.received, strict=True)
    return any(a["tags"] is b["tags"] or a["at"] is b["at"] for a, b in pairs)


def test_chain_hands_on_the_very_objects_unless_the_sender_keeps_them() -> None:
    """op1 (keeps nothing) -> op2 (keeps its output) -> op3."""
    one, two, three = plain("op1"), rich("op2"), plain("op3")

    outputs(chain(line(one, two, three)))

    assert _same(two, one)
    assert not _same(three, two)
    assert three.received == two.emitted
    assert all(a["tags"] is not b["tags"] for a, b in zip(three.received, two.emitted, strict=True))


def test_fan_out_shares_what_the_sender_does_not_keep_and_nothing_else() -> None:
    """op1 (keeps nothing) -> {op2, op3 (keeps its output) -> {op4, op5}}."""
    one, two, three, four, five = plain("op1"), plain("op2"), rich("op3"), plain("op4"), plain("op5")

    found = outputs(chain((one, ((two, ()), (three, ((four, ()), (five, ())))))))

    assert _same(two, one)
    assert _same(three, one)
    assert not _same(four, three)
    assert not _same(five, three)
    assert not _same(four, five)
    assert not _inner_shared(four, five)
    assert found == [INPUT.to_pylist()] * 3


def test_nothing_declared_is_copied_everywhere() -> None:
    """Without declared attributes not even a list is shared."""
    one, two, three, four = Op("op1"), Op("op2"), Op("op3"), Op("op4")

    outputs(chain((one, ((two, ((three, ()),)), (four, ())))))

    for sender, receiver in ((one, two), (two, three), (one, four)):
        assert not _same(receiver, sender)
        pairs = zip(receiver.received, sender.emitted, strict=True)
        assert all(a == b and a["tags"] is not b["tags"] and a["at"] is not b["at"] for a, b in pairs)
    assert not _inner_shared(two, four)


def test_receiver_that_keeps_its_record_gets_a_shallow_copy() -> None:
    """If the sender keeps nothing, the receiver gets a shallow copy."""
    one, two = plain("op1"), Op("op2", output_value_stored=False, input_record_stored=True)

    outputs(chain(line(one, two)))

    assert not _same(two, one)
    assert all(a["tags"] is b["tags"] for a, b in zip(two.received, one.emitted, strict=True))


def test_object_reuse_makes_no_copy() -> None:
    """The setting overrides the declared attributes."""
    one, two, three = Op("op1"), rich("op2"), Op("op3")

    outputs(chain(line(one, two, three), object_reuse=True))

    assert _same(two, one)
    assert _same(three, two)


def test_copies_are_made_before_any_receiver_is_called() -> None:
    """A receiver that changes its own record does not affect the copy of the next one."""

    def spoil(record: RecordDict) -> RecordDict:
        record["tags"].append("spoilt")
        return record

    one, two, three = plain("op1"), plain("op2", spoil), plain("op3")
    spec = chain((one, ((two, ()), (three, ()))))
    first, second = spec.head.receivers
    step = Step(
        name="op1", kind="map", function=one, schema=SCHEMA,
        receivers=(first, Receiver(second.step, "deep")), stores_output=False,
    )  # fmt: skip

    spoilt, clean = outputs(ChainSpec(SCHEMA, step))

    assert [row["tags"] for row in spoilt] == [["t0", "spoilt"], ["t1", "spoilt"], ["t2", "spoilt"]]
    assert clean == INPUT.to_pylist()


# Functions that keep the promises of their declarations.


class Remembering:
    """Keeps its outputs and changes them later, as declared."""

    def __init__(self) -> None:
        self.kept: list[RecordDict] = []

    def __call__(self, record: RecordDict) -> RecordDict:
        for each in self.kept:
            each["n"] += 1
            each["tags"].append("later")
        new = {**record, "tags": [*record["tags"], "kept"], "at": dict(record["at"])}
        self.kept.append(new)
        return new


class Owning:
    """Keeps and changes the record object that it receives, as declared; values inside it stay unchanged."""

    def __init__(self) -> None:
        self.last: RecordDict = {"n": 0}

    def __call__(self, record: RecordDict) -> RecordDict:
        record["n"] += self.last["n"] % 7
        self.last = record
        return {**record, "at": {"x": record["n"]}}


HONEST: dict[str, Callable[[str], Op]] = {
    "new": lambda name: plain(name, lambda r: {**r, "n": r["n"] + 1, "tags": [*r["tags"], "x"]}),
    "same": lambda name: plain(name, lambda r: r),
    "even": lambda name: plain(name, lambda r: r["n"] % 2 == 0, "filter"),
    "twice": lambda name: plain(name, lambda r: ({**r, "n": r["n"] + k} for k in range(2)), "flat_map"),
    "list": lambda name: plain(name, lambda r: [r, {**r, "n": 0}], "flat_map"),
    "remembering": lambda name: Op(name, Remembering(), output_value_stored=True, input_record_stored=False),
    "owning": lambda name: Op(name, Owning(), output_value_stored=False, input_record_stored=True),
}
SHAPES = st.recursive(
    st.tuples(st.sampled_from(sorted(HONEST)), st.just(())),
    lambda rest: st.tuples(
        st.sampled_from(sorted(HONEST)), st.lists(rest, min_size=1, max_size=3).map(tuple)
    ),
    max_leaves=5,
)


def _grown(shape: Any) -> Tree:
    kind, downstream = shape
    return HONEST[kind](kind), tuple(_grown(each) for each in downstream)


ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "n": st.integers(-9, 9),
            "tags": st.lists(st.sampled_from("ab"), max_size=2),
            "at": st.fixed_dictionaries({"x": st.integers(0, 3)}),
        }
    ),
    max_size=4,
)


@given(shape=SHAPES, rows=ROWS)
def test_decided_copies_give_what_deep_copies_everywhere_give(shape: Any, rows: list[RecordDict]) -> None:
    """For any tree of functions that keep their promises, results are equal; the check finds nothing."""
    batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
    expected = outputs(chain(_grown(shape), everywhere="deep", spied=False), batch)

    for check in ("off", "full", "sample"):
        assert outputs(chain(_grown(shape), spied=False), batch, check=check) == expected
