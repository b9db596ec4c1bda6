"""Sessions in columns: some sessions of some keys, and what becomes of those that overlap or touch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from flowcore.elements import MAX_TIMESTAMP_MS
from flowcore.keyed.key_index import Ints
from flowcore.windows.columnar.accumulators import Accumulator, AccumulatorColumns

__all__ = ["Bools", "Sessions", "last_of", "stretches"]

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Sessions:
    """Sessions in columns.

    Attributes:
        owner: Of each the number of its key.
        start: The first millisecond.
        last: The last millisecond.
        firings: How often it has emitted.
        kept: What its records were folded into.
    """

    owner: Ints
    start: Ints
    last: Ints
    firings: Ints
    kept: AccumulatorColumns

    def __len__(self) -> int:
        return len(self.owner)

    def taken(self, which: Ints | Bools) -> Sessions:
        """Some of them."""
        kept = {field: values[which] for field, values in self.kept.items()}
        return Sessions(self.owner[which], self.start[which], self.last[which], self.firings[which], kept)

    def followed_by(self, more: Sessions) -> Sessions:
        """These and more."""
        if not len(self):
            return more
        return Sessions(
            np.concatenate([self.owner, more.owner]),
            np.concatenate([self.start, more.start]),
            np.concatenate([self.last, more.last]),
            np.concatenate([self.firings, more.firings]),
            {field: np.concatenate([values, more.kept[field]]) for field, values in self.kept.items()},
        )

    def merged(self) -> Sessions:
        """Those of a key that overlap or touch become one; in the order of keys and time."""
        if not len(self):
            return self
        of = self.taken(np.lexsort((self.start, self.owner)))
        reach = pd.Series(of.last).groupby(of.owner, sort=False).cummax().to_numpy()[:-1]
        later = of.start[1:]
        apart = (of.owner[1:] != of.owner[:-1]) | ((later > reach) & (later - 1 > reach))
        begins = np.flatnonzero(np.concatenate([[True], apart]))
        kept = {field: field.combine.reduceat(values, begins) for field, values in of.kept.items()}
        last, firings = (np.maximum.reduceat(column, begins) for column in (of.last, of.firings))
        return Sessions(of.owner[begins], of.start[begins], last, firings, kept)

    def rows(self) -> Iterator[list[Any]]:
        """Owner, start, last, firings, then what is kept, as Python numbers."""
        columns = (self.owner, self.start, self.last, self.firings, *self.kept.values())
        return map(list, zip(*(column.tolist() for column in columns), strict=True))

    @classmethod
    def of_rows(cls, rows: Iterable[Sequence[Any]], fields: Iterable[Accumulator]) -> Sessions:
        """From what `rows` gives; sums wrap around."""
        fields = tuple(fields)
        found = list(zip(*rows, strict=True)) or [()] * (4 + len(fields))
        owner, start, last, firings = (np.array(column, np.int64) for column in found[:4])
        kept = {field: field.array(values) for field, values in zip(fields, found[4:], strict=True)}
        return cls(owner, start, last, firings, kept)


def stretches(codes: Ints, times_ms: Ints, old: Bools, gap_ms: int) -> tuple[Ints, Ints]:
    """An order of records in which those that make one session are together, and where each begins.

    Args:
        codes: Of each the number of its key.
        times_ms: Its timestamp.
        old: It stays alone, and parts what comes before it from what comes after it for its key.
        gap_ms: How long a pause ends a session.
    """
    if old.any():
        arrival = np.argsort(codes, kind="stable")
        earlier = np.empty(len(codes), np.int64)
        earlier[arrival] = np.cumsum(old[arrival]) - old[arrival]
        order = np.lexsort((times_ms, old, earlier, codes))
        parted = (np.diff(earlier[order]) != 0) | old[order][1:]
    else:
        order = np.lexsort((times_ms, codes))
        parted = np.zeros(max(len(codes) - 1, 0), np.bool_)
    codes, times_ms = codes[order], times_ms[order]
    pause = times_ms[1:].view(np.uint64) - times_ms[:-1].view(np.uint64)
    begins = (codes[1:] != codes[:-1]) | parted | (pause > np.uint64(gap_ms))
    return order, np.flatnonzero(np.concatenate([[True], begins]))


def last_of(times_ms: Ints, gap_ms: int) -> Ints:
    """The last millisecond of sessions whose newest record is of these times."""
    end = MAX_TIMESTAMP_MS - (gap_ms - 1)
    return np.where(times_ms >= end, MAX_TIMESTAMP_MS, times_ms + (gap_ms - 1))
