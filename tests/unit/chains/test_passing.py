"""Rows that are not records, and columns outside the schema, pass through a chain unchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowcore.chains import ChainSpec, FailedRows, OutletRows, PassingChain, Receiver, Step, StepKind, task
from flowcore.errors import FunctionError, StateError

INPUT: list[Any] = [("n", pa.int64())]
ROWS: list[Any] = [
    ("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()), ("_ordinal", pa.string()),
    ("_value", pa.binary()), ("_branch", pa.int32()), ("_c1", pa.int64()), ("_c2", pa.string()),
]  # fmt: skip
OUTPUT: list[Any] = [*ROWS[:6], ROWS[7], ("_c3", pa.int64())]
Record = dict[str, Any]


def _step(function: Callable[[Any], Any], kind: StepKind, *downstream: Step, outlet: int | None = 0) -> Step:
    return Step(
        name="op", kind=kind, function=function, schema=pa.schema(INPUT), outlet=outlet,
        receivers=tuple(map(Receiver, downstream)), stores_output=False, stores_input=False,
    )  # fmt: skip


def _chain(head: Step, *outlets: OutletRows, number: int | None = 1) -> PassingChain:
    return PassingChain(
        spec=ChainSpec(pa.schema(INPUT), head), check="off", inputs={"n": "_c1"}, branch="_branch",
        number=number, carried=["topic", "partition", "offset", "_ordinal"],
        identity=["topic", "partition", "offset", "_ordinal"], ordinal="_ordinal",
        coordinates=["topic", "partition", "offset"], schema=pa.schema(OUTPUT),
        outlets=outlets or [OutletRows(branch=1, columns={"n": "_c3"}, step="s")],
    )  # fmt: skip


def _batch(*branches: int, ordinal: str = "0") -> pa.RecordBatch:
    """One row for each branch; the offset is its position; rows that are not records have bytes."""
    rows = [
        {
            "topic": "t", "partition": 0, "offset": place, "_ordinal": ordinal if branch > 0 else None,
            "_value": b"x" if branch < 1 else None, "_branch": branch,
            "_c1": place * 10 if branch > 0 else None,
            "_c2": f"other {place}" if branch > 1 else None,
        }
        for place, branch in enumerate(branches)
    ]  # fmt: skip
    return pa.RecordBatch.from_pylist(rows, schema=pa.schema(ROWS))


def _rows(chain: PassingChain, *batches: pa.RecordBatch) -> list[Record]:
    return [row for batch in chain.run(batches) for row in batch.to_pylist()]


def _repeated(record: Record) -> Iterator[Record]:
    for _ in range(record["n"] // 10):
        yield record


def test_other_rows_pass_unchanged_after_the_records() -> None:
    """Rows that are not records do not reach a function that fails for everything."""
    found = _rows(_chain(_step(lambda _: 1 // 0, "map")), _batch(0, 2, -1))

    assert [row["_branch"] for row in found] == [0, 2, -1]
    assert [row["_value"] for row in found] == [b"x", None, b"x"]
    assert [row["_c2"] for row in found] == [None, "other 1", None]
    assert all(row["_c3"] is None for row in found)


def test_marker_does_not_overtake_the_records_before_it() -> None:
    """The order holds within one batch."""
    found = _rows(_chain(_step(dict, "map")), _batch(1, -1, 1), _batch(1, 1))

    assert [row["_branch"] for row in found] == [1, 1, -1, 1, 1]
    assert [row["_c3"] for row in found] == [0, 20, None, 0, 10]


@pytest.mark.parametrize("ordinal", ["0", "0._c1-2"])
def test_outputs_of_one_record_have_different_ordinals(ordinal: str) -> None:
    """The first output keeps its ordinal."""
    found = _rows(_chain(_step(_repeated, "flat_map")), _batch(1, 0, 1, 1, ordinal=ordinal))

    records = [(row["offset"], row["_ordinal"], row["_c3"]) for row in found if row["_branch"] == 1]
    second = [(2, ordinal, 20), (2, f"{ordinal}.s-1", 20)]
    third = [(3, ordinal, 30), (3, f"{ordinal}.s-1", 30), (3, f"{ordinal}.s-2", 30)]
    assert records == [*second, *third]


def test_outputs_keep_their_records_coordinates_when_there_are_as_many_as_records() -> None:
    """Three records with no, one and two outputs: the number of rows does not tell whose they are."""
    found = _rows(_chain(_step(_repeated, "flat_map")), _batch(1, 1, 1))

    records = [(row["offset"], row["_ordinal"], row["_c3"]) for row in found]
    assert records == [(1, "0", 10), (2, "0", 20), (2, "0.s-1", 20)]


def test_filter_keeps_the_coordinates_of_what_it_keeps() -> None:
    """Each output is in the branch of its outlet."""
    branches = _step(lambda r: r["n"] > 10, "filter", outlet=0), _step(dict, "map", outlet=1)
    head = _step(dict, "map", *branches, outlet=None)
    outlets = [OutletRows(branch=number, columns={"n": "_c3"}, step=None) for number in (7, 8)]

    found = _rows(_chain(head, *outlets), _batch(1, 1, 1))

    assert [(row["_branch"], row["offset"]) for row in found] == [(7, 2), (8, 0), (8, 1), (8, 2)]
    assert {row["_ordinal"] for row in found} == {"0"}


def test_outputs_of_a_batch_function_have_the_identity_of_its_first_record() -> None:
    """The first output keeps its ordinal; the coordinates are those of the first record of the input."""
    found = _rows(_chain(_step(lambda batch: batch.slice(1), "map_batches")), _batch(1, 0, 1))

    assert [(row["_branch"], row["topic"], row["offset"], row["_c3"]) for row in found] == [
        (1, "t", 0, 20), (0, "t", 1, None),
    ]  # fmt: skip


def test_error_names_the_coordinates() -> None:
    """The coordinates are those of the failing record, anywhere in the batch."""
    with pytest.raises(FunctionError, match=r"for the record t\[0\]@2"):
        _rows(_chain(_step(lambda r: 1 // (r["n"] - 20) and r, "map")), _batch(1, 0, 1))


def test_all_rows_are_records_without_branches() -> None:
    """Without a branch column every row is a record."""
    found = _rows(_chain(_step(dict, "map"), number=None), _batch(1, 2))

    assert [row["_c3"] for row in found] == [0, 10]


@given(st.lists(st.lists(st.integers(-1, 3), max_size=6), max_size=4))
def test_every_row_is_emitted_once(branches: list[list[int]]) -> None:
    """Each row keeps its coordinates and the order of its kind."""
    batches = [_batch(*each) for each in branches]

    found = [list(_chain(_step(dict, "map")).run([batch])) for batch in batches]

    for given_rows, made in zip(branches, found, strict=True):
        rows = [row for batch in made for row in batch.to_pylist()]
        assert [(row["_branch"], row["offset"]) for row in rows] == [
            *((branch, place) for place, branch in enumerate(given_rows) if branch == 1),
            *((branch, place) for place, branch in enumerate(given_rows) if branch != 1),
        ]


FAILED = FailedRows(branch=0, time="_kafka_ms", reason="_c2", operator="_failed", value="_value")


def _isolating(head: Step, *outlets: OutletRows) -> PassingChain:
    schema = pa.schema([*OUTPUT, ("_failed", pa.string())])
    return replace(_chain(head, *outlets), schema=schema, failed=FAILED)


def _messages(*branches: int, tombstones: bool = False) -> pa.RecordBatch:
    """The rows of `_batch`, all with the bytes and the time of their message."""
    batch = _timed(_batch(*branches), 1)
    values = [None if tombstones else f"bytes {place}".encode() for place in range(len(branches))]
    field = batch.schema.field("_value")
    return batch.set_column(batch.schema.get_field_index("_value"), field, pa.array(values, field.type))


def _timed(batch: pa.RecordBatch, time_ms: int | None) -> pa.RecordBatch:
    return batch.append_column("_kafka_ms", pa.array([time_ms] * batch.num_rows, pa.int64()))


def _seventh(record: Record) -> Record:
    return {"n": record["n"] // (record["n"] % 70)}


def test_failing_record_becomes_a_bad_message() -> None:
    """It keeps coordinates and bytes; the records around it and other rows are unchanged."""
    chain = _isolating(_step(_seventh, "map"))

    rows = _rows(chain, _messages(1, 1, 2, 1, 1, 1, 1, 1, 1))

    mine = {row["offset"]: row for row in rows if row["_branch"] == 1}
    bad = {row["offset"]: row for row in rows if row["_branch"] == 0}
    assert {**mine, **bad}.keys() == {0, 1, 3, 4, 5, 6, 7, 8}
    assert bad.keys() == {0, 7}
    assert all(bad[place]["_value"] == f"bytes {place}".encode() for place in bad)
    assert all(bad[place]["_failed"] == "op" for place in bad)
    assert "ZeroDivisionError" in bad[7]["_c2"]
    assert "t[0]@7" in bad[7]["_c2"]
    assert [row["offset"] for row in rows if row["_branch"] == 2] == [2]


def test_failing_record_has_no_other_output() -> None:
    """Its earlier outputs, also those of another branch, are not emitted."""

    def some(record: Record) -> Iterator[Record]:
        yield {"n": record["n"]}
        yield {"n": 1 // (record["n"] - 20) * 0}

    kept = _step(lambda record: record, "map", _step(some, "flat_map", outlet=1), outlet=0)
    outlets = (
        OutletRows(branch=1, columns={"n": "_c3"}, step="s"),
        OutletRows(branch=3, columns={"n": "_c3"}, step="s"),
    )

    rows = _rows(_isolating(kept, *outlets), _messages(1, 1, 1, 1))

    offsets = {branch: sorted(r["offset"] for r in rows if r["_branch"] == branch) for branch in (0, 1, 3)}
    assert offsets == {0: [2], 1: [0, 1, 3], 3: [0, 0, 1, 1, 3, 3]}


def test_record_whose_output_does_not_fit_is_a_bad_message() -> None:
    """All such records are found at once, in each branch."""
    odd = _step(lambda record: {"n": "x" if record["n"] % 20 else record["n"]}, "map")

    rows = _rows(_isolating(odd), _messages(*[1] * 2500))

    assert [row["offset"] for row in rows if row["_branch"] == 1] == list(range(0, 2500, 2))
    assert sorted(row["offset"] for row in rows if row["_branch"] == 0) == list(range(1, 2500, 2))
    assert all("emits n='x'" in row["_c2"] for row in rows if row["_branch"] == 0)


class _UnshowableError(Exception):
    """An error that raises when it is shown."""

    def __str__(self) -> str:
        raise self


def _raise_unshowable(_: Record) -> Record:
    raise _UnshowableError


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda _: {"n": 10**5000}, "emits n=<int>"),
        (_raise_unshowable, "raised _UnshowableError: <_UnshowableError>"),
    ],
    ids=["value", "error"],
)
def test_what_cannot_be_shown_is_named_by_its_type(function: Any, reason: str) -> None:
    """Python refuses to write a whole number of more than 4,300 digits."""
    rows = _rows(_isolating(_step(function, "map")), _messages(1, 1))

    assert [row["_branch"] for row in rows] == [0, 0]
    assert all(reason in row["_c2"] for row in rows)


def test_output_that_no_batch_can_hold_is_a_bad_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """The chain runs again on halves, so that only the record that is too large by itself is bad."""

    def concat(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        found = pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
        if pc.sum(found.column("n")).as_py() > 60:
            raise StateError
        return found

    monkeypatch.setattr(task, "concat_batches", concat)

    rows = _rows(_isolating(_step(lambda record: record, "map")), _messages(*[1] * 9))

    assert sorted(row["offset"] for row in rows if row["_branch"] == 1) == list(range(7))
    assert sorted(row["offset"] for row in rows if row["_branch"] == 0) == [7, 8]


def test_failing_tombstone_is_a_bad_message() -> None:
    """It has no bytes, and its source does not ask to stop."""
    rows = _rows(_isolating(_step(_seventh, "map")), _messages(1, 1, tombstones=True))

    assert {row["offset"]: (row["_branch"], row["_value"]) for row in rows} == {0: (0, None), 1: (1, None)}


def test_failing_record_without_its_message_stops_the_chain() -> None:
    """It cannot be a dead letter, since its source asks to stop."""
    with pytest.raises(FunctionError, match=r"ZeroDivisionError.*t\[0\]@0"):
        _rows(_isolating(_step(_seventh, "map")), _timed(_batch(1, 1), None))


def _batch_of_sevenths(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([_seventh(record) for record in batch.to_pylist()], batch.schema)


@pytest.mark.parametrize(
    "head",
    [
        _step(_batch_of_sevenths, "map_batches"),
        _step(lambda record: record, "map", _step(_batch_of_sevenths, "map_batches"), outlet=None),
        _step(lambda batch: batch, "map_batches", _step(_seventh, "map"), outlet=None),
    ],
    ids=["first", "downstream of a function", "upstream of a function"],
)
@given(branches=st.lists(st.sampled_from([1, 1, 1, 2]), max_size=30))
def test_failing_record_of_a_batch_becomes_a_bad_message(head: Step, branches: list[int]) -> None:
    """The function runs again on halves; each output has the coordinates of its batch's first record."""
    rows = _rows(_isolating(head), _messages(*branches))

    mine = [place for place, branch in enumerate(branches) if branch == 1]
    good = [place for place in mine if place % 7]
    made = [row for row in rows if row["_branch"] == 1]
    assert sorted(row["offset"] for row in rows if row["_branch"] == 0) == [p for p in mine if not p % 7]
    assert [row["_c3"] for row in made] == [_seventh({"n": place * 10})["n"] for place in good]
    assert all(row["offset"] <= place for row, place in zip(made, good, strict=True))
    assert {row["offset"] for row in made} <= set(good)
    assert len({(row["offset"], row["_ordinal"]) for row in made}) == len(made)


