"""Read the stored state of a key group without the operator that wrote it.

No user's code is imported or called. The state layout in the manifest says what an operator stores; for an
unknown layout only sizes are shown. Times are integer milliseconds since the epoch, UTC.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa

from flowcore.keyed.content import (
    TOUCHED,
    read_ended_ms,
    read_entries,
    read_expired_ms,
    read_tables,
    select_operator,
)
from flowcore.keyed.key_index import key_by_name
from flowcore.keyed.manifest import StateManifest
from flowcore.keyed.plain import from_plain
from flowcore.keyed.store import read_manifests
from flowcore.serializers.python_values import to_rows

__all__ = ["InspectedGroup", "InspectedKey", "inspect_state"]

_JSON_BITS = 10_000
_LAYOUT = re.compile(
    r"(?P<kind>panes of (?P<pane_ms>\d+) ms at (?P<offset_ms>\d+)|\w+) by (?P<keys>.*?)(?:: |$)", re.DOTALL
)
_KeyRows = tuple[dict[str, Any], list[dict[str, Any]]]
_WINDOW_FIELDS = ("firings", "event_timers", "processing_timers", "trigger", "own")


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectedKey:
    """The state of one key.

    Attributes:
        key: Values by column.
        windows: Each with ``start_ms`` and ``end_ms``; with ``records`` (the number of buffered records or
            accumulators) or ``fields`` (the aggregates), ``firings`` and timers.
        panes: The same for the panes of overlapping windows.
        states: The values of a process function's states, by name.
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
        shown: dict[str, Any] = json.loads(json.dumps(_shown(found), default=str))
        return shown


