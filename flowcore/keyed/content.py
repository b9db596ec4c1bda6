"""Read the stored state of an operator in a key group by key, and encode any part of it again.

It needs the state layout and not the operator: no user's code is called. The deltas are applied to the
snapshot, so each entry is there once. `flowcore.keyed.inspection` shows the entries to a person.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flowcore.elements import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from flowcore.errors import StateError
from flowcore.keyed import segments
from flowcore.keyed.columns import complete_batch, concat_batches
from flowcore.keyed.key_index import Ints, factorize_keys, to_key_columns
from flowcore.keyed.plain import from_plain
from flowcore.serializers.python_values import to_rows

__all__ = [
    "BUFFER", "CHANGES", "GONE", "NEWEST", "REMOVED", "ROW_KEY", "TOUCHED", "StateContent", "StoredSchemas",
    "read_content", "read_ended_ms", "read_entries", "read_expired_ms", "read_tables", "select_operator",
    "split_layout",
]  # fmt: skip

BUFFER = "buffer"
"""The part of the state that is the flush buffer downstream of an operator."""
TOUCHED = "@touched_ms"
"""The column of ranked rows and running aggregates with the time of the last row of their key."""
NEWEST = "@newest_ms"
"""The column of running and retracting aggregates with the latest event time of a row of their key."""
GONE = "@gone"
"""The last column of the rows of groups: true where a row was removed."""
ROW_KEY = "@row"
"""The prefix of the columns that identify a row in its group, in ``@row0``, ``@row1`` and so on."""
CHANGES, REMOVED = "@changes", -1
"""The column of joined rows that may be retracted, with how often they found or lost partners; and its value
of a row that was removed."""

_BUFFERED = re.compile(r"(?:(.*); )?latest by (.*?): ", re.DOTALL)
_TABLES = re.compile(
    r"(panes of \d+ ms at \d+|sessions|running|seen|joined|ranked|sorted|totals|grouped) by ", re.DOTALL
)
_PIECE_ENTRIES = 4096


@dataclass(frozen=True, slots=True)
class StoredSchemas:
    """The schemas that a state layout does not contain.

    Attributes:
        keys: The columns of the operator's key.
        results: The columns of its results, which a flush buffer keeps.
    """

    keys: pa.Schema
    results: pa.Schema


@dataclass(frozen=True, slots=True)
class StateContent:
    """The entries of one part of an operator's state.

    Attributes:
        part: `BUFFER` for a flush buffer, else empty.
        keys: The operator's key of each entry; several entries may have the same key.
        texts: Each entry as text, which does not depend on the key group.
        encode: Encodes some entries, by number, to pieces of a snapshot.
    """

    part: str
    keys: pa.RecordBatch
    texts: Callable[[], Iterator[str]]
    encode: Callable[[Ints], Iterator[bytes]]


def split_layout(layout: str) -> tuple[str, str]:
    """The layouts of an operator and of its flush buffer; empty text without one."""
    match = _BUFFERED.match(layout)
    if match is None:
        return layout, ""
    operator = match[1] or ""
    return operator, layout[len(operator) + 2 :] if operator else layout


def read_content(
    layout: str, header: Mapping[str, Any], pieces: Sequence[bytes], schemas: StoredSchemas
) -> list[StateContent]:
    """The entries of an operator in a key group.

    Args:
        pieces: Its snapshot, then its deltas.

    Raises:
        StateError: The layout is unknown, or another version wrote the state.
    """
    operator, buffer = split_layout(layout)
    if not buffer:
        return [_read_operator(operator, header, pieces, schemas)]
    if not operator:
        return [_read_buffer(buffer, pieces, schemas)]
    buffered = [part for _, part in map(segments.split_piece, pieces) if part]
    own = _read_operator(*select_operator(layout, header, pieces), schemas)
    return [
        _wrap(own, lambda piece: segments.join_pieces(piece, b"")),
        _wrap(_read_buffer(buffer, buffered, schemas), lambda piece: segments.join_pieces(b"", piece)),
    ]


def select_operator(
    layout: str, header: Mapping[str, Any], pieces: Sequence[bytes]
) -> tuple[str, Mapping[str, Any], Sequence[bytes]]:
    """The layout, header and pieces of an operator without those of its flush buffer."""
    operator, buffer = split_layout(layout)
    if not (operator and buffer):
        return operator, header, pieces
    inner = [part for part, _ in map(segments.split_piece, pieces) if part]
    return operator, header["operator"], inner


def read_entries(layout: str, pieces: Sequence[bytes]) -> list[dict[str, Any]] | None:
    """The JSON entry of each key, of an operator that runs record by record; None for another layout."""
    entries: dict[str, dict[str, Any]] = {}
    if layout.startswith("records by "):
        for piece in pieces:
            written = json.loads(piece[1:])
            entries |= {json.dumps(entry["key"]): entry for entry in written["keys"]}
            for key in written["gone"]:
                entries.pop(json.dumps(key), None)
        return [*entries.values()]
    if layout.startswith("process by "):
        entries = {json.dumps(entry["key"]): entry for piece in pieces for entry in json.loads(piece[1:])}
        parts = ("states", "event_timers", "processing_timers")
        return [entry for entry in entries.values() if any(entry[part] for part in parts)]
    return None


def read_tables(header: Mapping[str, Any], pieces: Sequence[bytes], keys: int) -> dict[str, pa.RecordBatch]:
    """The tables of a columnar operator by name, with its key in so many columns ``key0``, ``key1``, ..."""
    found: dict[str, list[pa.RecordBatch]] = {}
    for piece in pieces:
        for name, table in segments.decode(piece):
            found.setdefault(name, []).append(table)
    tables = {}
    for name, batches in found.items():
        # The sessions of a key in a piece replace all earlier ones; the row of a key, or of a key and a pane,
        # a joined row's id, a rank or a value, replaces the earlier one. What was seen is only added.
        columns, names = batches[0].schema.names, _key_names(keys)
        own = {
            "sessions": names, "running": names, "totals": names, "seen": columns,
            "grouped": _row_names(columns, names),
        }  # fmt: skip
        key = own.get(name, [columns[0], *names])
        table = _latest(batches, key, whole_batch=name == "sessions")
        if name == "panes":
            kept = table.column("pane").to_numpy() >= header.get("first_pane", MIN_TIMESTAMP_MS)
            table = table.filter(pa.array(kept))
        if name == "grouped":
            table = table.filter(pc.invert(table.column(GONE)))
        if CHANGES in columns:
            table = table.filter(pa.array(table.column(CHANGES).to_numpy() != REMOVED))
        if name in ("ranked", "running"):
            table = table.filter(pa.array(table.column(TOUCHED).to_numpy() > read_expired_ms(header)))
        tables[name] = table.sort_by(columns[0]) if name in ("panes", "refirings") else table
    return tables


def read_ended_ms(header: Mapping[str, Any]) -> int:
    """The time up to which windows have ended, in the state of this header; below all times if unknown."""
    if "ended_ms" in header or "lateness_ms" not in header:
        return int(header.get("ended_ms", 2 * MIN_TIMESTAMP_MS))
    watermark_ms = int(header["watermark_ms"])  # an earlier version wrote it, of sessions
    return watermark_ms if watermark_ms == MAX_TIMESTAMP_MS else watermark_ms - int(header["lateness_ms"])


def read_expired_ms(header: Mapping[str, Any]) -> int:
    """When the last rows came that have expired, of a ranking or a join, in the state of this header."""
    if "expired_ms" in header or header["ttl_ms"] is None:
        return int(header.get("expired_ms", MIN_TIMESTAMP_MS))
    now_ms = header["now_ms"] if "now_ms" in header else header["clock_ms"]
    return int(now_ms - header["ttl_ms"])  # an earlier version wrote it


def _wrap(content: StateContent, wrap: Callable[[bytes], bytes]) -> StateContent:
    return replace(content, encode=lambda entries: map(wrap, content.encode(entries)))


def _read_operator(
    layout: str, header: Mapping[str, Any], pieces: Sequence[bytes], schemas: StoredSchemas
) -> StateContent:
    if _TABLES.match(layout):
        tables, names = read_tables(header, pieces, len(schemas.keys)), _key_names(len(schemas.keys))
        return _of_tables(tables, names, schemas, lambda name, rows: segments.encode({name: rows}))
    entries = read_entries(layout, pieces)
    if entries is None:
        msg = (
            f"state with the layout {layout!r} is unknown to this flowcore: it cannot be divided by key; use "
            "the flowcore that wrote it"
        )
        raise StateError(msg)
    return _of_entries(pieces, entries, schemas, with_gone=layout.startswith("records by "))


def _key_names(keys: int) -> list[str]:
    return [f"key{number}" for number in range(keys)]


def _row_names(columns: Sequence[str], keys: Sequence[str]) -> list[str]:
    """The columns that identify a row of a group, those of its key included."""
    return [*keys, *(name for name in columns if name.startswith(ROW_KEY))]


def _of_entries(
    pieces: Sequence[bytes],
    entries: list[dict[str, Any]],
    schemas: StoredSchemas,
    *,
    with_gone: bool,
) -> StateContent:
    """The state of an operator that writes a JSON entry for each key, after a version byte."""
    version = pieces[-1][:1] if pieces else b""

    def encode(numbers: Ints) -> Iterator[bytes]:
        for start in range(0, len(numbers), _PIECE_ENTRIES):
            found = [entries[number] for number in numbers[start : start + _PIECE_ENTRIES].tolist()]
            yield version + json.dumps({"keys": found, "gone": []} if with_gone else found).encode()

    columns = to_key_columns([from_plain(entry["key"]) for entry in entries], schemas.keys.types)
    keys = _batch(columns, schemas.keys.names, len(entries))
    return StateContent("", keys, lambda: (json.dumps(entry, sort_keys=True) for entry in entries), encode)


def _batch(columns: Sequence[pa.Array[Any]], names: Sequence[str], rows: int) -> pa.RecordBatch:
    """A batch of keys; without key columns it has a column of nulls, so that it has a number of rows."""
    if not columns:
        return pa.RecordBatch.from_arrays([pa.nulls(rows)], [""])
    return pa.RecordBatch.from_arrays(list(columns), list(names))


def _latest(batches: Sequence[pa.RecordBatch], key: Sequence[str], *, whole_batch: bool) -> pa.RecordBatch:
    """The last row of each key; with ``whole_batch`` all its rows in the last batch that has some."""
    schema = pa.unify_schemas([each.schema for each in batches])  # an earlier version wrote fewer columns
    rows = concat_batches([complete_batch(each, schema) for each in batches])
    codes = factorize_keys([rows.column(name) for name in key], rows.num_rows).codes
    place = np.arange(rows.num_rows)
    if whole_batch:
        place = np.repeat(np.arange(len(batches)), [each.num_rows for each in batches])
    last = np.zeros(codes.max(initial=-1) + 1, np.int64)
    np.maximum.at(last, codes, place)
    return rows.filter(pa.array(last[codes] == place))


def _of_tables(
    tables: Mapping[str, pa.RecordBatch],
    keys: Sequence[str],
    schemas: StoredSchemas,
    write: Callable[[str, pa.RecordBatch], bytes],
    part: str = "",
) -> StateContent:
    starts = np.cumsum([0, *(table.num_rows for table in tables.values())])

    def texts() -> Iterator[str]:
        for name, table in tables.items():
            yield from (f"{name} {row}" for row in to_rows(table))

    def encode(numbers: Ints) -> Iterator[bytes]:
        for (name, table), start in zip(tables.items(), starts.tolist(), strict=False):
            mine = numbers[(numbers >= start) & (numbers < start + table.num_rows)] - start
            chosen = table.take(pa.array(mine))
            whole = _row_names(table.schema.names, keys) if name == "grouped" else keys
            for begin, end in pairwise(_piece_ends(chosen, whole)):
                yield write(name, chosen.slice(begin, end - begin))

    columns = [
        pa.concat_arrays([table.column(name) for table in tables.values()] or [pa.array([], field.type)])
        for name, field in zip(keys, schemas.keys, strict=True)
    ]
    return StateContent(part, _batch(columns, schemas.keys.names, int(starts[-1])), texts, encode)


def _piece_ends(table: pa.RecordBatch, keys: Sequence[str]) -> list[int]:
    """Where the pieces of a table begin and end: between keys, since one may replace all rows of a key."""
    codes = factorize_keys([table.column(name) for name in keys], table.num_rows).codes
    possible = np.append(np.flatnonzero(np.diff(codes)) + 1, table.num_rows)
    ends = [0]
    while ends[-1] < table.num_rows:
        number = int(np.searchsorted(possible, ends[-1] + _PIECE_ENTRIES))
        ends.append(int(possible[min(number, len(possible) - 1)]))
    return ends


def _read_buffer(layout: str, pieces: Sequence[bytes], schemas: StoredSchemas) -> StateContent:
    """The state of a flush buffer: a version byte, whether there was a flush, and an Arrow batch."""
    match = _BUFFERED.match(layout)
    names = match[2].split(", ") if match and match[2] else []
    batches: list[pa.RecordBatch] = []
    for piece in pieces:
        if piece[1]:
            batches.clear()
        batches.append(pa.ipc.read_record_batch(pa.py_buffer(piece)[2:], schemas.results))
    rows = [batch for batch in batches if batch.num_rows]
    tables = {BUFFER: _latest(rows, names, whole_batch=False)} if rows else {}
    version = pieces[-1][:1] if pieces else b""

    def write(_: str, table: pa.RecordBatch) -> bytes:
        return version + b"\0" + table.serialize().to_pybytes()

    return _of_tables(tables, names[: len(schemas.keys)], schemas, write, BUFFER)
