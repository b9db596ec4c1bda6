"""Merging: which sessions of a key become one, and under which name do their records stay?

A session is known by its window, which grows. Its records are kept under its *state window*, the window
that it began with: it stays while the session grows, so that what is kept need not be written anew with
each record. State is a plain mapping from the live windows to their state windows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from flowcore.windows.window import TimeWindow

__all__ = ["Group", "Merge", "apply_merge", "merge_groups", "plan_merge"]


@dataclass(frozen=True, slots=True)
class Merge:
    """What adding a window does.

    Attributes:
        window: What it becomes part of.
        state: The state window of that.
        merged: Live windows that this one replaces; none if it stands alone or changes nothing.
        merged_states: State windows whose content moves to ``state``.
    """

    window: TimeWindow
    state: TimeWindow
    merged: tuple[TimeWindow, ...] = ()
    merged_states: tuple[TimeWindow, ...] = ()


@dataclass(frozen=True, slots=True)
class Group:
    """Windows that hang together, and what they become."""

    window: TimeWindow
    of: tuple[TimeWindow, ...]


def plan_merge(live: Mapping[TimeWindow, TimeWindow], new: TimeWindow, *, lazy_below: int = 2) -> Merge:
    """What would become of a new window; changes nothing.

    Args:
        live: The state window of each live window.
        new: The window to add.
        lazy_below: Groups of fewer windows than this stay unmerged.

    >>> plan_merge({TimeWindow(0, 5): TimeWindow(0, 4)}, TimeWindow(5, 9)).state
    TimeWindow(start_ms=0, end_ms=4)
    """
    window, members = _grown(live, new)
    if len(members | {new}) < lazy_below:
        return Merge(new, live.get(new, new))
    if members == {window}:
        return Merge(window, live[window])
    if not members:
        return Merge(new, new)
    merged = tuple(sorted(members))
    states = tuple(live[member] for member in merged)
    return Merge(window, states[0], merged, states[1:])


def apply_merge(live: dict[TimeWindow, TimeWindow], merge: Merge) -> None:
    """Do what was planned."""
    for window in merge.merged:
        del live[window]
    live[merge.window] = merge.state


def merge_groups(windows: Iterable[TimeWindow], *, lazy_below: int = 2) -> tuple[Group, ...]:
    """The groups of windows that overlap or touch, earliest first; what stands alone is in none.

    >>> [group.window for group in merge_groups([TimeWindow(0, 2), TimeWindow(2, 3), TimeWindow(7, 8)])]
    [TimeWindow(start_ms=0, end_ms=3)]
    """
    groups: list[Group] = []
    for window in sorted(set(windows)):
        if groups and groups[-1].window.touches(window):
            last = groups[-1]
            groups[-1] = Group(last.window.cover(window), (*last.of, window))
        else:
            groups.append(Group(window, (window,)))
    return tuple(group for group in groups if len(group.of) >= max(lazy_below, 2))


def _grown(live: Iterable[TimeWindow], new: TimeWindow) -> tuple[TimeWindow, set[TimeWindow]]:
    """The window that covers all that hangs together with the new one, and the live ones among that."""
    window, members = new, set[TimeWindow]()
    while True:
        touched = {other for other in live if other not in members and other.touches(window)}
        if not touched:
            return window, members
        for other in touched:
            window = window.cover(other)
        members |= touched
