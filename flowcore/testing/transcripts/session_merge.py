"""Transcripts of kind ``session-merge``: merging alone, without records or time."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from flowcore.errors import ConfigurationError
from flowcore.testing.transcripts.runner import Refused, TranscriptKind
from flowcore.windows.merging import apply_merge, merge_groups, plan_merge
from flowcore.windows.window import TimeWindow

__all__ = ["KIND"]

_ANY_ORDER = ("into", "merged", "merged_states", "live")


class _Merging:
    def __init__(self, operator: Mapping[str, Any]) -> None:
        self._lazy_below = operator.get("lazy_below") or 2
        self._live: dict[TimeWindow, TimeWindow] = {}

    def act(self, action: str, argument: Any, /) -> Mapping[str, Any]:
        match action:
            case "merge":
                windows = [TimeWindow(*window) for window in argument]
                groups = merge_groups(windows, lazy_below=self._lazy_below)
                return {"into": [{"window": _shown(g.window), "of": _all_shown(g.of)} for g in groups]}
            case "add":
                return {**self._add(TimeWindow(*argument)), **self._shown_live()}
            case "retire":
                self._retire(TimeWindow(*argument))
                return self._shown_live()
            case "restart":
                self._restart()
                return self._shown_live()
            case _:
                msg = f"transcripts of merging have no action {action!r}: nothing would be done; remove it"
                raise ConfigurationError(msg)

    def _add(self, window: TimeWindow) -> dict[str, Any]:
        merge = plan_merge(self._live, window, lazy_below=self._lazy_below)
        apply_merge(self._live, merge)
        return {
            "window": _shown(merge.window),
            "state": _shown(merge.state),
            "merged": _all_shown(merge.merged),
            "merged_states": _all_shown(merge.merged_states),
        }

    def _retire(self, window: TimeWindow) -> None:
        if self._live.pop(window, None) is None:
            word = "invalid-argument"
            raise Refused(word)

    def _restart(self) -> None:
        written = json.dumps([[_shown(window), _shown(state)] for window, state in self._live.items()])
        self._live = {TimeWindow(*window): TimeWindow(*state) for window, state in json.loads(written)}

    def _shown_live(self) -> dict[str, Any]:
        return {"live": _all_shown(self._live)}


def _agrees(name: str, expected: Any, seen: Mapping[str, Any]) -> bool | None:
    if name == "state_one_of":
        return list(seen.get("state", ())) in [list(window) for window in expected]
    if name == "merged_states_count":
        return "merged_states" in seen and len(seen["merged_states"]) == expected
    if name in _ANY_ORDER:
        return _sorted(expected or ()) == _sorted(seen.get(name) or ())
    return None


def _sorted(items: Sequence[Any]) -> list[str]:
    """A form in which the order of windows and groups makes no difference."""
    return sorted(
        json.dumps(
            {**item, "of": sorted(item.get("of", ()))} if isinstance(item, Mapping) else list(item),
            sort_keys=True,
        )
        for item in items
    )


def _shown(window: TimeWindow) -> list[int]:
    return [window.start_ms, window.end_ms]


def _all_shown(windows: Any) -> list[list[int]]:
    return [_shown(window) for window in windows]


KIND = TranscriptKind(
    name="session-merge", build=_Merging, actions=frozenset({"merge", "add", "retire"}), agrees=_agrees
)
