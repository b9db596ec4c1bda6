"""The state of a buffer, besides its records, is written as JSON and restored unchanged."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowcore.elements import LatencyMarker, Watermark, WatermarkStatus
from flowcore.errors import SerializationError
from flowcore.flush.buffer import BufferState
from flowcore.latency import MAX_SUBTASKS

milliseconds = st.integers(-(2**63), 2**63 - 1)


def _filled() -> BufferState:
    state = BufferState(last_flush_ms=7, waiting_since_ms=9, backlog=True)
    state.add(WatermarkStatus(idle=True))
    state.add(Watermark(-(2**63)))
    state.add(LatencyMarker(100, "op", 3))
    return state


WRITTEN = {
    "format": "flowcore.flush.buffer",
    "version": 1,
    "last_flush_ms": 7,
    "waiting_since_ms": 9,
    "backlog": True,
    "records": [],
    "held": [{"idle": True}, {"watermark": -(2**63)}],
    "markers": [["op", 3, 100]],
}


def test_snapshot_is_this_json() -> None:
    """The layout changes only with a new version, since earlier checkpoints must be readable."""
    assert _filled().snapshot() == WRITTEN
    assert BufferState.restore(json.loads(json.dumps(WRITTEN))) == _filled()


@given(
    st.lists(st.builds(Watermark, milliseconds) | st.builds(WatermarkStatus, st.booleans()), max_size=3),
    st.lists(st.builds(LatencyMarker, milliseconds, st.sampled_from("xy"), st.integers(0, 2)), max_size=4),
)
def test_snapshot_through_json_restores_the_same(controls: list[Any], markers: list[Any]) -> None:
    """After a restore the next flush emits the same elements in the same order."""
    state = BufferState()
    for element in (*controls, *markers):
        state.add(element)

    restored = BufferState.restore(json.loads(json.dumps(state.snapshot())))

    assert restored == state
    assert list(restored.controls) == list(state.controls)


def test_snapshot_is_not_changed_by_later_elements() -> None:
    """A snapshot has the state of one moment."""
    state = _filled()
    written = state.snapshot()
    state.flush(11)

    assert written == WRITTEN


def test_markers_are_of_as_many_subtasks_as_a_sink_tells_apart() -> None:
    """Forged ones of further subtasks are dropped; the earliest of a subtask with a marker still counts."""
    state = BufferState()
    for subtask in range(MAX_SUBTASKS + 1):
        state.add(LatencyMarker(100, "op", subtask))
    state.add(LatencyMarker(99, "op", 0))

    written = state.snapshot()["markers"]
    _, markers = state.flush(11)
    state.add(LatencyMarker(101, "op", MAX_SUBTASKS))

    assert written == [["op", 0, 99], *(["op", subtask, 100] for subtask in range(1, MAX_SUBTASKS))]
    assert (len(markers), len(state.markers)) == (MAX_SUBTASKS, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "version 2 is not one of 'flowcore.flush.buffer' and version 1"),
        ({"format": "flowcore.flush.bundle"}, "format 'flowcore.flush.bundle'"),
        ({"held": [{}]}, "damaged"),
        ({"markers": None}, "damaged"),
    ],
    ids=["later", "other", "no-element", "no-markers"],
)
def test_restore_refuses(change: dict[str, Any], message: str) -> None:
    """Unknown state is an error instead of an empty buffer."""
    with pytest.raises(SerializationError, match=message):
        BufferState.restore(WRITTEN | change)
