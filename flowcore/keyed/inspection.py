"""Reads the stored state of a key group without the operator that wrote it.

No user's code is imported or called. The state layout in the manifest says what an operator stores; for an
unknown layout only sizes are shown. Times are integer milliseconds since the epoch, UTC.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from flowcore.elements import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from flowcore.keyed import segments
from flowcore.keyed.key_index import key_by_name
from flowcore.keyed.manifest import StateManifest
from flowcore.keyed.plain import from_plain
from flowcore.keyed.store import read_manifests

__all__ = ["InspectedGroup", "InspectedKey", "inspect_state"]

_PANES = re.compile(r"panes of (\d+) ms at (\d+) by (.*): ", re.DOTALL)
_SESSIONS = re.compile(r"sessions by (.*): ", re.DOTALL)
_RECORDS = re.compile(r"records by (.*): ", re.DOTALL)
_WINDOW_FIELDS = ("firings", "event_timers", "processing_timers", "trigger", "own")
_PROCESS = re.compile(r"process by (.*)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectedKey:
    """The state of one key.

    Attributes:
        key: Values by column.
        windows: Each with ``start_ms`` and ``end_ms``; with ``records`` (the number of buffered records or
            accumulators) or ``fields`` (the aggregates), ``firings`` and timers.
        panes: The same for the panes of overlapping windows.
        states: The values of a process function's states, by name.
        event_timers: Times of event-time timers.
        processing_timers: Times of processing-time timers.
    """

    key: Mapping[str, Any]
    windows: list[dict[str, Any]] = field(default_factory=list)
    panes: list[dict[str, Any]] = field(default_factory=list)
    states: Mapping[str, Any] = field(default_factory=dict)
    event_timers: list[int] = field(default_factory=list)
    processing_timers: list[int] = field(default_factory=list)

    def shown(self) -> dict[str, Any]:
        """As JSON-able data, without empty parts."""
        found = {name: value for name, value in asdict(self).items() if value or name == "key"}
        shown: dict[str, Any] = json.loads(json.dumps(found, default=str))
        return shown


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectedGroup:
    """The state of one key group.

    Attributes:
        operator: The name of the operator.
        wake_ms: The processing time of its next step without input; None if there is none.
        bytes: The size of the state in the store.
        counters: Numbers of events since the beginning.
        keys: The state of each key; None for an unknown layout.
    """

    operator: str
    layout: str
    watermark_ms: int
    wake_ms: int | None
    bytes: int
    counters: Mapping[str, int]
    keys: list[InspectedKey] | None


def inspect_state(
    manifests: bytes | None, content: Mapping[tuple[str, int], bytes]
) -> Iterator[InspectedGroup]:
    """The state of each operator, in the manifests of a key group and their segments.

    Raises:
        StateError: Another version wrote them.
    """
    for operator, manifest in read_manifests(manifests).items():
        found = StateManifest.read(manifest)
        pieces = [content[operator, written.segment] for written in (*found.snapshot, *found.deltas)]
        sizes = found.sizes()
        keys = _keys(found, pieces)
        yield InspectedGroup(
            operator=operator,
            layout=found.layout,
            watermark_ms=sizes["watermark_ms"],
            wake_ms=found.wake_ms,
            bytes=sizes["state_bytes"],
            counters=found.counters,
            keys=None if keys is None else list(keys),
        )


def _keys(manifest: StateManifest, pieces: Iterable[bytes]) -> Iterator[InspectedKey] | None:
    if match := _PANES.match(manifest.layout):
        pane_ms, offset_ms, names = match.groups()
        first: int = manifest.header.get("first_pane", MIN_TIMESTAMP_MS)
        return _panes(_names(names), int(pane_ms), int(offset_ms), first, pieces)
    if match := _SESSIONS.match(manifest.layout):
        return _sessions(_names(match[1]), manifest.header, pieces)
    if match := _RECORDS.match(manifest.layout):
        return _records(_names(match[1]), pieces)
    if match := _PROCESS.match(manifest.layout):
        return _processes(_names(match[1]), pieces)
    return None


def _panes(
    names: list[str], pane_ms: int, offset_ms: int, first: int, pieces: Iterable[bytes]
) -> Iterator[InspectedKey]:
    found: dict[str, tuple[dict[str, Any], dict[int, dict[str, Any]]]] = {}
    for row in _rows(pieces, "panes"):
        pane = row.pop("pane")
        if pane >= first:
            key, fields = _split_key(names, row)
            start_ms = offset_ms + pane * pane_ms
            kept = found.setdefault(repr(key), (key, {}))[1]
            kept[pane] = {"start_ms": start_ms, "end_ms": start_ms + pane_ms, "fields": fields}
    for key, panes in found.values():
        yield InspectedKey(key=key, panes=[panes[pane] for pane in sorted(panes)])


def _sessions(names: list[str], header: Mapping[str, Any], pieces: Iterable[bytes]) -> Iterator[InspectedKey]:
    found: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {}
    for piece in pieces:
        fresh: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {}
        for row in _rows([piece], "sessions"):
            start_ms, last_ms, firings = (row.pop(name) for name in ("start", "last", "firings"))
            key, fields = _split_key(names, row)
            window = {"start_ms": start_ms, "end_ms": last_ms + 1, "fields": fields, "firings": firings}
            fresh.setdefault(repr(key), (key, []))[1].append(window)
        found |= fresh
    watermark_ms, lateness_ms = header.get("watermark_ms", MIN_TIMESTAMP_MS), header.get("lateness_ms", 0)
    for key, windows in found.values():
        live = [
            each for each in windows
            if min(each["end_ms"] - 1 + lateness_ms, MAX_TIMESTAMP_MS) > watermark_ms
        ]  # fmt: skip
        if live:
            yield InspectedKey(key=key, windows=live)


def _records(names: list[str], pieces: Iterable[bytes]) -> Iterator[InspectedKey]:
    found: dict[str, dict[str, Any]] = {}
    for piece in pieces:
        written = json.loads(piece[1:])
        found |= {json.dumps(entry["key"]): entry for entry in written["keys"]}
        for key in written["gone"]:
            found.pop(json.dumps(key), None)
    for entry in found.values():
        windows = []
        for each in entry["windows"]:
            start_ms, end_ms = each["window"]
            shown = {"start_ms": start_ms, "end_ms": end_ms, "records": len(each["content"])}
            kept = {name: from_plain(each[name]) for name in _WINDOW_FIELDS}
            windows.append(
                shown | {name: value for name, value in kept.items() if value not in (None, [], {})}
            )
        own = from_plain(entry["own"])
        yield InspectedKey(key=key_by_name(names, from_plain(entry["key"])), windows=windows, states=own)


def _processes(names: list[str], pieces: Iterable[bytes]) -> Iterator[InspectedKey]:
    found = {json.dumps(entry["key"]): entry for piece in pieces for entry in json.loads(piece[1:])}
    for entry in found.values():
        timers = entry["event_timers"], entry["processing_timers"]
        if entry["states"] or any(timers):
            yield InspectedKey(
                key=key_by_name(names, from_plain(entry["key"])),
                states={name: _cell(cell) for name, cell in entry["states"].items()},
                event_timers=timers[0],
                processing_timers=timers[1],
            )


def _cell(written: list[list[Any]]) -> Any:
    """The value of a value state; the entries of a map or a list, by name."""
    cell = {from_plain(name): from_plain(value) for name, value, _ in written}
    return cell[None] if cell.keys() == {None} else {str(name): value for name, value in cell.items()}


def _rows(pieces: Iterable[bytes], name: str) -> Iterator[dict[str, Any]]:
    for piece in pieces:
        for found, table in segments.decode(piece):
            if found == name:
                yield from table.to_pylist()


def _split_key(names: list[str], row: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    key = {name: row.pop(f"key{number}") for number, name in enumerate(names)}
    return key, row


def _names(written: str) -> list[str]:
    return written.split(", ") if written else []
