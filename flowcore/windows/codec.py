"""The state of windows as bytes, key by key.

A piece of state has a version byte and JSON: keys with their windows, and keys that are gone. Timer queues
are not written, since they follow from the rest.
"""

import json
from collections.abc import Collection, Mapping
from typing import Any

from flowcore.keyed.plain import encode_json, from_plain, to_plain
from flowcore.keyed.versions import strip_version
from flowcore.windows.config import WindowConfig
from flowcore.windows.contents import StoredRecord
from flowcore.windows.panes import delete_key, replace_key
from flowcore.windows.state import KeyState, Lifetime, Pane, WindowState
from flowcore.windows.window import TimeWindow

__all__ = ["decode_windows", "encode_window_key", "encode_windows", "window_state_layout"]

_VERSION = 1


def window_state_layout(config: WindowConfig) -> str:
    """The name of the state layout: state with another layout cannot be restored."""
    merging = "sessions" if config.assigner.merging else "windows"
    ttl = "" if config.ttl_ms is None or config.newest_timestamp else " with ttl"
    return f"{config.time}-time {merging} of {config.content_logic.layout}{ttl}"


def encode_windows(keys: Collection[Any], state: WindowState) -> bytes:
    """Write some keys; those that the state does not have are gone.

    Raises:
        StateError: A user's value is not plain data.
    """
    written = {
        "keys": [encode_window_key(key, state.keys[key]) for key in keys if key in state.keys],
        "gone": [to_plain(key) for key in keys if key not in state.keys],
    }
    return bytes([_VERSION]) + encode_json(written)


def decode_windows(piece: bytes, state: WindowState, config: WindowConfig) -> None:
    """Read keys into a state, with their timers; they replace those that are there.

    Raises:
        StateError: Another version wrote them.
    """
    written = json.loads(strip_version("windows' state", piece, _VERSION))
    for entry in written["keys"]:
        replace_key(state, from_plain(entry["key"]), _decode_key(entry), config)
    for key in written["gone"]:
        delete_key(state, from_plain(key), config)


def encode_window_key(key: Any, key_state: KeyState) -> dict[str, Any]:
    """One key and all its windows as JSON-able data."""
    windows = []
    for window, state_window in key_state.windows.items():
        pane = key_state.panes[state_window]
        windows.append(
            {
                "window": [window.start_ms, window.end_ms],
                "state_window": [state_window.start_ms, state_window.end_ms],
                "content": [[each.timestamp_ms, to_plain(each.value)] for each in pane.content],
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
        "own": to_plain(key_state.own),
        "windows": windows,
    }


def _decode_key(written: Mapping[str, Any]) -> KeyState:
    key_state = KeyState(own=from_plain(written["own"]))
    for entry in written["windows"]:
        state_window = TimeWindow(*entry["state_window"])
        key_state.windows[TimeWindow(*entry["window"])] = state_window
        key_state.panes[state_window] = Pane(
            content=[
                # Earlier versions wrote a number before them.
                StoredRecord(timestamp_ms, from_plain(value))
                for *_, timestamp_ms, value in entry["content"]
            ],
            trigger=from_plain(entry["trigger"]),
            event_timers=set(entry["event_timers"]),
            processing_timers=set(entry["processing_timers"]),
            firings=entry["firings"],
            own=from_plain(entry["own"]),
            life=Lifetime(*entry["life"]) if "life" in entry else None,
        )
    return key_state
