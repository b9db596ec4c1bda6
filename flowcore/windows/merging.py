"""Merging of session windows: which windows of a key become one, and which state window it keeps.

A session grows, so its window changes. Its content is stored under its *state window*, the window with which
it began, so that growing does not rewrite the content. State maps live windows to state windows.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from flowcore.windows.window import TimeWindow

__all__ = ["Merge", "apply_merge", "plan_merge"]


@dataclass(frozen=True, slots=True)
class Merge:
    """The effect of adding a window.

    Attributes:
        window: The window that contains it afterwards.
        state: The state window of that.
        merged: Live windows that this one replaces; none if it stands alone or changes nothing.
        merged_states: State windows whose content moves to ``state``.
    """

    window: TimeWindow
    state: TimeWindow
    merged: tuple[TimeWindow, ...] = ()
    merged_states: tuple[TimeWindow, ...] = ()


def plan_merge(live: Mapping[TimeWindow, TimeWindow], new: TimeWindow, *, lazy_below: int = 2) -> Merge:
    """Return the effect of a new window without applying it.

    Args:
        live: The state window of each live window.
        lazy_below: Groups of fewer windows are not merged.

    >>> plan_merge({TimeWindow(0, 5): TimeWindow(0, 4)}, TimeWindow(5, 9)).state
    TimeWindow(start_ms=0, end_ms=4)
    """
    window, members = new, set[TimeWindow]()
    while touched := {other for other in live if other not in members and other.touches(window)}:
        for other in touched:
            window = window.cover(other)
        members |= touched
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
    for window in merge.merged:
        del live[window]
    live[merge.window] = merge.state
