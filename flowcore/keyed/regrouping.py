"""Distribute the stored state of an operator over another number of key groups.

Each entry moves to the key group of its key. State without key (watermarks, clocks, what a buffer holds
besides its records) is the same in all key groups, or is combined so that nothing is emitted too early.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from flowcore.elements import MIN_TIMESTAMP_MS
from flowcore.errors import StateError
from flowcore.keyed.content import BUFFER, StateContent, StoredSchemas, read_content, split_layout
from flowcore.keyed.key_index import Ints
from flowcore.keyed.manifest import SegmentRef, StateManifest, StatePosition
from flowcore.watermarks.merge import MergedWatermark, delay_watermark

__all__ = ["Assign", "ContentDigest", "RegroupedState", "StoredGroup", "regroup_state"]

Assign = Callable[[pa.RecordBatch, int], Ints]
"""The key group of each key, from the keys and the number of key groups."""


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """The state of an operator in one key group: its manifest, its snapshot, then its deltas."""

    manifest: StateManifest
    pieces: Sequence[bytes]

    def read(self, schemas: StoredSchemas) -> list[StateContent]:
        """The entries of the state."""
        return read_content(self.manifest.layout, self.manifest.header, self.pieces, schemas)


@dataclass(slots=True)
class ContentDigest:
    """A digest of entries that depends neither on their order nor on their key groups.

    Attributes:
        entries: The number of entries.
        checksum: The sum of their hashes, 64 bits.
    """

    entries: int = 0
    checksum: int = 0

    def add(self, operator: str, contents: Iterable[StateContent]) -> None:
        """Add the entries of an operator."""
        for content in contents:
            for text in content.texts():
                hashed = hashlib.blake2b(f"{operator}\0{content.part}\0{text}".encode(), digest_size=8)
                self.entries += 1
                self.checksum = (self.checksum + int.from_bytes(hashed.digest(), "big")) % (1 << 64)


@dataclass(slots=True)
class RegroupedState:
    """The state of an operator in the new key groups.

    Attributes:
        groups: The state of each new key group.
        holding: The new key groups with buffered records, which hold control elements too.
        watermark: The watermark that the key groups had.
    """

    groups: list[StoredGroup]
    holding: frozenset[int]
    watermark: MergedWatermark


def regroup_state(
    groups: Mapping[int, StoredGroup],
    schemas: StoredSchemas,
    assign: Assign,
    key_groups: int,
    upstream: Mapping[str, RegroupedState],
) -> RegroupedState:
    """Distribute the state of an operator.

    Args:
        groups: Its state in each old key group that has some.
        schemas: Its keys and results.
        assign: The key groups of keys.
        key_groups: The new number.
        upstream: The operators of earlier exchanges, by name: their key groups are channels.

    Raises:
        StateError: A key is not where it belongs, key groups are at different watermarks, or the state cannot
            be read.
    """
    watermark = _emitted_watermark(groups)
    divided, buffered = _divide(groups, schemas, assign, key_groups)
    manifests = [each.manifest for each in groups.values()]
    wakes = [each.wake_ms for each in manifests if each.wake_ms is not None]
    counters = sum((Counter(each.counters) for each in manifests), Counter[str]())
    found = []
    for number in range(key_groups):
        pieces = divided.get(number, [])
        manifest = StateManifest(
            layout=manifests[0].layout,
            key_groups=key_groups,
            positions=[StatePosition(1, secrets.token_hex(8))],
            snapshot=[SegmentRef(place, len(piece), 1) for place, piece in enumerate(pieces)],
            snapshot_leads_to=1,
            next_segment=len(pieces),
            event_time=_event_time(manifests[0].event_time, key_groups, upstream),
            header=_header(manifests, buffered, number),
            backlog=_backlog(manifests[0].backlog, upstream),
            wake_ms=min(wakes, default=None),
            counters={} if number else dict(counters),
        )
        found.append(StoredGroup(manifest, pieces))
    return RegroupedState(found, frozenset(buffered), watermark)


def _emitted_watermark(groups: Mapping[int, StoredGroup]) -> MergedWatermark:
    """The watermark that all key groups have emitted."""
    found = {number: each.manifest.event_time["merged"] for number, each in groups.items()}
    if len({each["watermark_ms"] for each in found.values()}) > 1:
        shown = ", ".join(f"{number}: {each['watermark_ms']}" for number, each in found.items())
        msg = (
            f"key groups are at different watermarks ({shown}): results would be repeated or lost in a key "
            "group that has keys of several; run the flow in mode slice with new records, and then this again"
        )
        raise StateError(msg)
    emitted = MergedWatermark.from_snapshot(next(iter(found.values())))
    delays_ms = [each.manifest.header.get("watermark_delay_ms", 0) for each in groups.values()]
    emitted.watermark_ms = delay_watermark(emitted.watermark_ms, max(delays_ms))
    return emitted


def _divide(
    groups: Mapping[int, StoredGroup], schemas: StoredSchemas, assign: Assign, key_groups: int
) -> tuple[dict[int, list[bytes]], Counter[int]]:
    """The snapshots of the new key groups, and how many rows their buffers have."""
    divided: dict[int, list[bytes]] = {}
    buffered: Counter[int] = Counter()
    for number, group in groups.items():
        for content in group.read(schemas):
            if (assign(content.keys, group.manifest.key_groups) != number).any():
                msg = (
                    f"key group {number} has keys that do not belong there: they would be moved to a wrong "
                    "key group, and not be found; use the flowcore that wrote the state"
                )
                raise StateError(msg)
            targets = assign(content.keys, key_groups)
            for target in np.unique(targets).tolist():
                mine = np.flatnonzero(targets == target)
                divided.setdefault(target, []).extend(content.encode(mine))
                if content.part == BUFFER:
                    buffered[target] += len(mine)
    return divided, buffered


def _event_time(
    kept: Mapping[str, Any], key_groups: int, upstream: Mapping[str, RegroupedState]
) -> dict[str, Any]:
    """The watermark progress; the channels of an operator upstream are its new key groups."""
    sources = dict(kept["sources"])
    for name in sources.keys() & upstream.keys():
        before, sender = MergedWatermark.from_snapshot(sources[name]), upstream[name]
        channels = MergedWatermark(map(str, range(key_groups)))
        channels.watermark_ms = before.watermark_ms
        channels.channels_ms[:] = sender.watermark.watermark_ms
        channels.idle_channels[:] = sender.watermark.idle
        for number in sender.holding:
            channels.channels_ms[number] = before.channels_ms.min()
            channels.idle_channels[number] = False
        sources[name] = channels.snapshot()
    return {**kept, "sources": sources}


def _backlog(kept: Mapping[str, Any], upstream: Collection[str]) -> dict[str, Any]:
    """The backlog statuses; the key groups of an operator upstream agree on theirs."""
    if not kept:
        return {}
    inputs = {
        name: {**each, "channels": None} if name in upstream else each
        for name, each in kept["inputs"].items()
    }
    return {**kept, "inputs": inputs}


def _header(manifests: Sequence[StateManifest], buffered: Counter[int], number: int) -> Any:
    """The header of a new key group."""
    headers = [each.header for each in manifests]
    operator, buffer = split_layout(manifests[0].layout)
    if not buffer:
        return _combine_own(operator, headers)
    own = _buffer_header(
        [each["buffer"] for each in headers] if operator else headers,
        buffered[number],
        has_markers=number == min(buffered, default=None),
    )
    return (
        {"operator": _combine_own(operator, [each["operator"] for each in headers]), "buffer": own}
        if operator
        else own
    )


_EXPIRING = ("ranked by ", "running by ")


def _combine_own(layout: str, headers: Sequence[Any]) -> Any:
    """The header of an operator, which has only the entries that were not expired in their key groups."""
    found = _combine(headers)
    return {**found, "expired_ms": MIN_TIMESTAMP_MS} if layout.startswith(_EXPIRING) else found


def _combine(values: Sequence[Any]) -> Any:
    """The latest time, the highest number, and all other fields of the headers."""
    first = values[0]
    if isinstance(first, bool):
        return any(values)
    if isinstance(first, int):
        return max(values)
    if isinstance(first, dict):
        names = dict.fromkeys(name for value in values for name in value)
        return {name: _combine([value[name] for value in values if name in value]) for name in names}
    return first


def _buffer_header(headers: Sequence[Any], rows: int, *, has_markers: bool) -> dict[str, Any]:
    """The header of a buffer with so many rows; a buffer without rows holds nothing."""
    rests = [each["rest"] for each in headers]
    watermarks = [held["watermark"] for rest in rests for held in rest["held"] if "watermark" in held]
    statuses = [held for rest in rests for held in rest["held"] if "idle" in held]
    held = [*statuses[-1:], *([{"watermark": max(watermarks)}] if watermarks else [])]
    markers: dict[tuple[str, int], int] = {}
    for operator_id, subtask, marked_ms in (marker for rest in rests for marker in rest["markers"]):
        source = operator_id, subtask
        markers[source] = min(marked_ms, markers.get(source, marked_ms))
    since = [rest["waiting_since_ms"] for rest in rests if rest["waiting_since_ms"] is not None]
    due = [each["due_ms"] for each in headers if each["due_ms"] is not None]
    rest = {
        **rests[0],
        "last_flush_ms": min(each["last_flush_ms"] for each in rests),
        "waiting_since_ms": min(since, default=None) if rows else None,
        "backlog": any(each["backlog"] for each in rests),
        "held": held if rows else [],
        "markers": [[*source, marked_ms] for source, marked_ms in markers.items()] if has_markers else [],
    }
    return {
        "rest": rest,
        "clock_ms": max(each["clock_ms"] for each in headers),
        "heard_ms": max(each["heard_ms"] for each in headers),
        "came": rows,
        "due_ms": min(due, default=None) if rows else None,
    }
