"""Rows that are no records of a chain, and columns that are not its, get past its functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowcore.chains import ChainSpec, Kind, PassingChain, Receiver, Step, Way
from flowcore.errors import FunctionError

INPUT: list[Any] = [("n", pa.int64())]
ROWS: list[Any] = [
    ("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()), ("_ordinal", pa.string()),
    ("_value", pa.binary()), ("_lane", pa.int32()), ("_c1", pa.int64()), ("_c2", pa.string()),
]  # fmt: skip
OUTPUT: list[Any] = [*ROWS[:6], ROWS[7], ("_c3", pa.int64())]
Record = dict[str, Any]


def _step(function: Callable[[Any], Any], kind: Kind, *behind: Step, outlet: int | None = 0) -> Step:
    return Step(
        name="op", kind=kind, function=function, schema=pa.schema(INPUT), outlet=outlet,
        receivers=tuple(map(Receiver, behind)), stores_output=False, stores_input=False,
    )  # fmt: skip


def _chain(head: Step, *ways: Way, number: int | None = 1) -> PassingChain:
    return PassingChain(
        spec=ChainSpec(pa.schema(INPUT), head), check="off", inputs={"n": "_c1"}, lane="_lane", number=number,
        carried=["topic", "partition", "offset", "_ordinal"], ordinal="_ordinal",
        coordinates=["topic", "partition", "offset"], schema=pa.schema(OUTPUT),
        ways=ways or [Way(lane=1, columns={"n": "_c3"}, step="s")],
    )  # fmt: skip


def _batch(*lanes: int, ordinal: str = "0") -> pa.RecordBatch:
    """One row for each lane; the offset is its place, bytes are in rows that are no records."""
    rows = [
        {
            "topic": "t", "partition": 0, "offset": place, "_ordinal": ordinal if lane > 0 else None,
            "_value": b"x" if lane < 1 else None, "_lane": lane, "_c1": place * 10 if lane > 0 else None,
            "_c2": f"other {place}" if lane > 1 else None,
        }
        for place, lane in enumerate(lanes)
    ]  # fmt: skip
    return pa.RecordBatch.from_pylist(rows, schema=pa.schema(ROWS))


def _rows(chain: PassingChain, *batches: pa.RecordBatch) -> list[Record]:
    return [row for batch in chain.run(batches) for row in batch.to_pylist()]


def _repeated(record: Record) -> Iterator[Record]:
    for _ in range(record["n"] // 10):
        yield record


def test_other_rows_pass_as_they_are_behind_the_records() -> None:
    """A function that fails on everything never sees them."""
    found = _rows(_chain(_step(lambda _: 1 // 0, "map")), _batch(0, 2, -1))

    assert [row["_lane"] for row in found] == [0, 2, -1]
    assert [row["_value"] for row in found] == [b"x", None, b"x"]
    assert [row["_c2"] for row in found] == [None, "other 1", None]
    assert all(row["_c3"] is None for row in found)


def test_marker_does_not_overtake_the_records_before_it() -> None:
    """Of one batch."""
    found = _rows(_chain(_step(dict, "map")), _batch(1, -1, 1), _batch(1, 1))

    assert [row["_lane"] for row in found] == [1, 1, -1, 1, 1]
    assert [row["_c3"] for row in found] == [0, 20, None, 0, 10]


@pytest.mark.parametrize("ordinal", ["0", "0._c1-2"])
def test_outputs_of_one_record_are_told_apart(ordinal: str) -> None:
    """The first one keeps its ordinal."""
    found = _rows(_chain(_step(_repeated, "flat_map")), _batch(1, 0, 1, 1, ordinal=ordinal))

    records = [(row["offset"], row["_ordinal"], row["_c3"]) for row in found if row["_lane"] == 1]
    second = [(2, ordinal, 20), (2, f"{ordinal}.s-1", 20)]
    third = [(3, ordinal, 30), (3, f"{ordinal}.s-1", 30), (3, f"{ordinal}.s-2", 30)]
    assert records == [*second, *third]


def test_filter_keeps_the_coordinates_of_what_it_keeps() -> None:
    """And each output goes on in the lane of its outlet."""
    branches = _step(lambda r: r["n"] > 10, "filter", outlet=0), _step(dict, "map", outlet=1)
    head = _step(dict, "map", *branches, outlet=None)
    ways = [Way(lane=number, columns={"n": "_c3"}, step=None) for number in (7, 8)]

    found = _rows(_chain(head, *ways), _batch(1, 1, 1))

    assert [(row["_lane"], row["offset"]) for row in found] == [(7, 2), (8, 0), (8, 1), (8, 2)]
    assert {row["_ordinal"] for row in found} == {"0"}


def test_batch_function_has_no_coordinates_to_keep() -> None:
    """Null, where other rows have them."""
    found = _rows(_chain(_step(lambda batch: batch.slice(1), "map_batches")), _batch(1, 0, 1))

    assert [(row["_lane"], row["topic"], row["offset"], row["_c3"]) for row in found] == [
        (1, None, None, 20), (0, "t", 1, None),
    ]  # fmt: skip


def test_error_names_the_coordinates() -> None:
    """Of the record, wherever it was in the batch."""
    with pytest.raises(FunctionError, match=r"for the record t\[0\]@2"):
        _rows(_chain(_step(lambda r: 1 // (r["n"] - 20) and r, "map")), _batch(1, 0, 1))


def test_all_rows_are_the_chains_where_no_lanes_are() -> None:
    """Whatever their number."""
    found = _rows(_chain(_step(dict, "map"), number=None), _batch(1, 2))

    assert [row["_c3"] for row in found] == [0, 10]


@given(st.lists(st.lists(st.integers(-1, 3), max_size=6), max_size=4))
def test_every_row_comes_out_once(lanes: list[list[int]]) -> None:
    """Each with its own coordinates, in the order of its kind."""
    batches = [_batch(*each) for each in lanes]

    found = [list(_chain(_step(dict, "map")).run([batch])) for batch in batches]

    for given_rows, made in zip(lanes, found, strict=True):
        rows = [row for batch in made for row in batch.to_pylist()]
        assert [(row["_lane"], row["offset"]) for row in rows] == [
            *((lane, place) for place, lane in enumerate(given_rows) if lane == 1),
            *((lane, place) for place, lane in enumerate(given_rows) if lane != 1),
        ]
