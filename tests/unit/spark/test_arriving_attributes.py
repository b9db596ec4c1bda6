"""Each record of a partition has the backlog status that its channels had at its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flowcore.elements import EndOfInput, RecordAttributes, StreamElement, Watermark
from flowcore.serializers.formats import RawFormat
from flowcore.serializers.tagged import TaggedSerializer
from flowcore.spark.frame.rows import BACKLOG, BRANCH, CHANNEL, ELEMENT
from flowcore.spark.topics.arriving_attributes import FOLDER, BacklogColumn

SERIALIZER: TaggedSerializer[bytes] = TaggedSerializer(RawFormat())
BEGIN, END = RecordAttributes(backlog=True), RecordAttributes(backlog=False)
SCHEMA = pa.schema(
    [("partition", pa.int32()), ("offset", pa.int64()), (BRANCH, pa.int32()), (ELEMENT, pa.binary()),
     (CHANNEL, pa.string())]
)  # fmt: skip
Given = str | StreamElement[Any] | tuple[StreamElement[Any], str]


def _batch(offset: int, given: Sequence[Given], partition: int = 0) -> pa.RecordBatch:
    """Rows from an offset on: texts are records, the others elements, of a sender if they have one."""
    rows: list[tuple[Any, ...]] = []
    for place, each in enumerate(given, offset):
        element, sender = each if isinstance(each, tuple) else (each, "")
        content = None if isinstance(element, str) else SERIALIZER.encode(element)
        rows.append((partition, place, 1 if content is None else -2, content, sender))
    found = [dict(zip(SCHEMA.names, row, strict=True)) for row in rows]
    return pa.RecordBatch.from_pylist(found, schema=SCHEMA)


@pytest.fixture
def column(tmp_path: Path) -> BacklogColumn:
    return BacklogColumn(str(tmp_path), "bids", lags=False)


def _statuses(column: BacklogColumn, *batches: pa.RecordBatch) -> list[bool]:
    """The status of each record of a task."""
    return [
        row[BACKLOG] for batch in column.run(batches) for row in batch.to_pylist() if row[ELEMENT] is None
    ]


def test_status_holds_from_its_element_on_and_in_later_tasks(column: BacklogColumn) -> None:
    """A task that runs again finds the status of its first offset, not that of its end."""
    assert _statuses(column, _batch(0, ["a", BEGIN, "b"]), _batch(3, ["c"])) == [False, True, True]
    second = _batch(4, ["d", END, "e", BEGIN, "f"])
    for _ in range(2):
        assert _statuses(column, second) == [True, False, True]
    assert _statuses(column, _batch(0, ["a", BEGIN, "b"])) == [False, True]
    assert _statuses(column, _batch(9, ["g"])) == [True]
    assert _statuses(column, _batch(9, ["g"], partition=1)) == [False]
    assert _statuses(replace(column, topic="asks"), _batch(9, ["g"])) == [False]


def test_senders_are_merged(column: BacklogColumn) -> None:
    """A partition is in backlog while a sender is; a sender that has ended does not count."""
    begin = [(BEGIN, "one"), (BEGIN, "two"), "a", (END, "one"), "b"]
    assert _statuses(column, _batch(0, begin)) == [True, True]
    assert _statuses(column, _batch(5, [(Watermark(7), "two"), "c", (EndOfInput(), "two"), "d"])) == [
        True,
        False,
    ]


def test_records_of_a_query_that_lags_are_backlog(column: BacklogColumn) -> None:
    """The status of the partition is kept nevertheless."""
    assert _statuses(replace(column, lags=True), _batch(0, ["a", END, "b"])) == [True, True]
    assert _statuses(replace(column, lags=True), _batch(3, [BEGIN, "c", END, BEGIN])) == [True]
    assert _statuses(column, _batch(7, ["d", END, "e"])) == [True, False]


def test_files_are_few(column: BacklogColumn, tmp_path: Path) -> None:
    """A task writes one file, and only if attributes have arrived; a hundred of a partition are kept."""
    assert _statuses(column, _batch(0, ["a", Watermark(3), "b"]), _batch(3, [])) == [False, False]
    assert not (tmp_path / FOLDER).exists()
    for number in range(120):
        assert _statuses(column, _batch(10 * number, ["a", BEGIN, END, BEGIN, "b", END])) == [False, True]
    files = sorted(int(each.stem) for each in (tmp_path / FOLDER / "bids-0").iterdir())
    assert files == [10 * number + 6 for number in range(20, 120)]
