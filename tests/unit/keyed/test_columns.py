"""Columns of rows are concatenated whole, or not at all."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowcore.errors import StateError
from flowcore.keyed import packing
from flowcore.keyed.columns import concat_batches, in_parts
from flowcore.keyed.packed import Packed, PackedKind
from flowcore.keyed.packing import InputColumns, Packing, Recipient


@given(
    st.lists(st.lists(st.text(max_size=20), max_size=6), max_size=12), st.integers(1, 12), st.integers(1, 90)
)
def test_parts_have_all_rows_in_order_and_end_when_they_are_large(
    texts: list[list[str]], rows: int, size_bytes: int
) -> None:
    batches = [pa.record_batch([pa.array(each, pa.string())], ["text"]) for each in texts]

    parts = list(in_parts(batches, rows, size_bytes))

    assert [row for part in parts for row in part.column("text").to_pylist()] == [*chain(*texts)]
    largest = max((batch.nbytes for batch in batches), default=0)
    assert all(part.num_rows < rows + 6 and part.nbytes < size_bytes + largest + 1 for part in parts)
    assert all(part.num_rows >= rows or part.nbytes >= size_bytes // 2 for part in parts[:-1])


def test_more_than_an_array_can_hold_is_an_error_and_not_lost() -> None:
    """Arrow gives several chunks if a column of text has more than 2 GiB."""
    buffers = pa.py_buffer(np.array([0, 1 << 30], np.int32)), pa.py_buffer(bytes(1 << 30))
    batch = pa.record_batch([pa.BinaryArray.from_buffers(pa.binary(), 1, [None, *buffers])], ["content"])

    with pytest.raises(StateError, match="3 rows that belong together have more than 2 GiB"):
        concat_batches([batch] * 3)


def test_packed_rows_leave_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the input that is packed at once nor the packed rows of one batch become larger than a part."""
    monkeypatch.setattr(packing, "_BYTES_AT_ONCE", 1_000)
    schema = pa.schema([("n", pa.int64()), ("text", pa.string())])
    made = Packing(
        inputs=InputColumns(channel="partition", offset="offset"),
        sources=("in",), key_groups=4,
        recipients=(Recipient(key_group="group", columns=("n", "text")),),
    )  # fmt: skip
    batches = [
        pa.record_batch(
            {
                "partition": pa.array([0] * 10, pa.int32()),
                "offset": range(start, start + 10),
                "group": pa.array([number % 4 for number in range(10)], pa.int32()),
                "n": range(start, start + 10),
                "text": ["x" * 50] * 10,
            }
        )
        for start in range(0, 100, 10)
    ]

    found = [part.to_pylist() for part in made.run(batches)]

    items = [Packed(**{name: row[name] for name in Packed._fields}) for part in found for row in part]
    rows = [item.rows(schema) for item in items if item.kind == PackedKind.ROWS]
    assert sorted(n for each in rows for n in each.column("n").to_pylist()) == [*range(100)]
    assert max(sum(len(row["payload"]) for row in part) for part in found) < 3_000
    assert len(found) >= 10
