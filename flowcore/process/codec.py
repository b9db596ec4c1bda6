"""State of keyed processes as JSON-able data with a version.

Each key is written on its own (`encode_key`), so that a runtime can write only the keys that changed.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from flowcore.errors import StateError
from flowcore.keyed.plain import from_plain, to_plain
from flowcore.process.state import Entry, ProcessState
from flowcore.process.states import Declaration

__all__ = [
    "STATE_VERSION",
    "decode_key",
    "encode_key",
    "keys_of",
    "remove_key",
    "require_layouts",
    "restore_state",
    "snapshot_state",
]

STATE_VERSION = 1


def snapshot_state(state: ProcessState, declared: Mapping[str, Declaration]) -> dict[str, Any]:
    """The whole state as JSON-able data.

    Raises:
        StateError: A user's value is not plain data.
    """
    return {
        "version": STATE_VERSION,
        "states": {name: each.layout for name, each in declared.items()},
        "watermark_ms": state.watermark_ms,
        "clock_ms": state.clock_ms,
        "backlog": state.backlog,
        "keys": [encode_key(key, state) for key in keys_of(state)],
    }


def restore_state(written: Mapping[str, Any], declared: Mapping[str, Declaration]) -> ProcessState:
    """The state of a snapshot.

    Raises:
        StateError: It has another version, or the function declares other states.
    """
    if written.get("version") != STATE_VERSION:
        msg = (
            f"state of version {written.get('version')!r}, this flowcore reads {STATE_VERSION}: it would be "
            "misread; run the flowcore that wrote it, or start a new checkpoint"
        )
        raise StateError(msg)
    require_layouts(written["states"], declared)
    state = ProcessState(written["watermark_ms"], written["clock_ms"], written.get("backlog", False))
    for entry in written["keys"]:
        decode_key(entry, state, declared)
    return state


def require_layouts(written: Mapping[str, str], declared: Mapping[str, Declaration]) -> None:
    """Require that a function declares all states that were written; it may declare more.

    Raises:
        StateError: A state is missing or has another layout.
    """
    for name, layout in written.items():
        now = declared[name].layout if name in declared else "nothing"
        if now != layout:
            msg = (
                f"state {name!r} was written as {layout!r}, and the function declares {now!r}: it cannot be "
                "restored; declare it as before and add a new state, or start a new checkpoint"
            )
            raise StateError(msg)


def keys_of(state: ProcessState) -> Iterator[Any]:
    """Every key that has state or timers."""
    return iter({**state.cells, **state.event_timers.owners, **state.processing_timers.owners})


def encode_key(key: Any, state: ProcessState) -> dict[str, Any]:
    """The states and timers of one key; both are empty for a key that has none.

    Raises:
        StateError: A user's value is not plain data.
    """
    return {
        "key": to_plain(key),
        "states": {
            name: [[to_plain(entry), to_plain(kept.value), kept.used_ms] for entry, kept in cell.items()]
            for name, cell in state.cells.get(key, {}).items()
        },
        "event_timers": sorted(state.event_timers.times_of(key)),
        "processing_timers": sorted(state.processing_timers.times_of(key)),
    }


def decode_key(written: Mapping[str, Any], state: ProcessState, declared: Mapping[str, Declaration]) -> None:
    """Add the state of one key."""
    key = from_plain(written["key"])
    for name, entries in written["states"].items():
        cell = {from_plain(entry): Entry(from_plain(value), used_ms) for entry, value, used_ms in entries}
        state.cells.setdefault(key, {})[name] = cell
        ttl_ms = declared[name].ttl_ms
        if ttl_ms is not None:
            state.expiries.add((key, name), next(iter(cell.values())).used_ms + ttl_ms)
    for time_ms in written["event_timers"]:
        state.event_timers.add(key, time_ms)
    for time_ms in written["processing_timers"]:
        state.processing_timers.add(key, time_ms)


def remove_key(key: Any, state: ProcessState) -> None:
    """Remove the state and timers of one key."""
    for name in state.cells.pop(key, {}):
        state.expiries.discard_all((key, name))
    state.event_timers.discard_all(key)
    state.processing_timers.discard_all(key)
