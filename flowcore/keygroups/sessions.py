"""Sessions by column: session windows of one gap whose aggregates are folded with NumPy.

Records of a batch are first
merged among themselves, by column, into *stretches*; what meets the sessions that are held is one stretch and
not one record. A record that could already be late stays alone and in its place, since it matters then what
came before it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa

from flowcore.elements import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from flowcore.keygroups import segments
from flowcore.keygroups.columns import taken
from flowcore.keygroups.emission import RESULTS, Emission
from flowcore.keygroups.event_time_group import EventTimeGroup, Folded
from flowcore.keygroups.folding import Columns
from flowcore.keygroups.operator import Outputs
from flowcore.keygroups.slots import Ints, coded, python_keys

__all__ = ["SessionGroup"]

_ROWS_PER_PIECE = 1 << 16
_START, _END, _FIRINGS, _FIELDS = 0, 1, 2, 3
_NO_END = MAX_TIMESTAMP_MS + 1


_Session = list[Any]
"""Start, end, firings, then the fields."""


class SessionGroup(EventTimeGroup):
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
        self._combines = [field.combine_two for field in self._fields]
        self._results = of.outputs[RESULTS]
        self._watermark_ms = MIN_TIMESTAMP_MS
        self._held: dict[Any, list[_Session]] = {}
        self._due: list[tuple[int, int, Any]] = []
        self._asked = count()
        self._touched: set[Any] = set()

    @np.errstate(invalid="ignore", over="ignore")
    def rows(self, rows: pa.RecordBatch, out: Outputs) -> None:
        """Merge records into their sessions."""
        times_ms = self._times(rows)
        columns = [rows.column(name) for name in self._of.keys]
        keys = coded(columns, rows.num_rows)
        values = python_keys(taken(columns, keys.first), len(keys.first))
        old = times_ms <= self._old_ms
        order, starts = self._stretches(keys.codes, times_ms, old)
        folded = self._folded(rows, order, starts)
        ends = np.append(starts[1:], len(order)) - 1
        first, last = times_ms[order[starts]].tolist(), times_ms[order[ends]].tolist()
        of_key, alone = keys.codes[order[starts]].tolist(), old[order[starts]].tolist()
        fired: list[tuple[Any, _Session]] = []
        late: list[int] = []
        for place, (code, is_old, begin_ms, end_ms) in enumerate(
            zip(of_key, alone, first, last, strict=True)
        ):
            key = values[code]
            stretch = [begin_ms, min(end_ms + self._gap_ms, _NO_END), 0, *(each[place] for each in folded)]
            if not is_old:
                self._merge(key, stretch)
            elif self._came_late(key, stretch, fired):
                late.append(place)
        self._emit(fired, out, is_late=True)
        if late:
            too_late = [self._after_lateness(first[place]) <= self._watermark_ms for place in late]
            self._too_late(rows.take(order[starts[late]]), np.array(too_late), out)

    def advance_watermark(self, watermark_ms: int, out: Outputs) -> None:
        """Sessions that are complete emit; those that have ended are forgotten."""
        before_ms, self._watermark_ms = self._watermark_ms, watermark_ms
        fired: list[tuple[Any, _Session]] = []
        for key in self._keys_due():
            for session in self._held[key]:
                if before_ms < session[_END] - 1 <= watermark_ms:
                    session[_FIRINGS] += 1
                    fired.append((key, list(session)))
                    self._touched.add(key)
            self._forget(key)
        self._emit(fired, out, is_late=False)

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
        keys = list(self._held)
        for start in range(0, len(keys), _ROWS_PER_PIECE):
            yield self._written(keys[start : start + _ROWS_PER_PIECE])

    def restore(self, header: Mapping[str, Any], pieces: Iterator[bytes]) -> None:
        """Take what was written: of each key all sessions, in place of those it had."""
        self._watermark_ms = header.get("watermark_ms", MIN_TIMESTAMP_MS)
        for piece in pieces:
            for _, table in segments.decode(piece):
                self._take(table)
        for key in self._keys_due():
            self._forget(key)

    @property
    def _old_ms(self) -> int:
        """Up to this time a record alone makes a session that is complete already."""
        if self._watermark_ms == MAX_TIMESTAMP_MS:
            return MAX_TIMESTAMP_MS
        return self._watermark_ms - self._gap_ms + 1

    def _stretches(self, codes: Ints, times_ms: Ints, old: Any) -> tuple[Ints, Ints]:
        """An order of the records in which stretches are together, and where each begins."""
        earlier = np.zeros(len(codes), np.int64)
        if old.any():  # of the same key, since only its own sessions matter; counting all is as good
            earlier = np.cumsum(old) - old
        order = np.lexsort((times_ms, old, earlier, codes))
        codes, times_ms, old, earlier = codes[order], times_ms[order], old[order], earlier[order]
        pause = times_ms[1:].view(np.uint64) - times_ms[:-1].view(np.uint64)
        begins = (
            (codes[1:] != codes[:-1])
            | (earlier[1:] != earlier[:-1])
            | old[1:]
            | (pause > np.uint64(self._gap_ms))
        )
        return order, np.flatnonzero(np.concatenate([[True], begins]))

    def _folded(self, rows: pa.RecordBatch, order: Ints, starts: Ints) -> list[list[Any]]:
        found = []
        for field in self._fields:
            values = field.of(rows)[order]
            found.append(field.combine.reduceat(values, starts).tolist())
        return found

    def _merge(self, key: Any, stretch: _Session) -> None:
        sessions = self._held.get(key)
        if sessions is None:
            self._held[key] = [stretch]
        else:
            apart = []
            for session in sessions:
                if session[_START] <= stretch[_END] and stretch[_START] <= session[_END]:
                    self._absorb(stretch, session)
                else:
                    apart.append(session)
            apart.append(stretch)
            self._held[key] = apart
        self._touched.add(key)
        self._ask(stretch[_END] - 1, key)

    def _absorb(self, stretch: _Session, session: _Session) -> None:
        stretch[_START] = min(stretch[_START], session[_START])
        stretch[_END] = max(stretch[_END], session[_END])
        stretch[_FIRINGS] = max(stretch[_FIRINGS], session[_FIRINGS])
        for place, combine in enumerate(self._combines, _FIELDS):
            stretch[place] = combine(session[place], stretch[place])

    def _came_late(self, key: Any, record: _Session, fired: list[tuple[Any, _Session]]) -> bool:
        """A record that may be late; true if it counts nowhere."""
        touching = [
            session
            for session in self._held.get(key, ())
            if session[_START] <= record[_END] and record[_START] <= session[_END]
        ]
        end_ms = max([record[_END], *(session[_END] for session in touching)])
        if self._after_lateness(end_ms - 1) <= self._watermark_ms:
            return True
        self._merge(key, record)
        if end_ms - 1 <= self._watermark_ms:
            record[_FIRINGS] += 1
            fired.append((key, list(record)))
            self._ask(self._after_lateness(end_ms - 1), key)
        return False

    def _ask(self, time_ms: int, key: Any) -> None:
        heapq.heappush(self._due, (time_ms, next(self._asked), key))

    def _keys_due(self) -> list[Any]:
        found: dict[Any, None] = {}
        while self._due and self._due[0][0] <= self._watermark_ms:
            key = heapq.heappop(self._due)[2]
            if key in self._held:
                found[key] = None
        return list(found)

    def _forget(self, key: Any) -> None:
        """Forget the sessions of a key that have ended, and ask for those that will."""
        stay = [
            session
            for session in self._held[key]
            if self._after_lateness(session[_END] - 1) > self._watermark_ms
        ]
        if not stay:
            del self._held[key]
            self._touched.discard(key)
            return
        if len(stay) < len(self._held[key]):
            self._held[key] = stay
            self._touched.add(key)
        for session in stay:
            if session[_END] - 1 <= self._watermark_ms:
                self._ask(self._after_lateness(session[_END] - 1), key)

    def _emit(self, fired: list[tuple[Any, _Session]], out: Outputs, *, is_late: bool) -> None:
        if not fired:
            return
        sessions = [session for _, session in fired]
        starts, lasts, firings = (
            np.array([session[place] - less for session in sessions], np.int64)
            for place, less in ((_START, 0), (_END, 1), (_FIRINGS, 0))
        )
        kept = self._columns_of(sessions)
        Emission(self._results, self._folding, out).rows(
            self._key_columns([key for key, _ in fired]), kept, starts=starts, lasts=lasts,
            firings=firings.astype(np.int32), is_late=is_late,
        )  # fmt: skip

    def _columns_of(self, sessions: list[_Session]) -> Columns:
        return {
            field: field.array([session[place] for session in sessions])
            for place, field in enumerate(self._fields, _FIELDS)
        }

    def _key_columns(self, keys: list[Any]) -> list[pa.Array[Any]]:
        kinds = [self._of.rows.field(name).type for name in self._of.keys]
        if len(kinds) == 1:
            return [pa.array(keys, kinds[0])]
        return [pa.array([key[place] for key in keys], kind) for place, kind in enumerate(kinds)]

    def _written(self, keys: list[Any]) -> bytes:
        pairs = [(key, session) for key in keys for session in self._held[key]]
        sessions = [session for _, session in pairs]
        columns: dict[str, pa.Array[Any]] = {
            "start": pa.array([session[_START] for session in sessions], pa.int64()),
            "last": pa.array([session[_END] - 1 for session in sessions], pa.int64()),
            "firings": pa.array([session[_FIRINGS] for session in sessions], pa.int64()),
        }
        found = self._key_columns([key for key, _ in pairs])
        columns |= {f"key{number}": column for number, column in enumerate(found)}
        columns |= {field.name: pa.array(each) for field, each in self._columns_of(sessions).items()}
        return segments.encode({"sessions": pa.record_batch(columns)})

    def _take(self, table: pa.RecordBatch) -> None:
        columns = [table.column(f"key{number}") for number in range(len(self._of.keys))]
        names = ["start", "last", "firings", *(field.name for field in self._fields)]
        lists = [table.column(name).to_numpy().tolist() for name in names]
        fresh: dict[Any, list[_Session]] = {}
        keys = python_keys(columns, table.num_rows)
        for key, session in zip(keys, map(list, zip(*lists, strict=True)), strict=True):
            self._ask(session[_END], key)
            self._ask(self._after_lateness(session[_END]), key)
            session[_END] += 1
            fresh.setdefault(key, []).append(session)
        self._held |= fresh
