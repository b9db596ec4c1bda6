"""Runner of transcripts of kind ``session-merge``: merging of windows alone, without records or time."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flowcore.testing.transcripts.runner import Refused, fail_unknown
from flowcore.windows.window import TimeWindow, apply_merge, plan_merge

__all__ = ["SessionMergeRunner", "agrees_with_merge", "merge_groups"]

_ANY_ORDER = ("into", "merged", "merged_states", "live")


@dataclass(frozen=True, slots=True)
class _Group:
    """Windows that overlap or touch, and the window that covers them."""

    window: TimeWindow
    members: tuple[TimeWindow, ...]


def merge_groups(windows: Iterable[TimeWindow], *, lazy_below: int = 2) -> tuple[_Group, ...]:
    """Group the windows that overlap or touch, earliest first; a window that stands alone is in no group.

    >>> [group.window for group in merge_groups([TimeWindow(0, 2), TimeWindow(2, 3), TimeWindow(7, 8)])]
    [TimeWindow(start_ms=0, end_ms=3)]
    """
    groups: list[_Group] = []
    for window in sorted(set(windows)):
        if groups and groups[-1].window.touches(window):
            last = groups[-1]
            groups[-1] = _Group(last.window.cover(window), (*last.members, window))
        else:
            groups.append(_Group(window, (window,)))
    return tuple(group for group in groups if len(group.members) >= max(lazy_below, 2))


class SessionMergeRunner:
    def __init__(self, operator: Mapping[str, Any]) -> None:
        self._lazy_below = operator.get("lazy_below") or 2
        self._live: dict[TimeWindow, TimeWindow] = {}

    def act(self, action: str, argument: Any, /) -> Mapping[str, Any]:
        observed: dict[str, Any] = {}
        match action:
            case "merge":
                groups = merge_groups((TimeWindow(*each) for each in argument), lazy_below=self._lazy_below)
                return {"into": [{"window": _pair(g.window), "of": _pairs(g.members)} for g in groups]}
            case "add":
                observed = self._add(TimeWindow(*argument))
            case "retire":
                if self._live.pop(TimeWindow(*argument), None) is None:
                    word = "invalid-argument"
                    raise Refused(word)
            case "restart":
                written = json.dumps([[_pair(window), _pair(state)] for window, state in self._live.items()])
                self._live = {
                    TimeWindow(*window): TimeWindow(*state) for window, state in json.loads(written)
                }
            case _:
                fail_unknown("merging", action)
        return {**observed, "live": _pairs(self._live)}

    def _add(self, window: TimeWindow) -> dict[str, Any]:
        merge = plan_merge(self._live, window, lazy_below=self._lazy_below)
        apply_merge(self._live, merge)
        return {
            "window": _pair(merge.window),
            "state": _pair(merge.state),
            "merged": _pairs(merge.merged),
            "merged_states": _pairs(merge.merged_states),
        }


def agrees_with_merge(name: str, expected: Any, seen: Mapping[str, Any]) -> bool | None:
    """Compare an expectation about a merge; None for one that is compared as usual."""
    if name == "state_one_of":
        return list(seen.get("state", ())) in [list(window) for window in expected]
    if name == "merged_states_count":
        return "merged_states" in seen and len(seen["merged_states"]) == expected
    if name in _ANY_ORDER:
        return _sorted(expected or ()) == _sorted(seen.get(name) or ())
    return None


def _sorted(items: Sequence[Any]) -> list[str]:
    """Windows and groups as text, in an order that does not depend on theirs."""
    return sorted(
        json.dumps(
            {**item, "of": sorted(item.get("of", ()))} if isinstance(item, Mapping) else list(item),
            sort_keys=True,
        )
        for item in items
    )


def _pair(window: TimeWindow) -> list[int]:
    return [window.start_ms, window.end_ms]


def _pairs(windows: Iterable[TimeWindow]) -> list[list[int]]:
    return [_pair(window) for window in windows]
