"""Windows that overlap or touch become one, and what is kept stays under the name it began with."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flowcore.testing.transcripts.session_merge import merge_groups
from flowcore.windows.window import TimeWindow, apply_merge, plan_merge

windows = st.builds(
    lambda start, length: TimeWindow(start, start + length), st.integers(-20, 20), st.integers(0, 6)
)


@given(st.lists(windows))
def test_live_windows_never_touch_and_cover_what_was_added(added: list[TimeWindow]) -> None:
    """The live windows are the groups of all windows that were added."""
    live: dict[TimeWindow, TimeWindow] = {}

    for window in added:
        merge = plan_merge(live, window)
        apply_merge(live, merge)
        assert merge.window in live
        assert merge.window.cover(window) == merge.window

    groups = merge_groups(added)
    alone = set(added) - {window for group in groups for window in group.members}
    assert set(live) == {group.window for group in groups} | alone
    assert not any(a.touches(b) for a in live for b in live if a != b)


@given(st.lists(windows))
def test_state_windows_are_kept_and_never_shared(added: list[TimeWindow]) -> None:
    """A merged window keeps one of its parts' state windows; the merge lists each other one once."""
    live: dict[TimeWindow, TimeWindow] = {}

    for window in added:
        before = dict(live)
        merge = plan_merge(live, window)
        apply_merge(live, merge)
        gone = set(before.values()) - set(live.values())
        assert set(merge.merged_states) == gone
        assert len(set(live.values())) == len(live)
        assert merge.state in {*before.values(), window}
        assert set(merge.merged) == set(before) - set(live) | (set(merge.merged) & {merge.window})


@given(st.lists(windows))
def test_groups_are_the_same_in_any_order(some: list[TimeWindow]) -> None:
    """Groups do not depend on the order, and no other window touches a group."""
    groups = merge_groups(some)

    assert groups == merge_groups(reversed(some))
    assert all(len(set(group.members)) == len(group.members) >= 2 for group in groups)
    for group in groups:
        assert not any(window.touches(group.window) for window in set(some) - set(group.members))


def test_lazy_groups_stay_apart_below_their_number() -> None:
    """Two windows that touch stay apart if groups need three; the third merges all."""
    live: dict[TimeWindow, TimeWindow] = {}

    for start, end in [(0, 2), (2, 5)]:
        apply_merge(live, plan_merge(live, TimeWindow(start, end), lazy_below=3))
    third = plan_merge(live, TimeWindow(1, 2), lazy_below=3)

    assert set(live) == {TimeWindow(0, 2), TimeWindow(2, 5)}
    assert third.window == TimeWindow(0, 5)
    assert third.merged == (TimeWindow(0, 2), TimeWindow(2, 5))
    assert [third.state, *third.merged_states] == [TimeWindow(0, 2), TimeWindow(2, 5)]


def test_adding_the_grown_window_itself_keeps_its_state_window() -> None:
    """It is not mistaken for a new one."""
    live = {TimeWindow(10, 14): TimeWindow(11, 14)}

    merge = plan_merge(live, TimeWindow(10, 14))

    assert (merge.window, merge.state, merge.merged) == (TimeWindow(10, 14), TimeWindow(11, 14), ())
