"""Sessions merge, also after they have emitted."""

from __future__ import annotations

import random

import pytest

from flowcore.windows import Emissions, SessionWindows
from flowcore.windows.triggers import Count
from flowcore.windows.window import TimeWindow
from tests.unit.windows.harnesses import MAX, harness_of, values_of


def test_sessions_at_the_end_of_time_merge() -> None:
    """Two sessions that are cut off there are merged."""
    harness = harness_of(SessionWindows(1000))

    harness.feed(("a", 1, MAX - 1500), ("a", 2, MAX - 700), ("a", 3, MAX))

    assert values_of(harness.end_of_input()) == [[1, 2, 3]]


def test_late_session_that_merges_into_a_live_one_counts() -> None:
    """Alone it would be late; after merging, the end of the whole session counts."""
    harness = harness_of(SessionWindows(100), late="side-output")

    harness.feed(("a", 1, 50))
    harness.watermark(120)
    merged, late = harness.feed(("a", 2, 0)), harness.feed(("a", 3, -101))
    ended = harness.end_of_input().results

    assert (merged, late.late) == (Emissions(), [("a", 3, -101)])
    assert [(r.window_start_ms, r.window_end_ms, r.value) for r in ended] == [(0, 150, [1, 2])]


def test_session_that_has_emitted_continues_within_its_lateness() -> None:
    """If a record moves the end past the watermark, the session waits; otherwise it emits immediately."""
    harness = harness_of(SessionWindows(100), allowed_lateness_ms=1000)

    harness.feed(("a", 1, 0))
    on_time = harness.watermark(150).results
    at_once = harness.feed(("a", 2, 40)).results
    grown = harness.feed(("a", 3, 90)).results
    ended = harness.watermark(189).results

    assert [(r.value, r.firing, r.is_late, r.window_end_ms) for r in on_time] == [([1], 1, False, 100)]
    assert [(r.value, r.firing, r.is_late, r.window_end_ms) for r in at_once] == [([1, 2], 2, True, 140)]
    assert grown == []
    assert [(r.value, r.firing, r.is_late, r.window_end_ms) for r in ended] == [([1, 2, 3], 3, False, 190)]


def test_two_sessions_that_emitted_are_joined_late() -> None:
    """The record between them emits all records, the earlier session first; former timers do not emit."""
    harness = harness_of(SessionWindows(100), allowed_lateness_ms=1000)

    harness.feed(("a", 1, 150), ("a", 2, 0))
    assert sorted(values_of(harness.watermark(400))) == [[1], [2]]
    joined = harness.feed(("a", 3, 80)).results

    assert [(r.value, r.firing, r.is_late) for r in joined] == [([2, 1, 3], 2, True)]
    assert harness.watermark(1248).results == []
    assert len(harness.snapshot()["keys"]) == 1
    assert harness.end_of_input() == Emissions()
    assert harness.snapshot()["keys"] == []


def test_merged_session_continues_from_its_highest_firing() -> None:
    """One part has emitted twice, the other not yet."""
    harness = harness_of(SessionWindows(100), allowed_lateness_ms=1000)

    harness.feed(("a", 1, 0))
    harness.watermark(120)
    harness.feed(("a", 2, 5), ("a", 3, 200))
    harness.feed(("a", 4, 100))

    assert [(r.value, r.firing) for r in harness.watermark(299).results] == [([1, 2, 3, 4], 3)]


def test_merged_counts_emit_with_the_next_record_only() -> None:
    """Two and two records, and the one that merges them."""
    harness = harness_of(SessionWindows(10), Count(4))

    harness.feed(("a", 1, 0), ("a", 2, 0), ("a", 3, 15), ("a", 4, 15))
    harness.restart()
    assert values_of(harness.feed(("a", 5, 8))) == [[1, 2, 3, 4, 5]]
    assert values_of(harness.feed(("a", 6, 8), ("a", 7, 8), ("a", 8, 8))) == []
    assert values_of(harness.feed(("a", 9, 8))) == [[1, 2, 3, 4, 5, 6, 7, 8, 9]]


def test_a_record_does_not_look_at_sessions_that_it_does_not_touch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key may have thousands of them; the state is found again after a restart."""
    compared = 0
    touches = TimeWindow.touches

    def counting(window: TimeWindow, other: TimeWindow) -> bool:
        nonlocal compared
        compared += 1
        return touches(window, other)

    monkeypatch.setattr(TimeWindow, "touches", counting)
    harness, times_ms = harness_of(SessionWindows(10)), [*range(0, 40_000, 20)]
    random.Random(7).shuffle(times_ms)  # noqa: S311 - no secret
    harness.feed(*(("a", time_ms, time_ms) for time_ms in times_ms))
    harness.watermark(2_000)
    harness.restart()
    harness.feed(*(("a", 1, time_ms + 5) for time_ms in times_ms if time_ms > 20_000), ("a", 2, 10_010))

    assert compared < 20_000
    assert len(harness.results) == 100
    ended = harness.end_of_input().results
    assert len(ended) == 2_000 - 100 - 1
    values = {result.window_start_ms: result.value for result in ended}
    assert [values[start_ms] for start_ms in (10_000, 30_000)] == [[10_000, 10_020, 2], [30_000, 1]]