def _shown(value: Any) -> Any:
    """A value whose whole numbers JSON can have: longer ones are hexadecimal text."""
    if isinstance(value, dict):
        return {key: _shown(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(each) for each in value]
    return hex(value) if isinstance(value, int) and value.bit_length() > _JSON_BITS else value


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectedGroup:
    """The state of one key group.

    Attributes:
        wake_ms: The processing time of its next step without input; None if there is none.
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


def _keys(manifest: StateManifest, pieces: Sequence[bytes]) -> Iterator[InspectedKey] | None:
    layout, header, pieces = select_operator(manifest.layout, manifest.header, pieces)
    match = _LAYOUT.match(layout)
    if match is None:
        return None
    names = match["keys"].split(", ") if match["keys"] else []
    kind = match["kind"]
    if kind in ("records", "process"):
        show = _show_windows if kind == "records" else _show_process
        return (show(names, entry) for entry in read_entries(layout, pieces) or ())
    by_table = {
        "sessions": _sessions,
        "running": _running,
        "seen": _seen,
        "ranked": _ranked,
        "sorted": _sorted,
        "grouped": _grouped,
    }
    if not match["pane_ms"] and kind not in {*by_table, "joined", "totals"}:
        return None
    tables = read_tables(header, pieces, len(names))
    if kind == "joined":
        return _joined(names, tables, header)
    if kind == "totals":
        return _totals(names, tables)
    if kind in by_table:
        return by_table[kind](_by_key(names, tables.get(kind)), header)
    return _panes(_by_key(names, tables.get("panes")), int(match["pane_ms"]), int(match["offset_ms"]))


def _by_key(names: list[str], table: pa.RecordBatch | None) -> Iterable[_KeyRows]:
    """The rows of each key, without their columns of the key."""
    found: dict[str, _KeyRows] = {}
    for row in () if table is None else to_rows(table):
        key = {name: row.pop(f"key{number}") for number, name in enumerate(names)}
        found.setdefault(repr(key), (key, []))[1].append(row)
    return found.values()


def _panes(found: Iterable[_KeyRows], pane_ms: int, offset_ms: int) -> Iterator[InspectedKey]:
    for key, rows in found:
        starts = [offset_ms + row.pop("pane") * pane_ms for row in rows]
        panes = [
            {"start_ms": start_ms, "end_ms": start_ms + pane_ms, "fields": fields}
            for start_ms, fields in zip(starts, rows, strict=True)
        ]
        yield InspectedKey(key=key, panes=panes)


def _sessions(found: Iterable[_KeyRows], header: Mapping[str, Any]) -> Iterator[InspectedKey]:
    ended_ms = read_ended_ms(header)
    for key, rows in found:
        windows = []
        for row in rows:
            start_ms, last_ms, firings = (row.pop(name) for name in ("start", "last", "firings"))
            if last_ms > ended_ms:
                window = {"start_ms": start_ms, "end_ms": last_ms + 1, "fields": row, "firings": firings}
                windows.append(window)
        if windows:
            yield InspectedKey(key=key, windows=windows)


def _running(found: Iterable[_KeyRows], _header: Mapping[str, Any]) -> Iterator[InspectedKey]:
    """The running aggregates of each key, without their times."""
    for key, (row,) in found:
        yield InspectedKey(key=key, states={name: value for name, value in row.items() if name[:1] != "@"})


def _seen(found: Iterable[_KeyRows], header: Mapping[str, Any]) -> Iterator[InspectedKey]:
    """The keys that deduplication remembers, with the timestamps of their records."""
    now_ms, within_ms = header["now_ms"], header["within_ms"]
    for key, rows in found:
        passed_ms = [
            row["time_ms"]
            for row in rows
            if within_ms is None or (row["arrival_ms"] // within_ms + 2) * within_ms > now_ms
        ]
        if passed_ms:
            yield InspectedKey(key=key, states={"passed_ms": passed_ms})


def _sorted(found: Iterable[_KeyRows], header: Mapping[str, Any]) -> Iterator[InspectedKey]:
    """The keys whose records wait for the watermark, with the timestamps of these, the earliest first."""
    for key, rows in found:
        if waiting := sorted(each for row in rows if (each := row["@time_ms"]) > header["watermark_ms"]):
            yield InspectedKey(key=key, states={"waiting_ms": waiting})


def _ranked(found: Iterable[_KeyRows], header: Mapping[str, Any]) -> Iterator[InspectedKey]:
    """The rows of each key that have a rank, by rank; rows of the key's last time replace earlier ones.

    A deletion is in the deltas until the next snapshot, and is not shown.
    """
    deleted = header.get("deleted")
    for key, rows in found:
        if deleted is not None and rows[-1][deleted]:
            continue
        touched_ms = max(row[TOUCHED] for row in rows)
        ranked = sorted(
            (row for row in rows if row[TOUCHED] == touched_ms), key=lambda row: int(row["@rank"])
        )
        own = [{name: value for name, value in row.items() if name[:1] != "@"} for row in ranked]
        yield InspectedKey(key=key, states={"rows": own})


def _grouped(found: Iterable[_KeyRows], header: Mapping[str, Any]) -> Iterator[InspectedKey]:  # noqa: ARG001 - as the others
    """The number of rows in each group of a ranking of a changelog; the changelog shows the rows."""
    for key, rows in found:
        yield InspectedKey(key=key, states={"rows": len(rows)})


def _show_windows(names: list[str], entry: Mapping[str, Any]) -> InspectedKey:
    windows = []
    for each in entry["windows"]:
        start_ms, end_ms = each["window"]
        shown = {"start_ms": start_ms, "end_ms": end_ms, "records": len(each["content"])}
        kept = {name: from_plain(each[name]) for name in _WINDOW_FIELDS}
        windows.append(shown | {name: value for name, value in kept.items() if value not in (None, [], {})})
    own = from_plain(entry["own"])
    return InspectedKey(key=key_by_name(names, from_plain(entry["key"])), windows=windows, states=own)


def _show_process(names: list[str], entry: Mapping[str, Any]) -> InspectedKey:
    return InspectedKey(
        key=key_by_name(names, from_plain(entry["key"])),
        states={name: _cell(cell) for name, cell in entry["states"].items()},
        event_timers=entry["event_timers"],
        processing_timers=entry["processing_timers"],
    )


def _joined(
    names: list[str], tables: Mapping[str, pa.RecordBatch], header: Mapping[str, Any]
) -> Iterator[InspectedKey]:
    """The keys whose rows a join keeps, with the timestamps of the rows of each side."""
    select = _select_latest if "loaded" in header else _select_live
    found: dict[str, tuple[dict[str, Any], dict[str, list[int]]]] = {}
    for side in ("left", "right"):
        for key, rows in _by_key(names, tables.get(side)):
            if times_ms := select(side, rows, header):
                found.setdefault(repr(key), (key, {}))[1][f"{side}_ms"] = times_ms
    for key, states in found.values():
        yield InspectedKey(key=key, states=states)


def _select_live(side: str, rows: list[dict[str, Any]], header: Mapping[str, Any]) -> list[int]:
    """The timestamps of rows that can still have partners in an interval join or an as-of join."""
    is_asof, watermark_ms = "tolerance_ms" in header, header["watermark_ms"]
    reach_ms = header["tolerance_ms" if is_asof else "before_ms"]
    times_ms = [row["@time_ms"] for row in rows]
    if "expired_ms" in header:
        times_ms = [each for each in times_ms if each > header["expired_ms"]]
    if side == "left":
        reach_ms = header.get("after_ms", 0)
    elif is_asof:
        times_ms = _newest(times_ms, watermark_ms)
    return [each for each in times_ms if reach_ms is None or each + reach_ms > watermark_ms]


def _select_latest(side: str, rows: list[dict[str, Any]], header: Mapping[str, Any]) -> list[int]:
    """When the right row of a join with the newest arrived, or the timestamps of left rows that wait."""
    if side == "left":
        return [] if header["loaded"] else [row["@time_ms"] for row in rows]
    newest = max(rows, key=lambda row: (row["@time_ms"], row["@id"]))
    newest_ms, deleted = newest["@time_ms"], header.get("deleted")
    is_expired = newest_ms <= read_expired_ms(header)
    return [] if is_expired or (deleted is not None and newest[deleted]) else [newest_ms]


def _totals(names: list[str], tables: Mapping[str, pa.RecordBatch]) -> Iterator[InspectedKey]:
    """The groups of an aggregate over changing rows: their rows, sums, and how many values they count."""
    counted: dict[str, dict[str, int]] = {}
    for table in sorted(tables.keys() - {"totals"}):
        for key, rows in _by_key(names, tables[table]):
            counted.setdefault(repr(key), {})[table] = sum(row["@count"] != 0 for row in rows)
    for key, (row,) in _by_key(names, tables.get("totals")):
        own = {name: value for name, value in row.items() if name[:1] != "@"}
        if number := row["@rows"]:
            yield InspectedKey(key=key, states={"rows": number, **own, **counted.get(repr(key), {})})


def _newest(times_ms: Iterable[int], watermark_ms: int) -> list[int]:
    """The newest time up to the watermark, and the later ones."""
    times_ms = sorted(set(times_ms))
    passed = sum(each <= watermark_ms for each in times_ms)
    return times_ms[max(passed - 1, 0) :]


def _cell(written: list[list[Any]]) -> Any:
    """The value of a value state; the entries of a map or a list, by name."""
    cell = {from_plain(name): from_plain(value) for name, value, _ in written}
    return cell[None] if cell.keys() == {None} else {str(name): value for name, value in cell.items()}
