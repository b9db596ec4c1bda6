"""The stored rows of one side of a join, with an index by key and timestamp.

A row is identified by its key and its id. It is written when it arrives and, if the match must be stored,
again when it finds its first partner. Of rows that may be retracted, each change is written: that a row has a
partner, that it has none any more, and that it was removed.

Times are integer milliseconds since the epoch, UTC.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flowcore.elements import MIN_TIMESTAMP_MS
from flowcore.keyed.columns import concat_batches
from flowcore.keyed.content import CHANGES, REMOVED
from flowcore.keyed.key_index import Ints

__all__ = ["ID", "MATCHED", "PAIRS_AT_ONCE", "TIME", "Matches", "SideRows"]

ID, TIME, MATCHED = "@id", "@time_ms", "@matched"
"""The first columns of stored rows; their key is in ``key0``, ``key1`` and so on."""
PAIRS_AT_ONCE = 1 << 17
"""So many pairs leave together: a column of text or bytes cannot hold 2 GiB."""
_Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Matches:
    """The stored rows that probing rows match.

    Attributes:
        order: The places of the stored rows by key, timestamp and arrival.
        start: For each probing row, where its matches begin in ``order``.
        count: For each probing row, the number of its matches.
    """

    order: Ints
    start: Ints
    count: Ints

    def newest(self) -> tuple[Ints, _Flags]:
        """For each probing row, the place of the newest match, and whether there is one."""
        found = self.count > 0
        places = np.zeros(len(found), np.int64)
        places[found] = self.order[(self.start + self.count - 1)[found]]
        return places, found

    def pairs(self) -> Iterator[tuple[Ints, Ints]]:
        """The numbers of probing rows and the places of stored rows, a limited number of pairs at a time."""
        ends = np.cumsum(self.count)
        first = 0
        while first < len(ends) and (done := int(ends[first] - self.count[first])) < ends[-1]:
            last = max(int(np.searchsorted(ends, done + PAIRS_AT_ONCE, "right")), first + 1)
            count = self.count[first:last]
            begin = self.start[first:last] - (ends[first:last] - count - done)
            probing = np.repeat(np.arange(first, last), count)
            yield probing, self.order[np.repeat(begin, count) + np.arange(len(probing))]
            first = last


class SideRows:
    """The rows of one side.

    Args:
        schema: The columns of a row: those of its key as ``key0`` and so on, then others.
        last_partner_ms: From timestamps of rows to those of the last partners that they may have.
        retractable: Rows may be removed, and lose their partners.
    """

    def __init__(
        self, schema: pa.Schema, last_partner_ms: Callable[[Ints], Ints], *, retractable: bool = False
    ) -> None:
        self._schema = schema
        self._retractable = retractable
        self._last_partner_ms = last_partner_ms
        self.rows: pa.RecordBatch = pa.RecordBatch.from_pylist([], schema=schema)
        self.codes, self._ids, self.times_ms, self._ends_ms = (np.empty(0, np.int64) for _ in range(4))
        self.changes: Ints = np.empty(0, np.int64)
        """How often each row has found a first partner or lost the last one; odd if it has a partner."""
        self._unsaved = np.empty(0, np.bool_)
        self._watermark_ms = MIN_TIMESTAMP_MS
        self._index: tuple[Ints, Ints, Ints] | None = None

    def __len__(self) -> int:
        return len(self.codes)

    def add(self, codes: Ints, first_id: int, times_ms: Ints, rows: pa.RecordBatch) -> None:
        """Append rows, with numbers of their keys; their ids count up."""
        if rows.num_rows:
            count = rows.num_rows
            self._append(
                rows,
                (codes, np.arange(first_id, first_id + count), times_ms, np.zeros(count, np.int64)),
                np.ones(count, np.bool_),
            )

    def find(self, codes: Ints, first_ms: Ints, last_ms: Ints) -> Matches:
        """The rows with these keys, and timestamps from ``first_ms`` to ``last_ms``."""
        if not len(self) or not len(codes):
            return Matches(codes, codes, np.zeros(len(codes), np.int64))
        order, times_ms, numbers = self._indexed()
        width = len(times_ms) + 1
        low = codes * width + np.searchsorted(times_ms, first_ms, "left")
        high = codes * width + np.searchsorted(times_ms, last_ms, "right")
        start = np.searchsorted(numbers, low)
        return Matches(order, start, np.searchsorted(numbers, high) - start)

    def match(self, places: Ints) -> Ints:
        """Mark rows as matched; return the rows that were unmatched before, which are written again."""
        new: Ints = np.unique(places[~self.has_partner(places)])
        self._change(new)
        return new

    def unmatch(self, places: Ints) -> None:
        """Mark matched rows as rows without partner; they are written again."""
        self._change(places)

    def has_partner(self, places: Ints | slice) -> _Flags:
        """Whether rows are marked as matched; a removed row is."""
        return np.asarray(self.changes[places] % 2 == 1)

    def unmatched(self, first: int) -> Ints:
        """The places of rows without partner, from a place on."""
        return first + np.flatnonzero(~self.has_partner(slice(first, None)))

    def remove(self, places: Ints) -> None:
        """Remove rows: they are not found any more, and it is written that they are gone."""
        self.changes[places] = REMOVED
        self._unsaved[places] = True
        self._ends_ms[places] = MIN_TIMESTAMP_MS
        self._index = None

    def end(self, watermark_ms: int) -> Ints:
        """End the rows that can have no partner any more; return the places of the unmatched rows.

        They are in order of time. `remove_ended` frees their places.
        """
        before = self._has_ended()
        self._watermark_ms = watermark_ms
        (places,) = np.nonzero(self._has_ended() & ~before & ~self.has_partner(slice(None)))
        found: Ints = places[np.argsort(self.times_ms[places], kind="stable")]
        return found

    def end_replaced(self) -> None:
        """End each row that a newer one of its key replaces: up to the watermark, or of the same timestamp.

        Of rows with the same key and timestamp, the one that arrived last is the newest.
        """
        order, _, numbers = self._indexed()
        codes, times_ms = self.codes[order], self.times_ms[order]
        replaced = (codes[:-1] == codes[1:]) & (times_ms[1:] <= self._watermark_ms)
        self._ends_ms[order[:-1][replaced | (numbers[:-1] == numbers[1:])]] = MIN_TIMESTAMP_MS

    def end_saved(self, which: _Flags) -> None:
        """End rows, except those that are not stored yet."""
        self._ends_ms[which & ~self._unsaved] = MIN_TIMESTAMP_MS

    def forget(self, expired_ms: int) -> None:
        """Remove the rows up to a time."""
        self._keep(self.times_ms > expired_ms)

    def remove_ended(self) -> None:
        """Free the places of the rows that have ended, if they are more than half.

        Rows that were removed must have been written: it is the first call of a step.
        """
        ended = self._has_ended()
        if 2 * int(ended.sum()) > len(self):
            self._keep(~ended)

    def renumber(self, numbers: Ints) -> None:
        """Replace the numbers of keys."""
        self.codes, self._index = numbers[self.codes], None

    def take_unsaved(self) -> pa.RecordBatch:
        """The stored columns of rows that changed since the last call, without those that ended since."""
        found = self._stored(self._unsaved & (~self._has_ended() | self._is_removed()))
        self._unsaved[:] = False
        return found

    def take_all(self) -> pa.RecordBatch:
        """The stored columns of all rows that have not ended."""
        self._unsaved[:] = False
        return self._stored(~self._has_ended())

    def load(self, codes: Sequence[Ints], tables: Sequence[pa.RecordBatch]) -> None:
        """Add stored rows; of several with one key and id the last one counts."""
        for numbers, table in zip(codes, tables, strict=True):
            ids, times_ms = table.column(ID).to_numpy(), table.column(TIME).to_numpy()
            changes = table.column(CHANGES if self._retractable else MATCHED)
            counted = changes.to_numpy(zero_copy_only=False).astype(np.int64)
            saved = np.zeros(table.num_rows, np.bool_)
            self._append(table.select(self._schema.names), (numbers, ids, times_ms, counted), saved)
        order = np.lexsort((np.arange(len(self)), self._ids, self.codes))
        codes_in_order, ids_in_order = self.codes[order], self._ids[order]
        last = np.ones(len(self), np.bool_)
        last[order[:-1]] = (np.diff(codes_in_order) != 0) | (np.diff(ids_in_order) != 0)
        self._keep(last & ~self._is_removed())

    def _append(self, rows: pa.RecordBatch, numbers: tuple[Ints, Ints, Ints, Ints], unsaved: _Flags) -> None:
        before = (self.codes, self._ids, self.times_ms, self.changes)
        self.codes, self._ids, self.times_ms, self.changes = map(_concat, before, numbers)
        self._ends_ms = _concat(self._ends_ms, self._last_partner_ms(numbers[2]))
        self._unsaved = _concat(self._unsaved, unsaved)
        self.rows = concat_batches([self.rows, rows])
        self._index = None

    def _indexed(self) -> tuple[Ints, Ints, Ints]:
        """Places by key and time, the distinct times, and for each place a number that sorts like it."""
        if self._index is None:
            times_ms, rank = np.unique(self.times_ms, return_inverse=True)
            (places,) = np.nonzero(~self._is_removed())
            numbers = (self.codes * (len(times_ms) + 1) + rank)[places]
            order = np.argsort(numbers, kind="stable")
            self._index = places[order], times_ms, numbers[order]
        return self._index

    def _change(self, places: Ints) -> None:
        self.changes[places] += 1
        self._unsaved[places] = True

    def _is_removed(self) -> _Flags:
        return np.asarray(self.changes == REMOVED)

    def _has_ended(self) -> _Flags:
        ended: _Flags = self._ends_ms <= self._watermark_ms
        return ended

    def _keep(self, which: _Flags) -> None:
        if not which.all():
            numbers = self.codes, self._ids, self.times_ms, self._ends_ms
            self.codes, self._ids, self.times_ms, self._ends_ms = (each[which] for each in numbers)
            self.changes, self._unsaved = self.changes[which], self._unsaved[which]
            self.rows = self.rows.filter(pa.array(which))
            self._index = None

    def _stored(self, which: _Flags) -> pa.RecordBatch:
        rows, changes = self.rows.filter(pa.array(which)), self.changes[which]
        columns: dict[str, pa.Array[Any]] = {
            ID: pa.array(self._ids[which]),
            **dict(zip(rows.schema.names, rows.columns, strict=True)),
            TIME: pa.array(self.times_ms[which]),
            **({CHANGES: pa.array(changes)} if self._retractable else {MATCHED: pa.array(changes == 1)}),
        }
        return pa.record_batch(columns)


def _concat(*parts: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.concatenate(parts)
