"""Messages become the rows that are packed: records with their columns, and what is none with its bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from flowcore.keyed.arrow_expressions import Constant, Field, FunctionCall
from flowcore.keyed.control import PARTITION_BITS
from flowcore.keyed.key_group_hash import key_groups_of
from flowcore.keyed.message_reader import (
    READ_OFFSET,
    READ_PARTITION,
    READ_TIME,
    MessageColumns,
    MessageSource,
)
from flowcore.keyed.record_columns import PackingColumns, RecordColumns
from flowcore.keyed.row_reader import RowReader
from flowcore.serializers.formats.json_arrow import JsonArrowFormat
from flowcore.serializers.formats.json_text import JsonFormat

FORMAT = JsonArrowFormat(JsonFormat.of([("shop", "STRING"), ("at", "BIGINT")]))
_INPUT: dict[str, pa.DataType] = {
        "channel": pa.int64(), "offset": pa.int64(), "passes": pa.string(), "bytes": pa.binary(),
        "shop": pa.string(), "time": pa.int64(), "p": pa.int32(), "o": pa.int64(), "side": pa.bool_(),
        "group": pa.int32(),
}  # fmt: skip
INPUT = pa.schema(_INPUT)


def _reader(*, bad: Mapping[str, Any] | None, spreads: bool = False, **source: Any) -> RowReader:
    given = {"time": "at", "needs_time": True, "limits_time": True, "bad": bad, **source}
    columns = {
        "shop": Field("shop"),
        "time": Field(READ_TIME),
        "p": Field(READ_PARTITION),
        "o": Field(READ_OFFSET),
    }
    records = [
        RecordColumns(
            columns={**columns, "side": Constant(bool(number))}, key_groups={"group": (["shop"], spreads)},
            partition=Field(READ_PARTITION),
        )
        for number in (0, 1)
    ]  # fmt: skip
    read = MessageSource(value_format=FORMAT, coordinates=("p", "o", "w"), **given)
    return RowReader(
        names=MessageColumns(
            channel="channel", offset="offset", value="value", written_ms="written", latest_ms="latest"
        ),
        messages={number: (read, each) for number, each in enumerate(records)},
        into=PackingColumns(
            schema=INPUT, channel="channel", offset="offset", passes="passes", passing_value="bytes",
            key_groups=4,
        ),
    )  # fmt: skip


def _read(reader: RowReader, *messages: tuple[int, int, bytes | None]) -> list[dict[str, Any]]:
    """The rows of messages with source, partition and value; their offsets count from 0."""
    channels = [(source << PARTITION_BITS) + partition for source, partition, _ in messages]
    columns: dict[str, pa.Array[Any]] = {
        "channel": pa.array(channels, pa.int64()),
        "offset": pa.array(range(len(messages)), pa.int64()),
        "value": pa.array([value for *_, value in messages], pa.binary()),
        "written": pa.array([500] * len(messages), pa.int64()),
        "latest": pa.array([1_000] * len(messages), pa.int64()),
    }
    found = list(reader.read([pa.record_batch(columns)]))
    assert all(each.schema == INPUT for each in found)
    return [row for each in found for row in each.to_pylist()]


def test_records_of_two_sources_have_their_own_columns() -> None:
    """Fields, time, place and what is the same in all records of a source."""
    first, second = _read(_reader(bad={}), (0, 3, b'{"shop":"a","at":7}'), (1, 2, b'{"shop":"b","at":9}'))

    assert first == {
        "channel": 3, "offset": 0, "passes": None, "bytes": None, "shop": "a", "time": 7, "p": 3, "o": 0,
        "side": False, "group": key_groups_of([pa.array(["a"])], 1, 4)[0],
    }  # fmt: skip
    assert (second["shop"], second["time"], second["p"], second["side"]) == ("b", 9, 2, True)


@pytest.mark.parametrize("value", [b"x", None, b"{}", b'{"at":1001}', b'{"shop":1,"at":1}'])
def test_message_that_is_no_record_passes_with_its_bytes(value: bytes | None) -> None:
    """Not a value, without time, or with a time too far ahead; the others are records."""
    messages = [(0, 3, b'{"shop":"a","at":1000}'), (0, 3, value), (0, 3, b'{"at":1}')]

    bad, *good = _read(_reader(bad={"kind": 0}), *messages)

    assert json.loads(bad["passes"]) == {"kind": 0, "p": 3, "o": 1, "w": 500}
    assert (bad["bytes"], bad["offset"], bad["group"]) == (value, 1, None)
    assert [(row["offset"], row["time"], row["passes"]) for row in good] == [(0, 1_000, None), (2, 1, None)]


def test_message_that_is_no_record_is_dropped_where_none_passes() -> None:
    """Another query writes the dead letters."""
    assert _read(_reader(bad=None), (0, 3, b"x")) == []


def test_time_is_not_needed_or_limited_where_nothing_follows_it() -> None:
    """Records without time, and from the far future."""
    reader = _reader(bad={}, needs_time=False, limits_time=False)

    found = _read(reader, (0, 0, b"{}"), (0, 0, b'{"at":5000}'))

    assert [row["time"] for row in found] == [None, 5_000]


def test_time_of_the_message_is_that_of_its_record() -> None:
    """If the source declares no event time."""
    (found,) = _read(_reader(bad={}, time=None), (0, 0, b"{}"))

    assert found["time"] == 500


def test_records_without_key_are_spread_by_partition() -> None:
    """Only where the operator asks for that; else all are in one key group."""
    messages = [(0, partition, b'{"at":1}') for partition in range(6)]

    spread = _read(_reader(bad={}, spreads=True), *messages)
    together = _read(_reader(bad={}), *messages)

    assert [row["group"] for row in spread] == [0, 1, 2, 3, 0, 1]
    assert {row["group"] for row in together} == {42 % 4}


def test_record_for_which_a_condition_is_not_true_only_carries_event_time() -> None:
    """It has no key group, also where the condition is null; another condition is a column."""
    is_a = FunctionCall("equal", (Field("shop"), Constant("a")))
    reader = _reader(bad={})
    source, records = reader.messages[0]
    columns = {**records.columns, "side": FunctionCall("invert", (is_a,))}
    records = replace(records, kept=is_a, columns=columns)
    messages = [(0, 0, text) for text in (b'{"shop":"a","at":1}', b'{"shop":"b","at":2}', b'{"at":3}')]

    found = _read(replace(reader, messages={0: (source, records)}), *messages)

    assert [row["group"] is not None for row in found] == [True, False, False]
    assert [row["side"] for row in found] == [False, True, None]
    assert [row["time"] for row in found] == [1, 2, 3]

    (found_a,) = _read(replace(reader, messages={0: (source, replace(records, drops=True))}), *messages)
    assert (found_a["time"], found_a["o"]) == (1, 0), "or it is gone, where its event time does not count"


def test_rows_of_the_query_itself_stay() -> None:
    """They are no messages: their channel is negative."""
    (found,) = _read(_reader(bad={}), (-1, 3, None))

    assert (found["channel"], found["offset"], found["group"]) == ((-1 << PARTITION_BITS) + 3, 0, None)
