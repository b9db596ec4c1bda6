"""Schedule of transcripts of kind ``checkpoint-interval``: fewer checkpoints in backlog."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowcore.backlog import CheckpointInterval
from flowcore.testing.transcripts.backlog import (
    CheckpointSchedule,
    due_times,
    schedule_first,
    switch_source,
)

TEN = CheckpointInterval(10_000)
LONGER = CheckpointInterval(10_000, backlog_interval_ms=60_000)
NONE_IN_BACKLOG = CheckpointInterval(10_000, backlog_interval_ms=0)


def test_checkpoints_are_due_at_their_time_and_not_before() -> None:
    """A late poll does not shift later checkpoints, and returns those that it missed."""
    schedule, times = due_times(TEN, schedule_first(TEN, now_ms=500), 10_499)
    assert times == ()
    schedule, times = due_times(TEN, schedule, 10_500)
    assert times == (10_500,)
    schedule, times = due_times(TEN, schedule, 35_000)
    assert times == (20_500, 30_500)
    assert schedule.next_ms == 40_500


def test_first_checkpoint_is_due_after_the_interval_of_backlog_if_it_begins_in_it() -> None:
    """One source is enough; without checkpoints in backlog none is due."""
    assert schedule_first(LONGER).next_ms == 10_000
    assert schedule_first(LONGER, in_backlog=["bids"]).next_ms == 60_000
    assert schedule_first(NONE_IN_BACKLOG, in_backlog=["bids"]).next_ms is None


def test_switch_into_backlog_does_not_put_the_next_checkpoint_off() -> None:
    """It counts for those after it; with no checkpoints in backlog it is the last one."""
    for config, following in ((LONGER, 70_000), (NONE_IN_BACKLOG, None)):
        schedule = switch_source(config, schedule_first(config), "bids", 9_999, backlog=True)
        assert schedule.next_ms == 10_000
        schedule, times = due_times(config, schedule, 69_999)
        assert times == (10_000,)
        assert schedule.next_ms == following


@pytest.mark.parametrize(
    ("now_ms", "next_ms"), [(0, 10_000), (49_999, 59_999), (50_000, 60_000), (50_001, 60_000)]
)
def test_switch_out_of_backlog_brings_the_next_checkpoint_forward(now_ms: int, next_ms: int) -> None:
    """To one interval from now, unless it is due before that anyway."""
    schedule = schedule_first(LONGER, in_backlog=["bids"])

    assert switch_source(LONGER, schedule, "bids", now_ms, backlog=False) == CheckpointSchedule(next_ms)


def test_switch_out_of_backlog_without_checkpoints_begins_them_again() -> None:
    """One interval from then."""
    schedule = schedule_first(NONE_IN_BACKLOG, in_backlog=["bids"])
    assert due_times(NONE_IN_BACKLOG, schedule, 10**9) == (schedule, ())

    assert switch_source(NONE_IN_BACKLOG, schedule, "bids", 10**9, backlog=False).next_ms == 10**9 + 10_000


def test_switch_counts_sources_by_name() -> None:
    """Backlog ends with the last source; a repeated report changes nothing."""
    schedule = schedule_first(LONGER, in_backlog=["bids", "auctions"])
    schedule = switch_source(LONGER, schedule, "bids", 5, backlog=True)
    schedule = switch_source(LONGER, schedule, "bids", 10, backlog=False)
    schedule = switch_source(LONGER, schedule, "bids", 15, backlog=False)
    assert schedule == CheckpointSchedule(60_000, frozenset({"auctions"}))
    assert switch_source(LONGER, schedule, "auctions", 20, backlog=False) == CheckpointSchedule(10_020)


@given(
    st.sampled_from([TEN, LONGER, NONE_IN_BACKLOG, CheckpointInterval(10_000, 10_000)]),
    st.frozensets(st.sampled_from("ab")),
    st.lists(st.tuples(st.integers(0, 30_000), st.sampled_from("ab"), st.booleans()), max_size=20),
)
def test_switches_never_put_a_checkpoint_off_nor_bring_two_close(
    config: CheckpointInterval, in_backlog: frozenset[str], switches: list[tuple[int, str, bool]]
) -> None:
    """The next is never further than the interval that holds, nor are two closer than the normal one."""
    now_ms, times = 0, [0]
    schedule = schedule_first(config, in_backlog=in_backlog)
    for step_ms, source, backlog in switches:
        now_ms += step_ms
        schedule, found = due_times(config, schedule, now_ms)
        times += found
        before = schedule.next_ms
        schedule = switch_source(config, schedule, source, now_ms, backlog=backlog)
        assert before is None or (schedule.next_ms is not None and schedule.next_ms <= before)
        interval_ms = config.interval_ms_in(backlog=bool(schedule.in_backlog))
        assert interval_ms is None or (
            schedule.next_ms is not None and now_ms < schedule.next_ms <= now_ms + interval_ms
        )

    assert all(later - earlier >= 10_000 for earlier, later in pairwise(times))
