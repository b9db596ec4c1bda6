"""The state of keyed processes as bytes, key by key: a version byte and JSON."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from flowcore.errors import StateError
from flowcore.keyed.plain import encode_json, from_plain, to_plain
from flowcore.keyed.versions import strip_version
from flowcore.process.state import Entry, ProcessState
from flowcore.process.states import Declaration

__all__ = ["decode_keys", "encode_key", "encode_keys", "keys_of", "require_layouts"]

_VERSION = 1


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


def encode_keys(keys: Iterable[Any], state: ProcessState) -> bytes:
    """Write some keys.

    Raises:
        StateError: A user's value is not plain data.
    """
    return bytes([_VERSION]) + encode_json([encode_key(key, state) for key in keys])


def decode_keys(piece: bytes, state: ProcessState, declared: Mapping[str, Declaration]) -> None:
    """Read keys into a state; they replace those that are there.

    Raises:
        StateError: Another version wrote them.
    """
    for entry in json.loads(strip_version("state", piece, _VERSION)):
        _remove_key(from_plain(entry["key"]), state)
        _decode_key(entry, state, declared)


def encode_key(key: Any, state: ProcessState) -> dict[str, Any]:
    """The states and timers of one key as JSON-able data; both are empty for a key that has none."""
    return {
        "key": to_plain(key),
        "states": {
            name: [[to_plain(entry), to_plain(kept.value), kept.used_ms] for entry, kept in cell.items()]
            for name, cell in state.cells.get(key, {}).items()
        },
        "event_timers": sorted(state.event_timers.times_of(key)),
        "processing_timers": sorted(state.processing_timers.times_of(key)),
    }


def _decode_key(written: Mapping[str, Any], state: ProcessState, declared: Mapping[str, Declaration]) -> None:
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


def _remove_key(key: Any, state: ProcessState) -> None:
    for name in state.cells.pop(key, {}):
        state.expiries.discard_all((key, name))
    state.event_timers.discard_all(key)
    state.processing_timers.discard_all(key)
