"""Markers become percentiles, and no marker can falsify them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowcore import latency
from flowcore.elements import MAX_SUBTASK, MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS, LatencyMarkerEvent
from flowcore.latency import (
    LONGEST_US,
    OTHER,
    PLAUSIBLE_US,
    SKEW_TOLERANCE_US,
    LatencySummary,
    LatencyTracker,
    RecentHistogram,
    Unusable,
    latency_us,
    recent_since_us,
)

MARKED_MS = 1_700_000_000_000
MARKED_US = MARKED_MS * 1_000
SECOND_US = 1_000_000


def marker(
    operator_id: str = "flow/bids", subtask: int = 0, marked_ms: int = MARKED_MS
) -> LatencyMarkerEvent:
    """A marker event."""
    return LatencyMarkerEvent(marked_ms, operator_id, subtask)


def after(*latencies_us: int) -> LatencySummary:
    """The only summary of a tracker whose markers have these latencies."""
    tracker = LatencyTracker()
    for taken_us in latencies_us:
        tracker.record(marker(), "out", MARKED_US + taken_us)
    (summary,) = tracker.total()
    return summary


@pytest.mark.parametrize(
    ("taken_us", "expected"),
    [
        (1, 1),
        (0, 0),
        (-1, 0),
        (-SKEW_TOLERANCE_US, 0),
        (-SKEW_TOLERANCE_US - 1, Unusable.SKEWED),
        (-PLAUSIBLE_US, Unusable.SKEWED),
        (-PLAUSIBLE_US - 1, Unusable.IMPLAUSIBLE),
        (LONGEST_US + 1, LONGEST_US + 1),
        (PLAUSIBLE_US, PLAUSIBLE_US),
        (PLAUSIBLE_US + 1, Unusable.IMPLAUSIBLE),
    ],
    ids=[
        "later", "same-time", "just-before", "last-tolerated", "first-skewed", "last-skewed",
        "far-future", "over-an-hour", "a-day", "far-past",
    ],
)  # fmt: skip
def test_marker_is_judged_by_the_distance_of_mark_and_receipt(taken_us: int, expected: object) -> None:
    """Up to 5 ms early is 0, more is skew; more than a day in either direction is implausible."""
    assert latency_us(MARKED_MS, MARKED_US + taken_us) == expected


def test_percentiles_are_those_of_what_was_recorded() -> None:
    """For latencies of 1 to 1,000 microseconds, every percentile is exact."""
    assert after(*range(1, 1_001)) == LatencySummary(
        "flow/bids", "out", 1_000, p50_ms=0.5, p90_ms=0.9, p99_ms=0.99, max_ms=1.0, subtasks=1
    )


@given(st.lists(st.integers(0, LONGEST_US), min_size=1, max_size=60))
@settings(deadline=None)
def test_percentiles_are_within_a_thousandth(latencies_us: list[int]) -> None:
    """Each is at most 0.1 % above the sample of its rank, and the longest is exact."""
    summary = after(*latencies_us)

    ordered = sorted(latencies_us)
    for found_ms, percent in ((summary.p50_ms, 50), (summary.p90_ms, 90), (summary.p99_ms, 99)):
        rank = max(int(len(ordered) * percent / 100 + 0.5), 1)
        assert found_ms is not None
        assert ordered[rank - 1] <= found_ms * 1_000 + 0.001
        assert found_ms * 1_000 <= ordered[rank - 1] * 1.001 + 0.001
    assert summary.max_ms == ordered[-1] / 1_000
    assert summary.count == len(latencies_us)


@pytest.mark.parametrize(
    ("taken_us", "saturated"),
    [(LONGEST_US, 0), (LONGEST_US + 1, 1), (PLAUSIBLE_US, 1)],
    ids=["an-hour", "just-over", "a-day"],
)
def test_longer_than_an_hour_is_counted_as_an_hour(taken_us: int, saturated: int) -> None:
    """The maximum is cut, and the summary shows that it was."""
    summary = after(taken_us)

    assert (summary.count, summary.p50_ms, summary.max_ms) == (1, 3_600_000.0, 3_600_000.0)
    assert summary.saturated == saturated


def test_skewed_and_implausible_markers_are_counted_and_left_out() -> None:
    """They do not change percentiles; without other markers there are no percentiles."""
    assert after(2_000, -SKEW_TOLERANCE_US - 1, -PLAUSIBLE_US - 1, PLAUSIBLE_US + 1) == LatencySummary(
        "flow/bids", "out", 1, 2.0, 2.0, 2.0, 2.0, skewed=1, implausible=2, subtasks=1
    )
    assert after(-SKEW_TOLERANCE_US - 1) == LatencySummary(
        "flow/bids", "out", 0, None, None, None, None, skewed=1, subtasks=1
    )


def test_sources_and_sinks_are_kept_apart_and_subtasks_counted() -> None:
    """Ordered by sink, then source; a sink that two flows feed shows both."""
    tracker = LatencyTracker()
    for sink, source, subtask, taken_us in (
        ("b", "first/in", 0, 1_000),
        ("a", "second/in", 0, 2_000),
        ("a", "first/in", 0, 3_000),
        ("a", "first/in", 1, 3_000),
        ("a", "first/in", 1, 3_000),
    ):
        tracker.record(marker(source, subtask), sink, MARKED_US + taken_us)

    found = [(each.sink, each.source, each.count, each.p99_ms, each.subtasks) for each in tracker.total()]

    assert found == [
        ("a", "first/in", 3, 3.0, 2),
        ("a", "second/in", 1, 2.0, 1),
        ("b", "first/in", 1, 1.0, 1),
    ]


def test_recent_forgets_what_the_total_keeps() -> None:
    """Old figures are removed between 60 and 70 seconds later."""
    tracker = LatencyTracker()
    start_us = MARKED_US - MARKED_US % (10 * SECOND_US)
    for second, taken_us in ((0, 9_000), (30, 1_000)):
        received_us = start_us + second * SECOND_US
        tracker.record(marker(marked_ms=(received_us - taken_us) // 1_000), "out", received_us)

    def recent(second: int) -> tuple[int, float | None]:
        (summary,) = tracker.recent(start_us + second * SECOND_US)
        return summary.count, summary.max_ms

    assert [recent(second) for second in (30, 60, 69, 70, 99, 100)] == [
        (2, 9.0), (2, 9.0), (2, 9.0), (1, 1.0), (1, 1.0), (0, None),
    ]  # fmt: skip
    assert tracker.total()[0].count == 2


def test_recent_recovers_from_a_clock_that_is_set_back() -> None:
    """Counts in the future are dropped from the recent figures and kept in the total."""
    tracker = LatencyTracker()
    for received_us, taken_us in ((MARKED_US + 3_600 * SECOND_US, 5_000), (MARKED_US, 1_000)):
        tracker.record(marker(marked_ms=(received_us - taken_us) // 1_000), "out", received_us)

    (recent,) = tracker.recent(MARKED_US)

    assert (recent.count, recent.max_ms) == (1, 1.0)
    assert tracker.recent(MARKED_US - 20 * SECOND_US)[0].count == 0
    assert tracker.total()[0].count == 2


def test_unknown_sources_use_bounded_memory() -> None:
    """From the 33rd source on, all are counted as one, and none is lost."""
    tracker = LatencyTracker()
    for number in range(100):
        tracker.record(marker(f"hostile-{number}"), "out", MARKED_US + 1_000)
    tracker.record(marker("hostile-0", subtask=1), "out", MARKED_US + 1_000)

    found = {each.source: each for each in tracker.total()}

    assert len(found) == latency.MAX_SOURCES + 1
    assert found["hostile-0"].count == 2
    assert (found[OTHER].count, found[OTHER].p50_ms, found[OTHER].subtasks) == (68, 1.0, 0)
    assert sum(each.count for each in found.values()) == 101


def test_unknown_subtasks_use_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pairs of source and subtask are bounded over all sources."""
    monkeypatch.setattr(latency, "MAX_SUBTASKS", 3)
    tracker = LatencyTracker()
    for subtask in (0, 1, 2, 3, MAX_SUBTASK, 0):
        tracker.record(marker(subtask=subtask), "out", MARKED_US)
    tracker.record(marker("another"), "out", MARKED_US)

    assert [(each.source, each.count, each.subtasks) for each in tracker.total()] == [
        ("flow/bids", 4, 3),
        (OTHER, 3, 0),
    ]


