"""Snapshots: how is the state of windows written, so that it can be gone on from after a restart?

As JSON-able data with a version. Each key is written by itself (`encode_key`), so that a runtime can keep
them apart and write only those that have changed. Timer queues are not written: they follow from the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowcore.errors import StateError
from flowcore.keyed.plain import from_plain, to_plain
from flowcore.windows.config import WindowConfig
from flowcore.windows.contents import StoredRecord
from flowcore.windows.panes import OpenPane
from flowcore.windows.state import KeyState, Pane, WindowState
from flowcore.windows.window import TimeWindow

__all__ = ["VERSION", "decode_key", "encode_key", "layout_of", "restore", "snapshot"]

VERSION = 1


def snapshot(state: WindowState, config: WindowConfig) -> dict[str, Any]:
    """Everything that has to be remembered.

    Raises:
        StateError: A user's value is not plain data.
    """
    return {
        "version": VERSION,
        "form": layout_of(config),
        "watermark_ms": state.watermark_ms,
        "clock_ms": state.clock_ms,
        "dropped_records": state.dropped_records,
        "backlog": state.backlog,
        "keys": [encode_key(key, key_state) for key, key_state in state.keys.items()],
    }


def restore(written: Mapping[str, Any], config: WindowConfig) -> WindowState:
    """The state that was written.

    Raises:
        StateError: It is of another version, or of windows that keep something else.
    """
    if written.get("version") != VERSION:
        msg = (
            f"state of version {written.get('version')!r}, this flowcore reads {VERSION}: reading it would "
            "make something else of it; go on with the flowcore that wrote it, or start a new checkpoint"
        )
        raise StateError(msg)
    if written.get("form") != layout_of(config):
        msg = (
            f"state of windows that keep {written.get('form')!r}, these keep {layout_of(config)!r}: it "
            "cannot be restored; change windows and function back, or start a new checkpoint"
        )
        raise StateError(msg)
    state = WindowState(
        written["watermark_ms"],
        written["clock_ms"],
        written["dropped_records"],
        written.get("backlog", False),
    )
    for entry in written["keys"]:
        decode_key(entry, state, config)
    return state


def encode_key(key: Any, key_state: KeyState) -> dict[str, Any]:
    """One key and all its windows.

    Raises:
        StateError: A user's value is not plain data.
    """
    return {
        "key": to_plain(key),
        "arrivals": key_state.arrivals,
        "own": to_plain(key_state.own),
        "windows": [
            {
                "window": [window.start_ms, window.end_ms],
                "state_window": [state_window.start_ms, state_window.end_ms],
                **_encode_pane(key_state.panes[state_window]),
            }
            for window, state_window in key_state.windows.items()
        ],
    }


def decode_key(written: Mapping[str, Any], state: WindowState, config: WindowConfig) -> None:
    """Put one key that was written into a state, its timers too."""
    key = from_plain(written["key"])
    key_state = KeyState(written["arrivals"], own=from_plain(written["own"]))
    state.keys[key] = key_state
    for entry in written["windows"]:
        window, state_window = TimeWindow(*entry["window"]), TimeWindow(*entry["state_window"])
        pane = _decode_pane(entry)
        key_state.windows[window] = state_window
        key_state.panes[state_window] = pane
        opened = OpenPane(state, key, key_state, window, pane)
        for time_ms in entry["event_timers"]:
            opened.register_event_timer(time_ms)
        for time_ms in entry["processing_timers"]:
            opened.register_processing_timer(time_ms)
        opened.await_end(config)


def _encode_pane(pane: Pane) -> dict[str, Any]:
    return {
        "content": [[held.arrival, held.timestamp_ms, to_plain(held.value)] for held in pane.content],
        "trigger": to_plain(pane.trigger),
        "event_timers": sorted(pane.event_timers),
        "processing_timers": sorted(pane.processing_timers),
        "firings": pane.firings,
        "own": to_plain(pane.own),
    }


def _decode_pane(written: Mapping[str, Any]) -> Pane:
    return Pane(
        content=[
            StoredRecord(arrival, timestamp_ms, from_plain(value))
            for arrival, timestamp_ms, value in written["content"]
        ],
        trigger=from_plain(written["trigger"]),
        firings=written["firings"],
        own=from_plain(written["own"]),
    )


def layout_of(config: WindowConfig) -> str:
    """What is kept: state of another form cannot be gone on from."""
    merging = "sessions" if config.assigner.merging else "windows"
    return f"{config.time}-time {merging} of {config.content_logic.layout}"
