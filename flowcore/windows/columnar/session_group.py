"""Sessions by column: session windows of one gap whose aggregates are folded with NumPy.

Records of a batch are first merged among themselves into *stretches*, by column, and these with the sessions
that are held. Only a record that could already be late stays alone and in its place, since it matters then
what came before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from flowcore.elements import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from flowcore.keyed import segments
from flowcore.keyed.columns import take_rows
from flowcore.keyed.key_index import Ints, factorize_keys, python_keys
from flowcore.keyed.operator import StepOutputs
from flowcore.keyed.output_columns import RESULTS
from flowcore.windows.columnar.group import ColumnarGroup, Folded
from flowcore.windows.columnar.late_records import one_by_one
from flowcore.windows.columnar.results import ResultWriter
from flowcore.windows.columnar.session_store import SessionStore
from flowcore.windows.columnar.sessions import Bools, Sessions, last_of, stretches

__all__ = ["SessionGroup"]

_KEYS_PER_PIECE = 1 << 16


class SessionGroup(ColumnarGroup):
    """A key group of sessions.

    Args:
        of: What the windows do.
        gap_ms: How long a pause ends a session.
    """

    def __init__(self, of: Folded, gap_ms: int) -> None:
        super().__init__(of)
        self._gap_ms = gap_ms
        self._folding = of.folding
        self._fields = self._folding.fields
        self._results = of.outputs[RESULTS]
        self._watermark_ms = MIN_TIMESTAMP_MS
        self._held = SessionStore(self._fields)
        self._touched: set[Any] = set()

    @np.errstate(invalid="ignore", over="ignore")  # not-a-number and wrapped sums are results like others
    def rows(self, rows: pa.RecordBatch, out: StepOutputs) -> None:
        """Merge records into their sessions."""
        times_ms = self._times(rows)
        columns = [rows.column(name) for name in self._of.keys]
        coding = factorize_keys(columns, rows.num_rows)
        keys = python_keys(take_rows(columns, coding.first), len(coding.first))
        old = times_ms <= self._old_ms
        order, begins = stretches(coding.codes, times_ms, old, self._gap_ms)
        came = self._folded(rows, times_ms, coding.codes, order, begins)
        self._touched.update(keys)
        if not old.any():
            self._merge(keys, came)
            return
        with_old = np.zeros(len(keys), np.bool_)
        with_old[coding.codes[old]] = True
        in_order = with_old[came.owner]
        self._merge(*_of_some(keys, ~with_old, came.taken(~in_order)))
        places = order[begins[in_order]]
        keys, came = _of_some(keys, with_old, came.taken(in_order))
        arrived = one_by_one(
            self._held.take(keys), came, old[places],
            watermark_ms=self._watermark_ms, lateness_ms=self._of.config.allowed_lateness_ms,
        )  # fmt: skip
        self._held.put(keys, arrived.held)
        self._emit(keys, arrived.fired, out, is_late=True)
        if arrived.late:
            places = places[arrived.late]
            self._too_late(rows.take(places), times_ms[places] <= self._ended_ms, out)

    @np.errstate(invalid="ignore", over="ignore")
    def advance_watermark(self, watermark_ms: int, out: StepOutputs) -> None:
        """Sessions that are complete emit; those that have ended are forgotten."""
        before_ms, self._watermark_ms = self._watermark_ms, watermark_ms
        keys = self._held.due(before_ms, watermark_ms, self._ended_ms)
        sessions = self._held.take(keys)
        fires = (sessions.last > before_ms) & (sessions.last <= watermark_ms)
        sessions.firings[fires] += 1
        self._emit(keys, sessions.taken(fires), out, is_late=False)
        self._held.put(keys, sessions.taken(sessions.last > self._ended_ms))
        self._touched.update(keys)

    def header(self) -> Mapping[str, Any]:
        """How far event time has come, and, for who reads it alone, how late records may be."""
        return {"watermark_ms": self._watermark_ms, "lateness_ms": self._of.config.allowed_lateness_ms}

    def delta(self) -> bytes | None:
        """All sessions of the keys that were touched and still have any."""
        touched = [key for key in self._touched if key in self._held]
        self._touched.clear()
        return self._written(touched) if touched else None

    def snapshot(self) -> Iterator[bytes]:
        """All sessions."""
        self._touched.clear()
        keys = self._held.keys()
        for start in range(0, len(keys), _KEYS_PER_PIECE):
            yield self._written(keys[start : start + _KEYS_PER_PIECE])

    def restore(self, header: Mapping[str, Any], pieces: Iterator[bytes]) -> None:
        """Take what was written: of each key all sessions, in place of those it had."""
        self._watermark_ms = header.get("watermark_ms", MIN_TIMESTAMP_MS)
        for piece in pieces:
            for _, table in segments.decode(piece):
                self._read(table)
        keys = self._held.due(MAX_TIMESTAMP_MS, MAX_TIMESTAMP_MS, self._ended_ms)
        sessions = self._held.take(keys)
        self._held.put(keys, sessions.taken(sessions.last > self._ended_ms))

    @property
    def _old_ms(self) -> int:
        """Up to this time a record alone makes a session that is complete already."""
        if self._watermark_ms == MAX_TIMESTAMP_MS:
            return MAX_TIMESTAMP_MS
        return self._watermark_ms - self._gap_ms + 1

    @property
    def _ended_ms(self) -> int:
        """Sessions with no millisecond after this have ended; may be below all times."""
        if self._watermark_ms == MAX_TIMESTAMP_MS:
            return MAX_TIMESTAMP_MS
        return self._watermark_ms - self._of.config.allowed_lateness_ms

    def _folded(
        self, rows: pa.RecordBatch, times_ms: Ints, codes: Ints, order: Ints, begins: Ints
    ) -> Sessions:
        """A session of each stretch."""
        newest = order[np.append(begins[1:], len(order)) - 1]
        oldest = order[begins]
        return Sessions(
            owner=codes[oldest],
            start=times_ms[oldest],
            last=last_of(times_ms[newest], self._gap_ms),
            firings=np.zeros(len(begins), np.int64),
            kept={field: field.combine.reduceat(field.of(rows)[order], begins) for field in self._fields},
        )

    def _merge(self, keys: Sequence[Any], came: Sessions) -> None:
        self._held.put(keys, self._held.take(keys).followed_by(came).merged())

    def _emit(self, keys: Sequence[Any], sessions: Sessions, out: StepOutputs, *, is_late: bool) -> None:
        if len(sessions):
            ResultWriter(self._results, self._folding, out).rows(
                self._key_columns([keys[number] for number in sessions.owner.tolist()]), sessions.kept,
                starts=sessions.start, lasts=sessions.last,
                firings=sessions.firings.astype(np.int32), is_late=is_late,
            )  # fmt: skip

    def _key_columns(self, keys: list[Any]) -> list[pa.Array[Any]]:
        kinds = [self._of.rows.field(name).type for name in self._of.keys]
        if len(kinds) == 1:
            return [pa.array(keys, kinds[0])]
        return [pa.array([key[place] for key in keys], kind) for place, kind in enumerate(kinds)]

    def _written(self, keys: list[Any]) -> bytes:
        sessions = self._held.of(keys)
        columns: dict[str, pa.Array[Any]] = {
            "start": pa.array(sessions.start),
            "last": pa.array(sessions.last),
            "firings": pa.array(sessions.firings),
        }
        found = self._key_columns([keys[number] for number in sessions.owner.tolist()])
        columns |= {f"key{number}": column for number, column in enumerate(found)}
        columns |= {field.name: pa.array(values) for field, values in sessions.kept.items()}
        return segments.encode({"sessions": pa.record_batch(columns)})

    def _read(self, table: pa.RecordBatch) -> None:
        columns = [table.column(f"key{number}") for number in range(len(self._of.keys))]
        of_rows = python_keys(columns, table.num_rows)
        numbers = {key: number for number, key in enumerate(dict.fromkeys(of_rows))}
        start, last, firings = (table.column(name).to_numpy() for name in ("start", "last", "firings"))
        sessions = Sessions(
            np.fromiter(map(numbers.__getitem__, of_rows), np.int64, len(of_rows)), start, last, firings,
            {field: table.column(field.name).to_numpy() for field in self._fields},
        )  # fmt: skip
        keys = list(numbers)
        self._held.take(keys)
        self._held.put(keys, sessions.taken(np.argsort(sessions.owner, kind="stable")))


def _of_some(keys: list[Any], which: Bools, sessions: Sessions) -> tuple[list[Any], Sessions]:
    """Some of the keys, and their sessions with the owners' numbers among them."""
    some = [keys[number] for number in np.flatnonzero(which).tolist()]
    numbers = np.cumsum(which) - 1
    return some, Sessions(
        numbers[sessions.owner], sessions.start, sessions.last, sessions.firings, sessions.kept
    )