def test_implausible_marks_take_no_place_of_a_source() -> None:
    """A source with only implausible marks is not listed; a source named "other" is listed once."""
    tracker = LatencyTracker()
    tracker.record(marker("hostile", marked_ms=MIN_TIMESTAMP_MS), "out", MARKED_US)
    tracker.record(marker(OTHER), "out", MARKED_US)

    (other,) = tracker.total()

    assert (other.source, other.count, other.implausible) == (OTHER, 1, 1)


@given(
    st.lists(
        st.tuples(
            st.integers(MIN_TIMESTAMP_MS, MAX_TIMESTAMP_MS) | st.integers(MARKED_MS - 10, MARKED_MS + 10),
            st.text(st.characters(codec="utf-8"), min_size=1, max_size=4),
            st.integers(0, MAX_SUBTASK),
        ),
        max_size=40,
    )
)
@settings(deadline=None)
def test_every_marker_is_counted_once(events: list[tuple[int, str, int]]) -> None:
    """Each marker is counted in one category, recently and in total."""
    tracker = LatencyTracker()
    for marked_ms, operator_id, subtask in events:
        tracker.record(LatencyMarkerEvent(marked_ms, operator_id, subtask), "out", MARKED_US)

    for found in (tracker.total(), tracker.recent(MARKED_US)):
        assert sum(each.count + each.skewed + each.implausible for each in found) == len(events)
        for each in found:
            if each.count:
                assert each.max_ms is not None
                assert (
                    0 <= (each.p50_ms or 0) <= (each.p90_ms or 0) <= (each.p99_ms or 0) <= each.max_ms <= 10
                )


@pytest.mark.parametrize("now_us", [1_700_000_000_000_000, 1_700_000_009_999_999, 1_700_000_012_345_678])
def test_recent_counts_from_its_start(now_us: int) -> None:
    """A marker at the start is counted, an earlier one is not."""
    since_us = recent_since_us(now_us)
    found = RecentHistogram()
    for received_us in (since_us - 1, since_us, now_us):
        found.record(1_000, received_us)

    assert found.at(now_us).summary("source", "sink", 1).count == 2
    assert 60_000_000 <= now_us - since_us < 70_000_000
