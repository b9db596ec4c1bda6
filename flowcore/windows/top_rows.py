"""The first records of a window in an order, as an aggregate function.

A window keeps the records that have a rank, and no others. Values are compared as Spark compares them: null
is the smallest value, not-a-number the largest. Records that are equal in the order are in the order in which
the window has them: that of arrival, and those of merged sessions one session after the other.

Source: Flink SQL's Window Top-N.

>>> dearest = TopRows(order=(("price", True),), n=1, rank="rank", ties=True)
>>> kept = dearest.create()
>>> for price, bid in ((3, "a"), (7, "b"), (7, "c")):
...     kept = dearest.add(kept, {"price": price, "bid": bid})
>>> [record["bid"] for record in dearest.result(kept)]
['b', 'c']
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flowcore.windows.built_in import is_less
from flowcore.windows.functions import WindowContext

__all__ = ["EachRow", "TopRows"]

_Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopRows:
    """An aggregate function; its accumulator is the list of the records with a rank, in their order.

    Attributes:
        order: The columns of the order, each with whether larger values come first.
        n: How many records have a rank.
        rank: The column of the rank, from 1, that is added to a record.
        ties: Records that are equal to the last of them in the order have a rank, too, and equal records have
            the same, as by SQL's ``RANK() <= n``; otherwise as by ``ROW_NUMBER() <= n``.
    """

    order: tuple[tuple[str, bool], ...]
    n: int
    rank: str
    ties: bool

    def __str__(self) -> str:
        order = ", ".join(f"{name}{' desc' if descending else ''}" for name, descending in self.order)
        return f"top {self.n}{' with ties' if self.ties else ''} in order of {order}"

    def create(self) -> list[_Record]:
        return []

    def add(self, kept: list[_Record], record: _Record, /) -> list[_Record]:
        """Give a record its place after those that are equal, and drop those that lose their rank."""
        n, low, high = self.n, 0, len(kept)
        while low < high:
            middle = (low + high) // 2
            if self._is_before(record, kept[middle]):
                high = middle
            else:
                low = middle + 1
        if low >= n and not (self.ties and self._is_equal(record, kept[n - 1])):
            return kept
        kept.insert(low, record)
        # Those from there on are equal to one another.
        if len(kept) > n and not (self.ties and self._is_equal(kept[n], kept[n - 1])):
            del kept[n:]
        return kept

    def merge(self, first: list[_Record], second: Iterable[_Record], /) -> list[_Record]:
        for record in second:
            first = self.add(first, record)
        return first

    def result(self, kept: list[_Record], /) -> list[dict[str, Any]]:
        """The records with their ranks."""
        found: list[dict[str, Any]] = []
        for place, record in enumerate(kept):
            is_tie = self.ties and place and self._is_equal(record, kept[place - 1])
            found.append({**record, self.rank: found[-1][self.rank] if is_tie else place + 1})
        return found

    def _is_before(self, one: _Record, other: _Record) -> bool:
        for name, descending in self.order:
            mine, theirs = one[name], other[name]
            if is_less(mine, theirs):
                return not descending
            if is_less(theirs, mine):
                return descending
        return False

    def _is_equal(self, one: _Record, other: _Record) -> bool:
        return not self._is_before(one, other) and not self._is_before(other, one)


@dataclass(frozen=True, slots=True)
class EachRow:
    """A process function that emits the records of an aggregate's result."""

    def process(self, _context: WindowContext, values: Sequence[Iterable[_Record]], /) -> Iterable[_Record]:
        (records,) = values
        return records

    def clear(self, _context: WindowContext, /) -> None:
        pass
