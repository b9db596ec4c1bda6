"""Assigners return exactly the windows of each record."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowcore.elements import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from flowcore.errors import InvalidWindowError
from flowcore.windows import (
    DynamicSessionWindows,
    EndOfStreamWindows,
    GlobalWindows,
    SessionWindows,
    SlidingWindows,
    TimeWindow,
    TumblingWindows,
)

timestamps = st.integers(-(2**53), 2**53) | st.integers(-30, 30)
all_timestamps = st.integers(MIN_TIMESTAMP_MS, MAX_TIMESTAMP_MS) | st.sampled_from(
    [MIN_TIMESTAMP_MS, MIN_TIMESTAMP_MS + 1, MAX_TIMESTAMP_MS - 1, MAX_TIMESTAMP_MS]
)


@st.composite
def sliding_windows(draw: st.DrawFn) -> SlidingWindows:
    size_ms = draw(st.integers(1, 10_000))
    return SlidingWindows(
        size_ms,
        draw(st.integers((size_ms + 99) // 100, size_ms)),
        draw(st.integers(-20_000, 20_000)),
    )


@pytest.mark.parametrize(
    ("timestamp_ms", "start_ms"),
    [(0, 0), (9, 0), (10, 10), (-1, -10), (-10, -10)],
    ids=["at-start", "last-inside", "at-end-opens-next", "before-epoch", "before-epoch-at-start"],
)
def test_tumbling_end_is_exclusive(timestamp_ms: int, start_ms: int) -> None:
    assert TumblingWindows(size_ms=10).assign(timestamp_ms) == (TimeWindow(start_ms, start_ms + 10),)


@given(sliding_windows(), timestamps)
def test_sliding_windows_contain_their_record(windows: SlidingWindows, timestamp_ms: int) -> None:
    """Every assigned window holds the record and the two neighbours do not."""
    assigned = windows.assign(timestamp_ms)

    assert assigned
    assert all(window.start_ms <= timestamp_ms <= window.last_ms for window in assigned)
    assert assigned[0].start_ms - windows.slide_ms + windows.size_ms <= timestamp_ms
    assert timestamp_ms < assigned[-1].start_ms + windows.slide_ms


@given(sliding_windows(), timestamps)
def test_sliding_windows_start_on_the_offset_grid(windows: SlidingWindows, timestamp_ms: int) -> None:
    """Every start is a whole number of slides away from the offset."""
    for window in windows.assign(timestamp_ms):
        assert (window.start_ms - windows.offset_ms) % windows.slide_ms == 0


@given(st.integers(1, 10_000), st.integers(-20_000, 20_000), timestamps)
def test_sliding_by_its_own_size_is_tumbling(size_ms: int, offset_ms: int, timestamp_ms: int) -> None:
    """The two assigners agree where their definitions meet."""
    sliding = SlidingWindows(size_ms, size_ms, offset_ms)

    assert sliding.assign(timestamp_ms) == TumblingWindows(size_ms, offset_ms).assign(timestamp_ms)


@given(sliding_windows() | st.builds(TumblingWindows, st.integers(1, 2**40)) | st.builds(SessionWindows, st.integers(1, 2**62)), all_timestamps)  # fmt: skip # noqa: E501
def test_windows_stay_inside_time(
    windows: SlidingWindows | TumblingWindows | SessionWindows, timestamp_ms: int
) -> None:
    """At both ends of 64-bit time a window is cut off, and still holds its record."""
    for window in windows.assign(timestamp_ms):
        assert MIN_TIMESTAMP_MS <= window.start_ms <= timestamp_ms <= window.last_ms <= MAX_TIMESTAMP_MS


def test_windows_that_are_cut_off_stay_apart() -> None:
    """At an end of time a record is in as many sliding windows as elsewhere."""
    assert len(set(SlidingWindows(100, 10).assign(MAX_TIMESTAMP_MS))) == 10
    assert len(set(SlidingWindows(100, 10).assign(MIN_TIMESTAMP_MS))) == 10


def test_dynamic_sessions_ask_key_and_value() -> None:
    """A gap of zero makes an empty window, whose last millisecond is before its start."""
    windows = DynamicSessionWindows({"a": 5}.get)

    assert windows.assign(3, "a", 9) == (TimeWindow(3, 8),)
    assert windows.assign(3, "b", 0) == (TimeWindow(3, 3),)
    assert windows.assign(3, "b", 0)[0].last_ms == 2
    assert windows.assign(MIN_TIMESTAMP_MS, "b", 0)[0].last_ms == MIN_TIMESTAMP_MS


def test_global_windows_hold_all_time() -> None:
    """Their last millisecond is the maximum timestamp."""
    for windows in (GlobalWindows(), EndOfStreamWindows()):
        (window,) = windows.assign(17)
        assert (window.start_ms, window.last_ms) == (MIN_TIMESTAMP_MS, MAX_TIMESTAMP_MS)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: SlidingWindows(size_ms=10, slide_ms=15), r"slide_ms=15 is longer than size_ms=10.*lost"),
        (lambda: TumblingWindows(0), r"size_ms=0 is not a positive.*pass size_ms > 0"),
        (lambda: SlidingWindows(10, 0), r"slide_ms=0 is not"),
        (lambda: SlidingWindows(-1, 1), r"size_ms=-1 is not"),
        (lambda: SessionWindows(0), r"gap_ms=0 is not"),
        (lambda: SessionWindows(-1000), r"gap_ms=-1000 is not"),
        (lambda: DynamicSessionWindows(lambda _, value: value).assign(1, "k", -3), r"value -3 is -3 ms"),
        (
            lambda: DynamicSessionWindows(lambda _, value: value).assign(1, "k", 1.5),
            r"value 1.5 is 1.5, which is not a whole number of milliseconds.*return an int",
        ),
        (lambda: TimeWindow(5, 4), r"end_ms=4 is before start_ms=5"),
    ],
    ids=[
        "slide-too-long", "size", "slide", "sliding-size", "gap", "gap-negative", "dynamic-gap",
        "dynamic-gap-fraction", "window",
    ],
)  # fmt: skip
def test_windows_refuse_what_would_lose_records(build: object, message: str) -> None:
    """The message names the values and the consequence."""
    with pytest.raises(InvalidWindowError, match=message):
        build()  # type: ignore[operator]
