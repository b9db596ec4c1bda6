"""Many elements at once have the very bytes that one at a time have, and are judged alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowcore.elements import (
    MAX_TIMESTAMP_MS,
    MIN_TIMESTAMP_MS,
    EndOfInput,
    LatencyMarker,
    Record,
    RecordAttributes,
    Watermark,
    WatermarkStatus,
)
from flowcore.errors import SerializationError
from flowcore.serializers import Tag, TaggedSerializer
from flowcore.serializers.bulk import element_type, tag, untag
from flowcore.serializers.formats import RawFormat

laws = settings(deadline=None)  # how long an example takes says more of the machine
SCALAR = TaggedSerializer(RawFormat())
KINDS = [pa.binary(), pa.large_binary()]

times = st.integers(MIN_TIMESTAMP_MS, MAX_TIMESTAMP_MS) | st.sampled_from(
    [MIN_TIMESTAMP_MS, MAX_TIMESTAMP_MS]
)
values = st.none() | st.binary(max_size=20)
elements = st.one_of(
    st.builds(Record, st.binary(max_size=20), st.none() | times), st.builds(Watermark, times),
    st.builds(WatermarkStatus, st.booleans()), st.builds(RecordAttributes, st.booleans()),
    st.just(EndOfInput()),
    st.builds(LatencyMarker, times, st.text(min_size=1, max_size=9), st.integers(0, 99)),
)  # fmt: skip
any_bytes = st.one_of(
    st.none(), st.binary(max_size=24), elements.map(SCALAR.encode),
    st.builds(lambda first, rest: bytes((first,)) + rest, st.integers(0, 7), st.binary(max_size=20)),
)  # fmt: skip


def _decoded(data: bytes | None) -> Any:
    if data is None:
        return None
    try:
        return SCALAR.decode(data)
    except SerializationError:
        return None


@pytest.mark.parametrize("kind", KINDS, ids=str)
@laws
@given(rows=st.lists(st.tuples(values, st.none() | times)), start=st.integers(0, 3))
def test_tag_writes_what_the_scalar_writes(kind: pa.DataType, rows: list[Any], start: int) -> None:
    """Each row, also of a slice."""
    array = pa.array([value for value, _ in rows], kind).slice(start)
    stamps = pa.array([time for _, time in rows], pa.int64()).slice(start)

    found = tag(array, stamps)

    assert found.type == kind
    assert found.to_pylist() == [
        None if value is None else SCALAR.encode(Record(value, time)) for value, time in rows[start:]
    ]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@laws
@given(rows=st.lists(values), start=st.integers(0, 3))
def test_tag_without_timestamps_adds_one_byte(kind: pa.DataType, rows: list[Any], start: int) -> None:
    """No record has one."""
    found = tag(pa.array(rows, kind).slice(start))

    assert found.to_pylist() == [None if row is None else SCALAR.encode(Record(row)) for row in rows[start:]]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@laws
@given(rows=st.lists(any_bytes), start=st.integers(0, 3))
def test_untag_reads_what_the_scalar_reads(kind: pa.DataType, rows: list[bytes | None], start: int) -> None:
    """A row is bad if and only if the scalar refuses it, and else holds the same."""
    found = untag(pa.array(rows, kind).slice(start))

    expected = [_decoded(row) for row in rows[start:]]
    assert found.bad.to_pylist() == [element is None for element in expected]
    assert found.values.type == kind
    assert found.tags.to_pylist() == [
        None if element is None else (row or b"")[0]
        for element, row in zip(expected, rows[start:], strict=True)
    ]
    assert found.values.to_pylist() == [
        element.value if isinstance(element, Record) else None for element in expected
    ]
    assert found.timestamps_ms.to_pylist() == [
        getattr(element, "timestamp_ms", getattr(element, "marked_ms", None)) for element in expected
    ]


@pytest.mark.parametrize("first", range(256))
def test_untag_judges_every_tag_as_the_scalar_does(first: int) -> None:
    """With bodies of each size that some element has, and others."""
    rows = [bytes((first,)) + bytes(size) for size in (0, 1, 2, 7, 8, 9, 13, 14, 20)]

    assert untag(pa.array(rows)).bad.to_pylist() == [_decoded(row) is None for row in rows]


@pytest.mark.parametrize(
    "element",
    [Record(b"value", 258), Record(b"value"), Watermark(258), LatencyMarker(258, "zażółć", 3),
     WatermarkStatus(True), RecordAttributes(False), EndOfInput()],
    ids=lambda element: type(element).__name__,
)  # fmt: skip
def test_untag_judges_truncated_elements_as_the_scalar_does(element: Any) -> None:
    """Cut at every byte, and with one too many."""
    data = SCALAR.encode(element)
    rows = [data[:size] for size in range(len(data) + 1)] + [data + b"\0"]

    assert untag(pa.array(rows)).bad.to_pylist() == [_decoded(row) is None for row in rows]


@pytest.mark.parametrize("timestamps", [[1, 2, 3], [1, None, 3], [None, None, None], None], ids=str)
def test_tag_and_untag_carry_a_mebibyte(timestamps: list[int | None] | None) -> None:
    """Among empty values."""
    array = pa.array([b"", bytes(1 << 20), b""])
    stamps = None if timestamps is None else pa.array(timestamps, pa.int64())

    found = untag(tag(array, stamps))

    assert found.values.equals(array)
    assert found.timestamps_ms.to_pylist() == (timestamps or [None] * 3)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_bulk_takes_no_rows(kind: pa.DataType) -> None:
    """An empty batch is a batch."""
    found = untag(tag(pa.array([], kind), pa.array([], pa.int64())))

    assert [len(found.tags), len(found.timestamps_ms), len(found.values), len(found.bad)] == [0, 0, 0, 0]
    assert found.values.type == kind


def test_tag_refuses_timestamps_of_other_records() -> None:
    """Fewer or more than values."""
    with pytest.raises(SerializationError, match="1 timestamps for 2 values"):
        tag(pa.array([b"a", b"b"]), pa.array([1]))


@pytest.mark.parametrize(("size", "kind"), [(2**31 - 10, pa.binary()), (2**31 - 9, pa.large_binary())])
def test_tag_widens_what_would_not_fit(size: int, kind: pa.DataType) -> None:
    """Two gibibytes of elements need large offsets, and the last byte before does not."""
    offsets = pa.py_buffer(bytes(4) + size.to_bytes(4, "little"))
    never_touched = pa.py_buffer(np.zeros(size, np.uint8))

    assert element_type(pa.Array.from_buffers(pa.binary(), 1, [None, offsets, never_touched])) == kind


def test_untag_garbage_behind_nulls_is_not_read() -> None:
    """Arrow lets a null row have bytes."""
    data = b"\x01x\x01y"
    array = pa.Array.from_buffers(
        pa.binary(),
        2,
        [pa.py_buffer(b"\x02"), pa.py_buffer(np.array([0, 2, 4], np.int32)), pa.py_buffer(data)],
    )

    found = untag(array)

    assert found.bad.to_pylist() == [True, False]
    assert found.values.to_pylist() == [None, b"y"]
    assert found.tags.to_pylist() == [None, Tag.RECORD]
