"""A chain runs all kinds of steps, and an error names the failing operator and the record."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from flowcore.chains import ChainTask, RecordDict, StepKind
from flowcore.errors import FunctionError
from tests.unit.chains.spied_ops import INPUT, SCHEMA, Op, Tree, chain, line, outputs, plain


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


@pytest.mark.parametrize("check", ["off", "full"])
def test_batch_that_leaves_and_has_a_receiver_leaves_once(check: Any) -> None:
    """Its rows leave as the batch that the function returned, not again as the records that it feeds."""
    wide = plain("wide", kind="map_batches")
    wide.function = lambda batch: batch
    spec = chain(line(wide, plain("last")), spied=False)
    spec = replace(spec, head=replace(spec.head, outlet=1))

    assert outputs(spec, check=check) == [INPUT.to_pylist(), INPUT.to_pylist()]


@pytest.mark.parametrize("check", ["off", "full"])
def test_output_of_a_process_leaves_beside_its_receiver(check: Any) -> None:
    """The records of a process are the input of its chain, and its output, too."""
    spec = chain(line(plain("process", kind="process"), plain("last")), spied=False)
    task = ChainTask(replace(spec, head=replace(spec.head, outlet=1)), check=check)

    found = task.run_records(INPUT.to_pylist())

    assert {each.outlet: each.batch.to_pylist() for each in found} == dict.fromkeys((0, 1), INPUT.to_pylist())


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
