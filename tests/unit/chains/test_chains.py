"""A chain calls each function with the copy that was chosen, and reports whose function failed."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowcore.api.attributes import OperatorAttributes
from flowcore.chains import ChainSpec, ChainTask, Copy, Receiver, RecordDict, Step, StepKind
from flowcore.errors import FunctionError
from flowcore.planner.rules.copies import choose_copy

SCHEMA = pa.schema(
    [("n", pa.int64()), ("tags", pa.list_(pa.string())), ("at", pa.struct([("x", pa.int64())]))]
)
INPUT = pa.RecordBatch.from_pylist(
    [{"n": number, "tags": [f"t{number}"], "at": {"x": number}} for number in range(3)], schema=SCHEMA
)

Tree = tuple["Op", tuple["Tree", ...]]


class Op:
    """An operator that records the objects that it received and emitted."""

    def __init__(
        self, name: str, function: Callable[[Any], Any] = dict, kind: StepKind = "map", **declared: bool
    ) -> None:
        self.name, self.function, self.kind = name, function, kind
        self.attributes = OperatorAttributes(**declared)
        self.received: list[RecordDict] = []
        self.emitted: list[RecordDict] = []

    def __call__(self, record: RecordDict) -> Any:
        """Call the function; keep argument and result, so that no address is reused."""
        self.received.append(record)
        result = self.function(record)
        if self.kind == "flat_map":
            return self._each(result)
        self.emitted.append(record if self.kind == "filter" else result)
        return result

    def _each(self, results: Iterable[RecordDict]) -> Iterable[RecordDict]:
        for result in results:
            self.emitted.append(result)
            yield result


def plain(name: str, function: Callable[[Any], Any] = dict, kind: StepKind = "map") -> Op:
    """Attributes of a plain function: it keeps neither input nor output."""
    return Op(name, function, kind, output_value_stored=False, input_record_stored=False)


def rich(name: str, function: Callable[[RecordDict], Any] = dict) -> Op:
    """Attributes of a rich function, which may keep both."""
    return Op(name, function, output_value_stored=True, input_record_stored=False)


def chain(
    tree: Tree, *, everywhere: Copy | None = None, object_reuse: bool = False, spied: bool = True
) -> ChainSpec:
    """The chain of a tree of operators; leaves are outlets, numbered from the left.

    Args:
        tree: The operators.
        everywhere: Copies that are made whatever was declared.
        object_reuse: The setting.
        spied: Operators remember records, which the check would find.
    """
    outlets = iter(range(99))

    def step(op: Op, downstream: tuple[Tree, ...]) -> Step:
        def between(receiver: OperatorAttributes) -> Any:
            return everywhere or choose_copy(op.attributes, receiver, object_reuse=object_reuse).value

        receivers = tuple(
            Receiver(step(other, rest), between(other.attributes)) for other, rest in downstream
        )
        return Step(
            name=op.name, kind=op.kind, function=op if spied else op.function, schema=SCHEMA,
            receivers=receivers,
            outlet=None if downstream else next(outlets),
            outlet_copy=between(OperatorAttributes(input_record_stored=False)),
            stores_output=op.attributes.output_value_stored, stores_input=op.attributes.input_record_stored,
        )  # fmt: skip

    return ChainSpec(SCHEMA, step(*tree))


def line(*ops: Op) -> Tree:
    """Consecutive operators."""
    first, *rest = ops
    return first, (line(*rest),) if rest else ()


def outputs(spec: ChainSpec, batch: pa.RecordBatch = INPUT, **settings: Any) -> list[list[RecordDict]]:
    """The records of each outlet."""
    task = ChainTask(spec, **settings)
    with task.running():
        found = task.run(batch)
    number = 1 + max((output.outlet for output in found), default=-1)
    return [
        [row for output in found if output.outlet == each for row in output.batch.to_pylist()]
        for each in range(number)
    ]


def _same(receiver: Op, sender: Op) -> bool:
    """Return whether two lists hold the same objects."""
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


def test_every_kind_of_step_in_one_chain() -> None:
    """Records are converted to a batch only for functions of batches, and back downstream of them."""

    def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
        calls.append(batch.num_rows)
        return pa.RecordBatch.from_pylist(
            [{**row, "n": row["n"] * 2} for row in batch.to_pylist()], schema=batch.schema
        )

    calls: list[int] = []
    many = plain("many", lambda r: ({**r, "n": r["n"] * 10 + k} for k in range(3)), "flat_map")
    odd = plain("odd", lambda r: r["n"] % 2, "filter")
    wide, wider = plain("wide", kind="map_batches"), plain("wider", kind="map_batches")
    wide.function = wider.function = doubled
    last = plain("last", lambda r: {**r, "tags": [str(r["n"])]})
    head = plain("head", lambda r: {**r, "n": r["n"] + 1})

    (found,) = outputs(chain(line(head, many, odd, wide, wider, last)))

    assert [(row["n"], row["tags"]) for row in found] == [(n * 4, [str(n * 4)]) for n in (11, 21, 31)]
    assert calls == [3, 3]


@pytest.mark.parametrize("depth", [1, 11, 12, 25, 60], ids=str)
@pytest.mark.parametrize("kind", ["map", "filter", "flat_map"])
def test_chain_may_be_longer_than_python_nests(kind: StepKind, depth: int) -> None:
    """Python compiles at most twenty nested loops; a longer chain still runs."""

    def function(record: RecordDict) -> Any:
        return [record] if kind == "flat_map" else record

    spec = chain(line(*(plain(f"op{number}", function, kind) for number in range(depth))))

    assert outputs(spec) == [INPUT.to_pylist()]


def test_outputs_have_the_number_of_their_input_record() -> None:
    """The number is kept if a step emits several records or none."""
    many = plain("many", lambda r: [r] * r["n"], "flat_map")
    task = ChainTask(
        chain((many, ((plain("a"), ()), (plain("b", lambda r: r["n"] > 1, "filter"), ())))), indexed=True
    )

    first, second = task.run(INPUT)

    assert first.origins == [1, 2, 2]
    assert second.origins == [2, 2]
    assert second.batch.column("n").to_pylist() == [2, 2]


def test_batch_function_drops_the_number_of_the_record() -> None:
    """A batch function may return other rows in another order, so its output has no record number."""
    wide = plain("wide", kind="map_batches")
    wide.function = lambda batch: batch

    (output,) = ChainTask(chain(line(plain("a"), wide, plain("b"))), indexed=True).run(INPUT)

    assert output.origins is None


def test_long_batch_is_one_batch_to_every_function_and_outlet() -> None:
    """Record numbers and errors refer to the whole batch, however it is processed internally."""
    size = 2_345
    rows: list[RecordDict] = [{"n": n, "tags": [], "at": None} for n in range(size)]
    long = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
    wide = plain("wide", kind="map_batches")
    sizes: list[int] = []

    def noted(batch: pa.RecordBatch) -> pa.RecordBatch:
        sizes.append(batch.num_rows)
        return batch

    wide.function = noted
    tree: Tree = (plain("a", lambda r: r), ((wide, ()), (plain("b", lambda r: r["n"] % 2, "filter"), ())))

    odd, whole = sorted(
        ChainTask(chain(tree, spied=False), indexed=True).run(long), key=lambda output: output.batch.num_rows
    )

    assert sizes == [size]
    assert whole.batch.to_pylist() == rows
    assert odd.origins == odd.batch.column("n").to_pylist() == list(range(1, size, 2))
    for bad in (
        lambda r: {**r, "n": "x" if r["n"] == 1500 else 1},
        lambda r: {**r, "n": 1 // (r["n"] - 1500)},
    ):
        with pytest.raises(FunctionError, match="for the record t:1500"):
            ChainTask(chain(line(plain("bad", bad)), spied=False), indexed=True).run(long, lambda n: f"t:{n}")


def test_empty_batches_call_no_function() -> None:
    """A filter that drops all records leaves an empty batch, too."""
    wide = plain("wide", kind="map_batches")
    wide.function = lambda _: pytest.fail("called with nothing")
    none = plain("none", lambda _: False, "filter")

    assert outputs(chain(line(none, wide))) == []
    assert outputs(chain(line(wide)), INPUT.slice(0, 0)) == []


def _divide(record: RecordDict) -> RecordDict:
    return {**record, "n": 6 // (record["n"] - 1)}


def _raise_late(record: RecordDict) -> Iterable[RecordDict]:
    yield record
    msg = f"none\nof {record['n']}"
    raise LookupError(msg)


ERRORS: dict[str, tuple[Op, str]] = {
    "map": (plain("bad", _divide), "ZeroDivisionError: .* at test_chains.py:[0-9]+ for the record t:1$"),
    "filter": (plain("bad", lambda r: 1 // (r["n"] - 1), "filter"), "ZeroDivisionError.*t:1"),
    "flat_map": (plain("bad", _raise_late, "flat_map"), "LookupError: none of 0 .*t:0"),
    "no_iterable": (plain("bad", lambda r: r["n"], "flat_map"), "TypeError.*not iterable.*t:0"),
    "no_record": (plain("bad", lambda _: None), "emits a NoneType, and a record is a dict.*t:0"),
    "missing": (plain("bad", lambda _: {"n": 1, "at": None}), "without the column 'tags'.*t:0"),
    "type": (plain("bad", lambda r: {**r, "n": "x"}), "emits n='x', which is not int64.*t:0"),
    "late_type": (plain("bad", lambda r: {**r, "n": [] if r["n"] == 2 else 1}), r"emits n=\[\].*t:2"),
}  # fmt: skip


@pytest.mark.parametrize(("bad", "says"), ERRORS.values(), ids=ERRORS)
@pytest.mark.parametrize("check", ["off", "sample", "full"])
def test_error_names_operator_and_record(bad: Op, says: str, check: Any) -> None:
    """The error names the failing function's operator, anywhere in the chain, and the input record."""
    before = plain("before", lambda r: r["n"] < 5, "filter")
    task = ChainTask(chain(line(plain("first"), before, bad), spied=False), indexed=True, check=check)

    with pytest.raises(FunctionError, match=f"operator 'bad'.*{says}") as caught:
        task.run(INPUT, lambda number: f"t:{number}")

    assert "\n" not in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # noqa: S301 - our own


