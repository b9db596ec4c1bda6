"""The tagged form of many elements at once: the bytes of `flowcore.serializers.tagged`, without a loop.

An Arrow array of values becomes an Arrow array of elements and the other way round. The value-only form
has no functions here, because there is nothing to do: its elements are the values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flowcore.errors import SerializationError
from flowcore.serializers.marker import unpack_marker
from flowcore.serializers.tagged import TIMESTAMP_BYTES, Tag

__all__ = ["Untagged", "element_type", "tag", "untag"]

Values = pa.BinaryArray | pa.LargeBinaryArray

_TIMED_BYTES = 1 + TIMESTAMP_BYTES
_MAX_BINARY_BYTES = 2**31 - 1
_FLAG_BYTES = 2
_HOLDS_TIME = (Tag.RECORD_WITH_TIMESTAMP, Tag.WATERMARK, Tag.LATENCY_MARKER)
_HOLDS_FLAG = (Tag.WATERMARK_STATUS, Tag.RECORD_ATTRIBUTES)


@dataclass(frozen=True, slots=True)
class Untagged:
    """Elements taken apart, one row each.

    Attributes:
        tags: The tag, null where ``bad``; see `flowcore.serializers.tagged.Tag`.
        timestamps_ms: Of a record that has one and of a watermark; the marked time of a latency marker.
        values: A record's value; else null.
        bad: True where `flowcore.serializers.tagged.TaggedSerializer.decode` would refuse the bytes, and
            where there are none (null). Whether a value fits its format is not looked at.
    """

    tags: pa.Int8Array
    timestamps_ms: pa.Int64Array
    values: Values
    bad: pa.BooleanArray


def tag(values: Values, timestamps_ms: pa.Int64Array | None = None) -> Values:
    """Records as tagged elements.

    Args:
        values: The records' values; a null stays null.
        timestamps_ms: Their timestamps, in which a null stands for none; None if no record has one.

    Returns:
        Binary, or large binary if the values are that or the elements would not fit.

    Raises:
        SerializationError: There are not as many timestamps as values.

    >>> tag(pa.array([b"x"]), pa.array([258])).to_pylist()[0].hex(" ")
    '00 00 00 00 00 00 00 01 02 78'
    """
    if timestamps_ms is not None and len(timestamps_ms) != len(values):
        msg = (
            f"{len(timestamps_ms)} timestamps for {len(values)} values: records would get each other's; "
            "pass one for each, null where there is none"
        )
        raise SerializationError(msg)
    kind = element_type(values)
    parts: tuple[Any, ...] = (
        _heads(len(values), timestamps_ms, kind),
        values.cast(kind),
        pa.scalar(b"", kind),
    )
    elements: Values = pc.binary_join_element_wise(*parts)
    return elements


def element_type(values: Values) -> pa.DataType:
    """The elements that `tag` makes: large binary if the values are that or they could not fit otherwise."""
    size = _data_bytes(values) + len(values) * _TIMED_BYTES
    large = pa.types.is_large_binary(values.type) or size > _MAX_BINARY_BYTES
    return pa.large_binary() if large else pa.binary()


def untag(elements: Values) -> Untagged:
    """Tagged elements taken apart; what cannot be read is marked, not raised."""
    if len(elements) == 0:
        return Untagged(pa.array([], pa.int8()), pa.array([], pa.int64()), elements, pa.array([], pa.bool_()))
    offsets, data = _buffers(elements)
    starts, sizes = offsets[:-1], np.diff(offsets)
    tags = np.full(len(elements), -1, np.int16)
    some = sizes > 0
    tags[some] = data[starts[some]]
    bad = ~_well_formed(tags, sizes, starts, data)
    if elements.null_count:
        bad |= elements.is_null().to_numpy(zero_copy_only=False)
    for row in np.flatnonzero((tags == Tag.LATENCY_MARKER) & ~bad):
        # One marker an interval: rare by its nature, and its text is not worth a vector.
        bad[row] = not _is_marker(data[starts[row] + 1 : offsets[row + 1]].tobytes())
    timed = np.isin(tags, _HOLDS_TIME) & ~bad
    times = np.zeros(len(elements), np.int64)
    times[timed] = _times(data, starts[timed])
    return Untagged(
        pa.array(tags, pa.int8(), mask=bad),
        pa.array(times, pa.int64(), mask=~timed),
        _values(elements, tags, bad, int(sizes.max())),
        pa.array(bad),
    )


def _heads(count: int, timestamps_ms: pa.Int64Array | None, kind: pa.DataType) -> Values:
    """What stands before each value."""
    if timestamps_ms is None or timestamps_ms.null_count == count:
        data = np.full(count, Tag.RECORD, np.uint8)
        return _array(np.arange(count + 1), data, kind)
    heads = np.empty((count, _TIMED_BYTES), np.uint8)
    heads[:, 0] = Tag.RECORD_WITH_TIMESTAMP
    heads[:, 1:] = timestamps_ms.fill_null(0).to_numpy().astype(">i8").view(np.uint8).reshape(count, -1)
    if not timestamps_ms.null_count:
        return _array(np.arange(count + 1) * _TIMED_BYTES, heads, kind)
    none = timestamps_ms.is_null().to_numpy(zero_copy_only=False)
    heads[none, 0] = Tag.RECORD
    kept = np.ones_like(heads, np.bool_)
    kept[none, 1:] = False
    ends = np.cumsum(np.where(none, 1, _TIMED_BYTES))
    return _array(np.concatenate(([0], ends)), heads[kept], kind)


def _array(offsets: np.ndarray[Any, Any], data: np.ndarray[Any, Any], kind: pa.DataType) -> Values:
    width = np.int64 if pa.types.is_large_binary(kind) else np.int32
    parts: Any = (offsets.astype(width), np.ascontiguousarray(data))
    buffers = [None, *map(pa.py_buffer, parts)]
    array: Any = pa.Array.from_buffers(kind, len(offsets) - 1, buffers)
    return cast("Values", array)


def _buffers(array: Values) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Offsets (one more than rows) and all bytes; a null row has no bytes."""
    width = np.int64 if pa.types.is_large_binary(array.type) else np.int32
    buffers: Any = array.buffers()
    _, offsets, data = buffers
    found = np.frombuffer(offsets, width)[array.offset : array.offset + len(array) + 1]
    return found.astype(np.int64), np.frombuffer(data or b"", np.uint8)


