"""What is held back is written down in plain data and read back as it was."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowcore.elements import LatencyMarker, Record, Watermark, WatermarkStatus
from flowcore.errors import SerializationError
from flowcore.flush.buffer import Buffer, hold, hold_record
from flowcore.flush.snapshots import restore, snapshot

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
parts = st.none() | st.integers() | st.text()
keys = st.recursive(parts, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=4)
milliseconds = st.integers(-(2**63), 2**63 - 1)


def _filled() -> Buffer[Any, Any]:
    buffer: Buffer[Any, Any] = Buffer(last_flush_ms=7, backlog=True)
    hold_record(buffer, ("a", (1,)), Record({"n": 1}, 2**63 - 1), 9)
    hold_record(buffer, None, Record(None), 10)
    hold(buffer, WatermarkStatus(idle=True))
    hold(buffer, Watermark(-(2**63)))
    hold(buffer, LatencyMarker(100, "op", 3))
    return buffer


WRITTEN = {
    "format": "flowcore.flush.buffer",
    "version": 1,
    "last_flush_ms": 7,
    "waiting_since_ms": 9,
    "backlog": True,
    "records": [[["a", [1]], {"n": 1}, 2**63 - 1], [None, None, None]],
    "held": [{"idle": True}, {"watermark": -(2**63)}],
    "markers": [["op", 3, 100]],
}


def test_snapshot_is_this_json() -> None:
    """It changes only on purpose, and with a new version: checkpoints of before must be read."""
    assert snapshot(_filled()) == WRITTEN
    assert restore(json.loads(json.dumps(WRITTEN))) == _filled()


@given(
    st.dictionaries(keys, st.tuples(values, st.none() | milliseconds), max_size=5),
    st.lists(st.builds(Watermark, milliseconds) | st.builds(WatermarkStatus, st.booleans()), max_size=3),
    st.lists(st.builds(LatencyMarker, milliseconds, st.sampled_from("xy"), st.integers(0, 2)), max_size=4),
)
def test_snapshot_through_json_restores_the_same(
    records: dict[Any, Any], controls: list[Any], markers: list[Any]
) -> None:
    """Everything, in the same order: what leaves next is the same."""
    buffer: Buffer[Any, Any] = Buffer()
    for key, (value, timestamp_ms) in records.items():
        hold_record(buffer, key, Record(value, timestamp_ms), 5)
    for element in (*controls, *markers):
        hold(buffer, element)

    restored: Buffer[Any, Any] = restore(json.loads(json.dumps(snapshot(buffer))))

    assert restored == buffer
    assert list(restored.records) == list(buffer.records)
    assert list(restored.held) == list(buffer.held)
    assert repr(restored) == repr(buffer)  # 1 is not True, and not 1.0


def test_snapshot_is_not_changed_by_what_follows() -> None:
    """It is of one moment, values included."""
    buffer = _filled()
    written = snapshot(buffer)
    buffer.records["a", (1,)].value["n"] = 2
    hold_record(buffer, "b", Record(3), 11)
    buffer.markers.clear()

    assert written == WRITTEN


def test_snapshot_takes_an_encoding_for_other_values() -> None:
    """Restored with its inverse."""
    buffer: Buffer[str, Decimal] = Buffer()
    hold_record(buffer, "a", Record(Decimal("1.50")), 0)

    assert restore(json.loads(json.dumps(snapshot(buffer, str))), Decimal) == buffer


@pytest.mark.parametrize("value", [(1, 2), {1: 2}, Decimal(1), b"a", [object()], {"a": {1}}], ids=repr)
def test_snapshot_refuses_a_value_that_would_come_back_otherwise(value: object) -> None:
    """Before it is written, not after a restart."""
    buffer: Buffer[str, object] = Buffer()
    hold_record(buffer, "a", Record(value), 0)

    with pytest.raises(SerializationError, match="which JSON cannot hold"):
        snapshot(buffer)


@pytest.mark.parametrize("key", [b"a", frozenset({1}), ("a", Decimal(1))], ids=repr)
def test_snapshot_refuses_a_key_that_cannot_be_written(key: Any) -> None:
    """Its record would be lost."""
    buffer: Buffer[Any, int] = Buffer()
    hold_record(buffer, key, Record(1), 0)

    with pytest.raises(SerializationError, match="which cannot be written"):
        snapshot(buffer)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "version 2 is not one of 'flowcore.flush.buffer' and version 1"),
        ({"format": "flowcore.flush.bundle"}, "format 'flowcore.flush.bundle'"),
        ({"records": [["a", 1]]}, "damaged"),
        ({"records": [["a", 1, "5"]]}, "damaged"),
        ({"held": [{}]}, "damaged"),
        ({"markers": None}, "damaged"),
    ],
    ids=["later", "other", "short-row", "no-time", "no-element", "no-markers"],
)
def test_restore_refuses(change: dict[str, Any], message: str) -> None:
    """It does not begin with an empty buffer in silence."""
    with pytest.raises(SerializationError, match=message):
        restore(WRITTEN | change)