@pytest.mark.parametrize("check", ["off", "full"])
def test_error_shows_a_record_without_coordinates(check: Any) -> None:
    """The record is on one line and shortened."""
    bad = plain("bad", lambda r: r["no such column"])
    long = pa.RecordBatch.from_pylist(
        [{"n": 7, "tags": ["two\nlines", "x" * 999], "at": None}], schema=SCHEMA
    )

    with pytest.raises(FunctionError, match=r"for the record \{'n': 7, 'tags': .*\.\.\.") as caught:
        outputs(chain(line(bad), spied=False), long, check=check)

    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_error_downstream_is_not_that_of_the_operators_before() -> None:
    """A generator is abandoned when a step downstream of it fails."""
    many = plain("many", lambda r: (r for _ in range(2)), "flat_map")

    with pytest.raises(FunctionError, match="operator 'bad'"):
        outputs(chain(line(many, plain("bad", _divide))))


def test_error_when_a_copy_is_made_is_the_senders() -> None:
    """The sender's function emitted something other than a record."""
    two = Op("two", output_value_stored=False, input_record_stored=True)

    with pytest.raises(FunctionError, match=r"operator 'one'.*does not emit dicts"):
        outputs(chain(line(plain("one", lambda r: r["n"]), two)))


@pytest.mark.parametrize(
    ("result", "says"),
    [
        (lambda b: b.to_pylist(), "emits a list, not an Arrow record batch"),
        (lambda b: b.select(["n", "at"]), "without the column 'tags'"),
        (lambda b: b.set_column(0, "n", pa.array(["a", "b", "c"])), "emits n as string, which is not int64"),
        (lambda _: 1 // 0, "ZeroDivisionError"),
    ],
    ids=["list", "missing", "type", "raises"],
)
def test_error_of_a_batch_function_names_it(result: Callable[[Any], Any], says: str) -> None:
    """Its result is checked against the declared schema."""
    wide = plain("wide", kind="map_batches")
    wide.function = result

    with pytest.raises(FunctionError, match=f"operator 'wide'.*{says}"):
        outputs(chain(line(wide)))


def test_batch_function_may_return_a_table_or_types_that_can_be_cast() -> None:
    """Columns may be in any order and there may be additional ones."""
    wide = plain("wide", kind="map_batches")
    wide.function = lambda b: pa.table(
        {"z": [1, 2, 3], "at": b["at"], "tags": b["tags"], "n": b["n"].cast("int32")}
    )

    assert outputs(chain(line(wide))) == [INPUT.to_pylist()]


class Rich:
    """Records when it is opened, called and closed."""

    def __init__(self, fails: str = "") -> None:
        self.calls: list[str] = []
        self.fails = fails

    def open(self) -> None:
        self._call("open")

    def close(self) -> None:
        self._call("close")

    def __call__(self, record: RecordDict) -> RecordDict:
        self._call("record")
        return record

    def method(self, record: RecordDict, _more: int = 0) -> RecordDict:
        """A function that is a method."""
        return self(record)

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name == self.fails:
            msg = f"no {name}"
            raise OSError(msg)


def _rich_chain(*functions: Callable[[RecordDict], RecordDict]) -> ChainSpec:
    last: Step | None = None
    for number, function in reversed(list(enumerate(functions))):
        receivers = () if last is None else (Receiver(last),)
        outlet = 0 if last is None else None
        last = Step(
            name=f"op{number}",
            kind="map",
            function=function,
            schema=SCHEMA,
            receivers=receivers,
            outlet=outlet,
        )
    assert last
    return ChainSpec(SCHEMA, last)


def test_rich_functions_are_open_once_around_all_batches() -> None:
    """A function is opened once, however often its object occurs in the chain."""
    one, two = Rich(), Rich()
    task = ChainTask(_rich_chain(one, two, partial(one.method, _more=1)))

    with task.running():
        for _ in range(2):
            task.run(INPUT.slice(0, 1))

    assert one.calls == ["open", "record", "record", "record", "record", "close"]
    assert two.calls == ["open", "record", "record", "close"]


@pytest.mark.parametrize(
    ("fails", "calls"),
    [
        ("open", (["open", "close"], ["open"])),
        ("record", (["open", "record", "close"], ["open", "record", "close"])),
        ("close", (["open", "record", "close"], ["open", "record", "close"])),
    ],
    ids=["open", "record", "close"],
)
def test_rich_functions_are_closed_when_one_fails(fails: str, calls: tuple[list[str], list[str]]) -> None:
    """All opened functions are closed, and the error names the failing one."""
    one, two = Rich(), Rich(fails)
    task = ChainTask(_rich_chain(one, two))

    with pytest.raises(FunctionError, match=f"operator 'op1'.*no {fails}"), task.running():
        task.run(INPUT.slice(0, 1))

    assert (one.calls, two.calls) == calls


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