def _data_bytes(array: Values) -> int:
    if len(array) == 0:
        return 0
    offsets, _ = _buffers(array)
    return int(offsets[-1] - offsets[0])


def _well_formed(
    tags: np.ndarray[Any, Any],
    sizes: np.ndarray[Any, Any],
    starts: np.ndarray[Any, Any],
    data: np.ndarray[Any, Any],
) -> np.ndarray[Any, Any]:
    """By tag and size alone, and by its flag where it has one."""
    good = (tags == Tag.RECORD) | ((tags == Tag.RECORD_WITH_TIMESTAMP) & (sizes >= _TIMED_BYTES))
    good |= (tags == Tag.WATERMARK) & (sizes == _TIMED_BYTES)
    good |= (tags == Tag.LATENCY_MARKER) & (sizes > _TIMED_BYTES)
    good |= (tags == Tag.END_OF_INPUT) & (sizes == 1)
    flags = np.isin(tags, _HOLDS_FLAG) & (sizes == _FLAG_BYTES)
    good[flags] = data[starts[flags] + 1] <= 1
    return np.asarray(good)


def _is_marker(data: bytes) -> bool:
    try:
        unpack_marker(data, "")
    except SerializationError:
        return False
    return True


def _times(data: np.ndarray[Any, Any], starts: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if not len(starts):
        return starts
    eights = np.lib.stride_tricks.sliding_window_view(data, TIMESTAMP_BYTES)
    return np.asarray(eights[starts + 1].view(">i8").reshape(-1), np.int64)


def _values(elements: Values, tags: np.ndarray[Any, Any], bad: np.ndarray[Any, Any], most: int) -> Values:
    timed = (tags == Tag.RECORD_WITH_TIMESTAMP) & ~bad
    plain = (tags == Tag.RECORD) & ~bad
    if timed.all():
        return _behind(_TIMED_BYTES, elements, most)
    if plain.all():
        return _behind(1, elements, most)
    values: Any = pa.scalar(None, elements.type)
    for rows, head in ((plain, 1), (timed, _TIMED_BYTES)):
        if rows.any():
            values = pc.if_else(pa.array(rows), _behind(head, elements, most), values)
    return cast("Values", values if isinstance(values, pa.Array) else pa.nulls(len(elements), elements.type))


def _behind(head: int, elements: Values, most: int) -> Values:
    # Without an end the kernel asks for less than no memory.
    sliced: Values = pc.binary_slice(elements, head, most)
    return sliced
