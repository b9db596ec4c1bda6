"""Windows at the ends of time, and records that are late, bad or without a key."""

from __future__ import annotations

import pytest

from flowcore.elements import MIN_TIMESTAMP_MS
from flowcore.errors import ElementError, NoTimestampError
from flowcore.windows import DynamicSessionWindows, Emissions, SlidingWindows, TumblingWindows, WindowReduce
from tests.unit.windows.harnesses import MAX, harness_of, values_of


def test_windows_at_the_end_of_time_emit_when_the_input_ends() -> None:
    """Their last millisecond is the maximum timestamp; no sum of times exceeds it."""
    harness = harness_of(TumblingWindows(1000), allowed_lateness_ms=5000)

    harness.feed(("a", 1, MAX), ("a", 2, MAX - 1))
    assert values_of(harness.watermark(MAX - 1)) == []
    (result,) = harness.end_of_input().results

    assert (result.value, result.timestamp_ms, result.window_end_ms) == ([1, 2], MAX, MAX)
    assert harness.snapshot()["keys"] == []


def test_lateness_that_overflows_keeps_windows_until_the_input_ends() -> None:
    """A cleanup time that is cut off at the end of time is not in the past."""
    harness = harness_of(TumblingWindows(1000), allowed_lateness_ms=2000, late="side-output")

    harness.feed(("a", 1, MAX - 1750))
    assert values_of(harness.watermark(MAX - 1500)) == []
    assert values_of(harness.watermark(MAX - 808)) == [[1]]
    assert values_of(harness.feed(("a", 2, MAX - 1700))) == [[1, 2]]
    assert harness.watermark(MAX).results == []
    assert harness.feed(("a", 3, MAX - 1700)).late == [("a", 3, MAX - 1700)]


def test_windows_at_the_beginning_of_time_are_in_order() -> None:
    harness = harness_of(SlidingWindows(4, 2))

    harness.feed(("a", 1, MIN_TIMESTAMP_MS))
    results = harness.watermark(MIN_TIMESTAMP_MS + 10).results

    assert [r.timestamp_ms - MIN_TIMESTAMP_MS for r in results] == [1, 3]
    assert all(r.window_start_ms == MIN_TIMESTAMP_MS for r in results)


def test_sliding_record_counts_only_in_its_windows_that_are_not_late() -> None:
    """A record that is late for some of its windows is not a late record."""
    harness = harness_of(SlidingWindows(3000, 1000), late="side-output")

    harness.feed(("a", 1, 2500))
    harness.watermark(3000)
    seen = harness.feed(("a", 2, 2500))
    ended = harness.end_of_input()

    assert (seen.results, seen.late) == ([], [])
    assert [(r.window_start_ms, r.value) for r in ended.results] == [(1000, [1, 2]), (2000, [1, 2])]


def test_record_of_late_windows_only_is_neither_counted_nor_dropped() -> None:
    """A session of gap zero ends one millisecond before its record: it is neither counted nor dropped."""
    harness = harness_of(DynamicSessionWindows(lambda *_: 0), late="side-output")

    harness.watermark(4)

    assert harness.feed(("a", 1, 5)) == Emissions()
    assert harness.feed(("a", 2, 4)).late == [("a", 2, 4)]
    assert harness.snapshot()["keys"] == []


def test_step_with_one_bad_record_changes_nothing() -> None:
    """The records before it are not processed either."""
    harness = harness_of(TumblingWindows(10))
    before = harness.snapshot()

    with pytest.raises(NoTimestampError, match="record 2 of key 'a' has no timestamp"):
        harness.feed(("a", 1, 5), ("a", 2, None))
    with pytest.raises(ElementError, match="out of range"):
        harness.feed(("a", 1, 5), ("a", 2, 2**63))

    assert harness.snapshot() == before


def test_windows_need_no_key() -> None:
    """Without a key, all records have the key None."""
    harness = harness_of(TumblingWindows(10), function=WindowReduce(max))

    harness.feed((None, 4, 5), (None, 7, 6))
    harness.restart()

    assert [(r.key, r.value) for r in harness.watermark(9).results] == [(None, 7)]
