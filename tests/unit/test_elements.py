"""Elements have values that every serializer can write, compare by value, and support `match`."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowcore.elements import (
    MAX_SUBTASK,
    MAX_TIMESTAMP_MS,
    MIN_TIMESTAMP_MS,
    EndOfInput,
    LatencyMarker,
    LatencyMarkerEvent,
    Record,
    RecordAttributes,
    Watermark,
    WatermarkStatus,
)
from flowcore.errors import ElementError

laws = settings(deadline=None)  # how long an example takes says more of the machine


@pytest.mark.parametrize("timestamp_ms", [MIN_TIMESTAMP_MS, -1, 0, MAX_TIMESTAMP_MS])
def test_elements_take_every_time_of_64_bits(timestamp_ms: int) -> None:
    """Both limits are included."""
    assert Record("x", timestamp_ms).timestamp_ms == timestamp_ms
    assert Watermark(timestamp_ms).timestamp_ms == timestamp_ms
    assert LatencyMarker(timestamp_ms, "op", 0).marked_ms == timestamp_ms


@pytest.mark.parametrize("timestamp_ms", [MIN_TIMESTAMP_MS - 1, MAX_TIMESTAMP_MS + 1, 1.0, True, "1"])
def test_elements_refuse_other_times(timestamp_ms: Any) -> None:
    """The message names the element, the field and the value."""
    with pytest.raises(ElementError, match=f"Record timestamp_ms={timestamp_ms!r} is"):
        Record("x", timestamp_ms)
    with pytest.raises(ElementError, match=f"Watermark timestamp_ms={timestamp_ms!r} is"):
        Watermark(timestamp_ms)
    with pytest.raises(ElementError, match=f"LatencyMarker marked_ms={timestamp_ms!r} is"):
        LatencyMarker(timestamp_ms, "op", 0)


def test_record_made_without_timestamp_answers_none() -> None:
    """Its timestamp may be read and is None."""
    assert Record("x").timestamp_ms is None


@pytest.mark.parametrize("subtask", [-1, MAX_SUBTASK + 1, 0.0, False])
@pytest.mark.parametrize("marker", [LatencyMarker, LatencyMarkerEvent])
def test_markers_refuse_other_subtasks(
    marker: type[LatencyMarker | LatencyMarkerEvent], subtask: Any
) -> None:
    """The message names the value."""
    with pytest.raises(ElementError, match=f"{marker.__name__} subtask={subtask!r} is"):
        marker(0, "op", subtask)


@pytest.mark.parametrize(
    ("operator_id", "message"),
    [
        ("", "is empty: its latency"),
        ("ż" * 127 + "xx", "has 256 bytes"),
        ("\ud800", "cannot be encoded as UTF-8"),
        (5, "cannot be encoded as UTF-8"),
    ],
    ids=["empty", "too-long", "surrogate", "number"],
)
@pytest.mark.parametrize("marker", [LatencyMarker, LatencyMarkerEvent])
def test_markers_refuse_other_operator_ids(
    marker: type[LatencyMarker | LatencyMarkerEvent], operator_id: Any, message: str
) -> None:
    """Its length counts in bytes."""
    with pytest.raises(ElementError, match=f"{marker.__name__} operator_id=.*{message}"):
        marker(0, operator_id, 0)


def test_markers_take_an_operator_id_of_255_bytes() -> None:
    """This is the longest id that the wire format can carry."""
    assert LatencyMarker(0, "ż" * 127 + "x", MAX_SUBTASK).subtask == MAX_SUBTASK


@pytest.mark.parametrize("flag", [0, 1, None, "true"])
def test_flags_are_bools(flag: Any) -> None:
    """Other true values are refused."""
    with pytest.raises(ElementError, match=f"WatermarkStatus idle={flag!r}"):
        WatermarkStatus(flag)
    with pytest.raises(ElementError, match=f"RecordAttributes backlog={flag!r}"):
        RecordAttributes(flag)


@laws
@given(
    st.integers(MIN_TIMESTAMP_MS, MAX_TIMESTAMP_MS),
    st.text(min_size=1, max_size=60),
    st.integers(0, MAX_SUBTASK),
)
def test_events_carry_markers_unchanged(marked_ms: int, operator_id: str, subtask: int) -> None:
    """Markers round-trip through events."""
    marker = LatencyMarker(marked_ms, operator_id, subtask)

    assert LatencyMarkerEvent.from_marker(marker).to_marker() == marker


@pytest.mark.parametrize(
    "element",
    [Record("x", 1), Watermark(1), WatermarkStatus(True), LatencyMarker(1, "op", 0), RecordAttributes(True),
     EndOfInput(), LatencyMarkerEvent(1, "op", 0)],
    ids=lambda element: type(element).__name__,
)  # fmt: skip
def test_elements_are_plain_values(element: Any) -> None:
    """They are equal by value, hashable, without a dictionary, and picklable."""
    assert pickle.loads(pickle.dumps(element)) == element  # noqa: S301 - our own
    assert hash(element) == hash(pickle.loads(pickle.dumps(element)))  # noqa: S301 - our own
    assert not hasattr(element, "__dict__")
