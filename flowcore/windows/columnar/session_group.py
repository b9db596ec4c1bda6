"""A key group of session windows of one gap.

The records of a batch are first merged with each other into *runs*. The runs are merged with the sessions of
the group. Only an old record, which could already be late, stays alone and in order of arrival.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from flowcore.elements import MAX_TIMESTAMP_MS
from flowcore.keyed import segments
from flowcore.keyed.columns import take_rows
from flowcore.keyed.key_index import Ints, factorize_keys, to_key_columns, to_python_keys
from flowcore.keyed.operator import StepOutputs
from flowcore.windows.columnar.group import ColumnarConfig, ColumnarGroup
from flowcore.windows.columnar.sessions import (
    Bools,
    Sessions,
    SessionStore,
    find_runs,
    last_of,
    merge_in_order,
)

__all__ = ["SessionGroup"]

_KEYS_PER_PIECE = 1 << 16


class SessionGroup(ColumnarGroup):
    """A key group of sessions."""

    def __init__(self, context: ColumnarConfig, gap_ms: int) -> None:
        super().__init__(context)
        self._gap_ms = gap_ms
        self._store = SessionStore(self._accumulators)
        self._changed: set[Any] = set()

    @np.errstate(invalid="ignore", over="ignore")  # not-a-number and wrapped sums are valid results
    def rows(self, rows: pa.RecordBatch, out: StepOutputs) -> None:
        times_ms = self._times_of(rows)
        columns = [rows.column(name) for name in self._context.keys]
        coding = factorize_keys(columns, rows.num_rows)
        keys = to_python_keys(take_rows(columns, coding.first), len(coding.first))
        old = times_ms <= self._old_ms
        order, begins = find_runs(coding.codes, times_ms, old, self._gap_ms)
        runs = self._fold(rows, times_ms, coding.codes, order, begins)
        self._changed.update(keys)
        if not old.any():
            self._merge(keys, runs)
            return
        with_old = np.zeros(len(keys), np.bool_)
        with_old[coding.codes[old]] = True
        in_order = with_old[runs.owner]
        self._merge(*_select_keys(keys, ~with_old, runs.take(~in_order)))
        places = order[begins[in_order]]
        keys, runs = _select_keys(keys, with_old, runs.take(in_order))
        merged = merge_in_order(
            self._store.pop(keys), runs, old[places],
            watermark_ms=self._watermark_ms, ended_ms=self._late_ms,
        )  # fmt: skip
        self._store.put(keys, merged.sessions)
        self._emit(keys, merged.fired, out, is_late=True)
        if merged.late:
            places = places[merged.late]
            self._reject(rows.take(places), times_ms[places] <= self._late_ms, out)

    @np.errstate(invalid="ignore", over="ignore")
    def advance_watermark(self, watermark_ms: int, out: StepOutputs) -> None:
        """Emit the sessions that are complete, and delete those that have ended."""
        before_ms, self._watermark_ms = self._watermark_ms, watermark_ms
        keys = self._store.due(before_ms, watermark_ms, self._late_ms)
        sessions = self._store.pop(keys)
        fires = (sessions.last > before_ms) & (sessions.last <= watermark_ms)
        sessions.firings[fires] += 1
        self._emit(keys, sessions.take(fires), out, is_late=False)
        self._store.put(keys, sessions.take(sessions.last > self._late_ms))
        self._changed.update(keys)

    def header(self) -> Mapping[str, Any]:
        """The watermark, and which sessions have ended."""
        return {"watermark_ms": self._watermark_ms, "ended_ms": self._late_ms}

    def delta(self) -> bytes | None:
        """Write all sessions of the keys that changed and still have any."""
        changed = [key for key in self._changed if key in self._store]
        self._changed.clear()
        return self._encode(changed) if changed else None

    def snapshot(self) -> Iterator[bytes]:
        self._changed.clear()
        keys = self._store.keys()
        for start in range(0, len(keys), _KEYS_PER_PIECE):
            yield self._encode(keys[start : start + _KEYS_PER_PIECE])

    def restore(self, header: Mapping[str, Any], pieces: Iterator[bytes]) -> None:
        """Read pieces; the sessions of a key in a piece replace the earlier ones."""
        self._restore_times(header)
        for piece in pieces:
            for _, table in segments.decode(piece):
                self._decode(table)
        keys = self._store.due(MAX_TIMESTAMP_MS, MAX_TIMESTAMP_MS, self._late_ms)
        sessions = self._store.pop(keys)
        self._store.put(keys, sessions.take(sessions.last > self._late_ms))

    @property
    def _old_ms(self) -> int:
        """A record up to this time alone makes a session that is already complete."""
        if self._watermark_ms == MAX_TIMESTAMP_MS:
            return MAX_TIMESTAMP_MS
        return self._watermark_ms - self._gap_ms + 1

    def _fold(self, rows: pa.RecordBatch, times_ms: Ints, codes: Ints, order: Ints, begins: Ints) -> Sessions:
        """Build a session of each run."""
        newest = order[np.append(begins[1:], len(order)) - 1]
        oldest = order[begins]
        return Sessions(
            owner=codes[oldest],
            start=times_ms[oldest],
            last=last_of(times_ms[newest], self._gap_ms),
            firings=np.zeros(len(begins), np.int64),
            accumulated={
                each: each.combine.reduceat(each.values_of(rows)[order], begins)
                for each in self._accumulators
            },
        )

    def _merge(self, keys: Sequence[Any], runs: Sessions) -> None:
        self._store.put(keys, self._store.pop(keys).append(runs).merge())

    def _emit(self, keys: Sequence[Any], sessions: Sessions, out: StepOutputs, *, is_late: bool) -> None:
        if len(sessions):
            self._writer(out).emit(
                self._key_columns([keys[number] for number in sessions.owner.tolist()]), sessions.accumulated,
                starts=sessions.start, lasts=sessions.last,
                firings=sessions.firings.astype(np.int32), is_late=is_late,
            )  # fmt: skip

    def _key_columns(self, keys: list[Any]) -> list[pa.Array[Any]]:
        return to_key_columns(keys, [self._context.rows.field(name).type for name in self._context.keys])

    def _encode(self, keys: list[Any]) -> bytes:
        sessions = self._store.get(keys)
        columns: dict[str, pa.Array[Any]] = {
            "start": pa.array(sessions.start),
            "last": pa.array(sessions.last),
            "firings": pa.array(sessions.firings),
        }
        key_columns = self._key_columns([keys[number] for number in sessions.owner.tolist()])
        columns |= {f"key{number}": column for number, column in enumerate(key_columns)}
        columns |= {each.name: pa.array(values) for each, values in sessions.accumulated.items()}
        return segments.encode({"sessions": pa.record_batch(columns)})

    def _decode(self, table: pa.RecordBatch) -> None:
        columns = [table.column(f"key{number}") for number in range(len(self._context.keys))]
        keys_of_rows = to_python_keys(columns, table.num_rows)
        numbers = {key: number for number, key in enumerate(dict.fromkeys(keys_of_rows))}
        start, last, firings = (table.column(name).to_numpy() for name in ("start", "last", "firings"))
        sessions = Sessions(
            np.fromiter(map(numbers.__getitem__, keys_of_rows), np.int64, len(keys_of_rows)),
            start, last, firings,
            {each: table.column(each.name).to_numpy() for each in self._accumulators},
        )  # fmt: skip
        keys = list(numbers)
        self._store.pop(keys)
        self._store.put(keys, sessions.take(np.argsort(sessions.owner, kind="stable")))


def _select_keys(keys: list[Any], which: Bools, sessions: Sessions) -> tuple[list[Any], Sessions]:
    """Return some of the keys, and their sessions with owners renumbered."""
    selected = [keys[number] for number in np.flatnonzero(which).tolist()]
    owner = (np.cumsum(which) - 1)[sessions.owner]
    return selected, Sessions(owner, sessions.start, sessions.last, sessions.firings, sessions.accumulated)