def test_failing_record_of_a_batch_has_no_other_output() -> None:
    """What other functions of the chain made of it is dropped, and made again for the other records."""
    kept = _step(lambda record: record, "map", _step(_batch_of_sevenths, "map_batches", outlet=1), outlet=0)
    outlets = [OutletRows(branch=branch, columns={"n": "_c3"}, step="s") for branch in (1, 3)]

    rows = _rows(_isolating(kept, *outlets), _messages(1, 1, 1, 1))

    assert [row["offset"] for row in rows if row["_branch"] == 0] == [0]
    assert [row["offset"] for row in rows if row["_branch"] == 1] == [1, 2, 3]
    assert [row["_c3"] for row in rows if row["_branch"] == 3] == [1, 1, 1]


def test_failing_batch_without_its_messages_stops_the_chain() -> None:
    """Its records cannot be dead letters, since their source asks to stop."""
    with pytest.raises(FunctionError, match=r"operator 'op'.*ZeroDivisionError"):
        _rows(_isolating(_step(_batch_of_sevenths, "map_batches")), _timed(_batch(1, 1), None))


def test_failing_record_that_was_made_of_many_becomes_a_message() -> None:
    """Its dead letter has the chain's input as JSON; a late record keeps its place, a message its bytes."""
    chain = _isolating(_step(_seventh, "map"))
    chain.failed = replace(FAILED, made="sales")
    late, messages = _timed(_batch(1, 1), None), _messages(1, 1)
    nulls = (pa.nulls(late.num_rows, late.schema.field(name).type) for name in late.schema.names[:3])
    made = pa.RecordBatch.from_arrays([*nulls, *late.columns[3:]], schema=late.schema)

    rows = _rows(chain, pa.concat_batches([made, late, messages]))

    bad = [row for row in rows if row["_branch"] == 0]
    names = ("topic", "partition", "offset", "_value", "_failed")
    assert [tuple(row[name] for name in names) for row in bad] == [
        ("sales", None, None, b'{"n": 0}', "op"),
        ("t", 0, 0, b'{"n": 0}', "op"),
        ("t", 0, 0, b"bytes 0", "op"),
    ]
    assert all("ZeroDivisionError" in row["_c2"] for row in bad)
    assert [row["_c3"] for row in rows if row["_branch"] == 1] == [1, 1, 1]


