"""Snapshots of the state of windows, as JSON-able data with a version.

Each key is written separately (`encode_window_key`), so that a runtime can write only the keys that changed.
Timer queues are not written, since they follow from the rest.
"""

from collections.abc import Mapping
from typing import Any

from flowcore.errors import StateError
from flowcore.keyed.plain import from_plain, to_plain
from flowcore.windows.config import WindowConfig
from flowcore.windows.contents import StoredRecord
from flowcore.windows.panes import replace_key
from flowcore.windows.state import KeyState, Lifetime, Pane, WindowState
from flowcore.windows.window import TimeWindow

__all__ = [
    "WINDOW_STATE_VERSION",
    "check_window_version",
    "decode_window_key",
    "encode_window_key",
    "restore",
    "snapshot",
    "window_state_layout",
]

WINDOW_STATE_VERSION = 1


def snapshot(state: WindowState, config: WindowConfig) -> dict[str, Any]:
    """Write the state.

    Raises:
        StateError: A user's value is not plain data.
    """
    return {
        "version": WINDOW_STATE_VERSION,
        "form": window_state_layout(config),
        "watermark_ms": state.watermark_ms,
        "clock_ms": state.clock_ms,
        "dropped_records": state.dropped_records,
        "backlog": state.backlog,
        "keys": [encode_window_key(key, key_state) for key, key_state in state.keys.items()],
    }


def restore(written: Mapping[str, Any], config: WindowConfig) -> WindowState:
    """Read a state that `snapshot` wrote.

    Raises:
        StateError: It has another version or another layout.
    """
    check_window_version(written.get("version"))
    if written.get("form") != window_state_layout(config):
        msg = (
            f"state of windows that keep {written.get('form')!r}, these keep "
            f"{window_state_layout(config)!r}: it cannot be restored; "
            "change windows and function back, or start a new checkpoint"
        )
        raise StateError(msg)
    state = WindowState(
        written["watermark_ms"],
        written["clock_ms"],
        written["dropped_records"],
        written.get("backlog", False),
    )
    for entry in written["keys"]:
        decode_window_key(entry, state, config)
    return state


def check_window_version(version: object) -> None:
    """Check the version of written state.

    Raises:
        StateError: This flowcore reads another version.
    """
    if version != WINDOW_STATE_VERSION:
        msg = (
            f"windows' state of version {version!r}, this flowcore reads {WINDOW_STATE_VERSION}: it would be "
            "read wrongly; use the flowcore that wrote it, or start a new checkpoint"
        )
        raise StateError(msg)


def window_state_layout(config: WindowConfig) -> str:
    """The name of the state layout: state with another layout cannot be restored."""
    merging = "sessions" if config.assigner.merging else "windows"
    ttl = "" if config.ttl_ms is None else " with ttl"
    return f"{config.time}-time {merging} of {config.content_logic.layout}{ttl}"


def encode_window_key(key: Any, key_state: KeyState) -> dict[str, Any]:
    """Write one key and all its windows.

    Raises:
        StateError: A user's value is not plain data.
    """
    windows = []
    for window, state_window in key_state.windows.items():
        pane = key_state.panes[state_window]
        windows.append(
            {
                "window": [window.start_ms, window.end_ms],
                "state_window": [state_window.start_ms, state_window.end_ms],
                "content": [[each.arrival, each.timestamp_ms, to_plain(each.value)] for each in pane.content],
                "trigger": to_plain(pane.trigger),
                "event_timers": sorted(pane.event_timers),
                "processing_timers": sorted(pane.processing_timers),
                "firings": pane.firings,
                "own": to_plain(pane.own),
                **({} if pane.life is None else {"life": pane.life}),
            }
        )
    return {
        "key": to_plain(key),
        "arrivals": key_state.arrivals,
        "own": to_plain(key_state.own),
        "windows": windows,
    }


def decode_window_key(written: Mapping[str, Any], state: WindowState, config: WindowConfig) -> None:
    """Read one key into a state, with its timers; it replaces the key that is there."""
    key_state = KeyState(written["arrivals"], own=from_plain(written["own"]))
    for entry in written["windows"]:
        state_window = TimeWindow(*entry["state_window"])
        key_state.windows[TimeWindow(*entry["window"])] = state_window
        key_state.panes[state_window] = Pane(
            content=[
                StoredRecord(arrival, timestamp_ms, from_plain(value))
                for arrival, timestamp_ms, value in entry["content"]
            ],
            trigger=from_plain(entry["trigger"]),
            event_timers=set(entry["event_timers"]),
            processing_timers=set(entry["processing_timers"]),
            firings=entry["firings"],
            own=from_plain(entry["own"]),
            life=Lifetime(*entry["life"]) if "life" in entry else None,
        )
    replace_key(state, from_plain(written["key"]), key_state, config)
