"""What an exchange has packed becomes the rows that are packed for the next one, in their order."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from flowcore.keyed.arrow_expressions import Constant, Field, FunctionCall
from flowcore.keyed.control import PARTITION_BITS
from flowcore.keyed.message_reader import MessageColumns
from flowcore.keyed.output_reader import (
    PACKED_SOURCE,
    READ_KEY_GROUP,
    READ_POSITION,
    ControlOutput,
    PassingOutput,
    RecordOutput,
)
from flowcore.keyed.record_columns import PackingColumns, RecordColumns
from flowcore.keyed.row_reader import RowReader

_INPUT: dict[str, pa.DataType] = {
    "channel": pa.int64(), "offset": pa.int64(), "element": pa.binary(), "passes": pa.string(),
    "bytes": pa.binary(), "total": pa.int64(), "from": pa.int32(), "at": pa.int64(), "group": pa.int32(),
}  # fmt: skip
INPUT = pa.schema(_INPUT)
TOTALS = pa.schema([("sum", pa.int64())])
ELEMENTS = pa.schema([("element", pa.binary())])
_PASSED: dict[str, pa.DataType] = {
    "kind": pa.int32(), "source": pa.int32(), "partition": pa.int32(), "offset": pa.int64(),
    "value": pa.binary(), "element": pa.binary(),
}  # fmt: skip
PASSED = pa.schema(_PASSED)
CHANNELS = MessageColumns(
    channel="channel", offset="offset", value="value", written_ms="written", latest_ms="latest"
)


def _reader(*, drops: bool = False) -> RowReader:
    records = RecordColumns(
        columns={"total": Field("sum"), "from": Field(READ_KEY_GROUP), "at": Field(READ_POSITION)},
        key_groups={"group": (["total"], False)},
        partition=Constant(0),
        kept=FunctionCall("greater", (Field("sum"), Constant(1))) if drops else None,
        drops=drops,
    )
    place = ("source", "partition", "offset")
    return RowReader(
        names=CHANNELS,
        output="output",
        outputs={
            "5/results": RecordOutput(source=5, schema=TOTALS, records=records),
            "5/control": ControlOutput(source=5, schema=ELEMENTS, element="element"),
            "-1/passing": PassingOutput(schema=PASSED, value="value", coordinates=place),
        },
        into=PackingColumns(
            schema=INPUT, channel="channel", offset="offset", passes="passes", passing_value="bytes",
            key_groups=4, element="element",
        ),
    )  # fmt: skip


def _packed(*outputs: tuple[int, str, pa.Schema, list[dict[str, Any]]]) -> pa.RecordBatch:
    """Packed outputs of key groups."""
    contents = [
        pa.RecordBatch.from_pylist(rows, schema=schema).serialize().to_pybytes()
        for _, _, schema, rows in outputs
    ]
    columns: dict[str, pa.Array[Any]] = {
        "channel": pa.array([(PACKED_SOURCE << PARTITION_BITS) + group for group, *_ in outputs], pa.int64()),
        "offset": pa.nulls(len(outputs), pa.int64()),
        "value": pa.array(contents, pa.binary()),
        "written": pa.nulls(len(outputs), pa.int64()),
        "latest": pa.nulls(len(outputs), pa.int64()),
        "output": pa.array([name for _, name, *_ in outputs]),
    }
    return pa.record_batch(columns)


def _rows(reader: RowReader, *batches: pa.RecordBatch) -> list[dict[str, Any]]:
    found = list(reader.read(batches))
    assert all(each.schema == INPUT for each in found)
    return [row for each in found for row in each.to_pylist()]


def _totals(*numbers: int) -> tuple[str, pa.Schema, list[dict[str, Any]]]:
    return "5/results", TOTALS, [{"sum": number} for number in numbers]


def test_records_and_elements_are_in_the_order_of_their_key_group() -> None:
    """The channel is that of the key group; positions count all rows of a task."""
    element = ("5/control", ELEMENTS, [{"element": b"w"}])
    first = _packed((3, *_totals(1, 2)), (3, *element), (3, *_totals(4)), (7, *_totals(5)))

    found = _rows(_reader(), first, _packed((8, *_totals(6))))

    where = [(row["channel"] - (5 << PARTITION_BITS), row["offset"]) for row in found]
    assert where == [(3, 0), (3, 1), (3, 2), (3, 3), (7, 4), (8, 5)]
    assert [row["total"] for row in found] == [1, 2, None, 4, 5, 6]
    assert [row["element"] for row in found] == [None, None, b"w", None, None, None]
    assert [(row["from"], row["at"]) for row in found if row["total"]] == [
        (3, 0), (3, 1), (3, 3), (7, 4), (8, 5),
    ]  # fmt: skip
    assert all((row["group"] is None) == (row["total"] is None) for row in found)


def test_dropped_records_are_gone_and_the_others_keep_their_order() -> None:
    """Also where a packed output loses all of its rows."""
    found = _rows(_reader(drops=True), _packed((3, *_totals(1, 2)), (4, *_totals(1)), (5, *_totals(3, 0, 4))))

    assert [(row["total"], row["at"], row["from"]) for row in found] == [(2, 1, 3), (3, 3, 5), (4, 5, 5)]


def test_rows_that_pass_keep_their_channel_and_bytes() -> None:
    """Those of a topic's partition; the tag of a bad message, and outputs that nobody reads, are left out."""
    row = {"kind": 0, "source": 2, "partition": 6, "offset": 40, "value": b"x", "element": b"\xffx"}
    counters = pa.schema([("n", pa.int64())])

    (found,) = _rows(
        _reader(), _packed((1, "5/_counters", counters, [{"n": 1}]), (1, "-1/passing", PASSED, [row]))
    )

    assert (found["channel"], found["offset"], found["bytes"]) == ((2 << PARTITION_BITS) + 6, 40, b"x")
    assert json.loads(found["passes"]) == {"kind": 0, "source": 2, "partition": 6, "offset": 40}