@pytest.mark.parametrize("check", ["off", "sample", "full"])
@given(branches=st.lists(st.sampled_from([1, 1, 1, 2]), max_size=30))
def test_every_record_is_emitted_or_bad(check: Any, branches: list[int]) -> None:
    """Each record is exactly one of the two, for every setting of the check."""
    chain = replace(_isolating(_step(_seventh, "map", _step(_seventh, "map"), outlet=None)), check=check)

    rows = _rows(chain, _messages(*branches))

    expected = [place for place, branch in enumerate(branches) if branch == 1 and _fails_twice(place * 10)]
    assert sorted(row["offset"] for row in rows) == list(range(len(branches)))
    assert sorted(row["offset"] for row in rows if row["_branch"] == 0) == expected


def _fails_twice(number: int) -> bool:
    try:
        _seventh(_seventh({"n": number}))
    except ZeroDivisionError:
        return True
    return False


def test_failing_record_affects_only_its_own_batch() -> None:
    """Later batches of the same worker are not affected."""
    rows = _rows(_isolating(_step(_seventh, "map")), _messages(1, 1), _messages(2), _messages(2, 1))

    assert [(row["_branch"], row["offset"]) for row in rows] == [(1, 1), (0, 0), (2, 0), (1, 1), (2, 0)]


def test_check_ignores_failed_records() -> None:
    """After a failure a function may change the one object that it keeps."""
    kept: Record = {}

    def same_object(record: Record) -> Record:
        kept.update(record)
        return kept

    sender = replace(_step(same_object, "map", _step(_seventh, "map"), outlet=None), stores_output=True)

    rows = _rows(replace(_isolating(sender), check="full"), _messages(1, 1))

    assert sorted((row["_branch"], row["offset"]) for row in rows) == [(0, 0), (1, 1)]
