"""All rows of groups, of which the first ones of each group are known in their order.

A row of a group has a row key: a later row with the same row key replaces it. Of each group the positions of
its *first* rows are kept in order: the ranked rows, and a margin. All other rows of the group come after
the last of these, in no order. A new row that comes after the last one is not compared further. If so many
of the first rows are removed that a rank has none, the first rows are selected anew. This scans all rows of
the key group. The margin grows with the square root of the group, so that this is rare. Until then a step
costs as much as the changed rows plus the first rows of the groups that they touch.

Source: Yi, Yu, Yang, Xia and Chen, "Efficient Maintenance of Materialized Top-k Views", ICDE 2003.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import compress, repeat
from math import isqrt
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flowcore.keyed.columns import complete_batch, concat_batches, take_rows
from flowcore.keyed.content import GONE
from flowcore.keyed.key_index import Ints, factorize_keys, find_last_rows, to_key_columns, to_python_keys
from flowcore.ranking.kept_rows import KeptRows
from flowcore.ranking.order import OrderColumn, find_first, sort_rows

__all__ = ["OrderedGroups", "RankChanges"]

_NOWHERE = -1
_NONE: Ints = np.empty(0, np.int64)
_ROWS_PER_PIECE = 1 << 15
_LEAST_GARBAGE = 1 << 12
_Flags = npt.NDArray[np.bool_]


@dataclass(slots=True)
class _Group:
    """The rows of one group.

    Attributes:
        number: Its number in `OrderedGroups._group_of`.
        size: The number of its rows.
        first: The positions of its first rows, in order; None after state was read.
    """

    number: int
    size: int = 0
    first: Ints | None = None


@dataclass(frozen=True, slots=True)
class RankChanges:
    """The ranks that have another row than before, by group and rank.

    Attributes:
        groups: The groups whose rows have changed.
        code_of: Of each change, the position of its group in ``groups``.
        ranks: Of each change, the rank, from 1.
        rows: Of each change, the columns of the row; null where the rank has vanished.
        vanished: Whether the rank has vanished.
    """

    groups: Sequence[Any]
    code_of: Ints
    ranks: Ints
    rows: pa.RecordBatch
    vanished: _Flags


class OrderedGroups:
    """The rows of all groups in a key group.

    Args:
        schema: The columns of a row: those of its group, then those that identify it in the group, then
            others.
        group_columns: The number of leading columns that form the group.
        row_key_columns: The number of leading columns that form group and row key.
        order: The columns of the order, each with whether larger values come first. Rows that are equal in it
            are in ascending order of their row key.
        n: How many rows of a group have a rank.
        compared: The columns by which a row differs from that which had its rank before.
    """

    def __init__(
        self,
        *,
        schema: pa.Schema,
        group_columns: int,
        row_key_columns: int,
        order: Sequence[tuple[str, bool]],
        n: int,
        compared: Sequence[str],
    ) -> None:
        self._schema = schema
        self._group_names, self._names = schema.names[:group_columns], schema.names[:row_key_columns]
        self._types = schema.types[:row_key_columns]
        self._order = [*order, *((name, False) for name in schema.names[group_columns:row_key_columns])]
        self._n, self._compared = n, [*compared]
        self._rows = KeptRows(schema)
        self._places: dict[Any, int] = {}
        """By group and row key, the position of a row."""
        self._groups: dict[Any, _Group] = {}
        self._numbers = 0
        self._group_of = np.full(_LEAST_GARBAGE, _NOWHERE, np.int64)
        """The number of the group of each position; `_NOWHERE` for a row that was removed."""
        self._before: dict[Any, Ints] = {}
        """The positions of ranked rows before the changes that `take_changes` has not returned."""
        self._unsaved: dict[Any, None] = {}

    def __len__(self) -> int:
        return len(self._places)

    def change(self, rows: pa.RecordBatch, inserted: _Flags) -> tuple[list[Any], Ints]:
        """Insert and remove rows, in order, so that the last change of a row key counts.

        Returns:
            The groups that have changed, and for each row the place of its group among them.
        """
        codes = factorize_keys(self._columns(rows, self._group_names), rows.num_rows)
        group_keys = self._keys_at(rows, self._group_names, codes.first)
        groups = [self._open(group_key) for group_key in group_keys]
        self._select_first([group for group in groups if group.first is None])
        firsts = [_known(group) for group in groups]
        for group_key, first in zip(group_keys, firsts, strict=True):
            self._before.setdefault(group_key, first[: self._n])
        has_others = np.array([group.size for group in groups]) > np.array([len(first) for first in firsts])
        fresh, code_of, touched = self._replace(rows, inserted, groups, codes.codes)
        self._unsaved.update(dict.fromkeys(touched))
        self._merge(groups, firsts, has_others, fresh, code_of)
        short = [group for group in groups if len(_known(group)) < min(self._n, group.size)]
        self._select_first(short)
        return group_keys, codes.codes

    def take_changes(self) -> RankChanges:
        """The ranks that have another row than at the last call."""
        before, self._before = self._before, {}
        group_keys, old_firsts = [*before], [*before.values()]
        new_firsts = [_known(self._groups[group_key])[: self._n] for group_key in group_keys]
        (old, old_code, old_rank), (new, new_code, new_rank) = _flatten(old_firsts), _flatten(new_firsts)
        old_counts, new_counts = (np.array([*map(len, each)], np.int64) for each in (old_firsts, new_firsts))
        (known,) = np.nonzero(new_rank < old_counts[new_code])
        had = np.full(len(new), _NOWHERE, np.int64)
        had[known] = old[(np.cumsum(old_counts) - old_counts)[new_code[known]] + new_rank[known]]
        (others,) = np.nonzero(new != had)
        replaced = others[had[others] != _NOWHERE]
        same = np.zeros(len(new), np.bool_)
        same[replaced] = self._are_equal(new[replaced], had[replaced])
        others = others[~same[others]]
        vanished = old_rank >= new_counts[old_code]
        places = np.concatenate([new[others], np.full(int(vanished.sum()), _NOWHERE)])
        code_of = np.concatenate([new_code[others], old_code[vanished]])
        rank_of = np.concatenate([new_rank[others], old_rank[vanished]])
        order = np.lexsort((rank_of, code_of))
        places = places[order]
        changes = RankChanges(
            group_keys, code_of[order], rank_of[order] + 1, self._take_some(places), places == _NOWHERE
        )
        self._drop_empty(group_keys)
        self._compact()
        return changes

    def take_unsaved(self) -> pa.RecordBatch | None:
        """The stored columns of the rows that have changed since the last call; None if there are none."""
        unsaved, self._unsaved = [*self._unsaved], {}
        places = [self._places.get(each, _NOWHERE) for each in unsaved]
        gone = [each for each, place in zip(unsaved, places, strict=True) if place == _NOWHERE]
        kept = self._store(np.array([place for place in places if place != _NOWHERE], np.int64))
        columns = to_key_columns(gone, self._types) if self._types else []
        flags = pa.array(np.ones(len(gone), np.bool_))
        lost = pa.RecordBatch.from_arrays([*columns, flags], [*self._names, GONE])
        return concat_batches([kept, complete_batch(lost, kept.schema)]) if unsaved else None

    def take_all(self) -> Iterator[pa.RecordBatch]:
        """The stored columns of all rows, in pieces."""
        self._unsaved = {}
        (places,) = np.nonzero(self._group_of[: len(self._rows)] != _NOWHERE)
        for start in range(0, len(places), _ROWS_PER_PIECE):
            yield self._store(places[start : start + _ROWS_PER_PIECE])

    def load(self, stored: pa.RecordBatch) -> None:
        """Apply rows as they are stored; may be called repeatedly."""
        rows = stored.select(self._schema.names).cast(self._schema)
        codes = factorize_keys(self._columns(rows, self._group_names), rows.num_rows)
        group_keys = self._keys_at(rows, self._group_names, codes.first)
        groups = [self._open(group_key) for group_key in group_keys]
        gone = stored.column(GONE).to_numpy(zero_copy_only=False)
        self._replace(rows, ~gone, groups, codes.codes)
        for group in groups:
            group.first = None
        self._unsaved, self._before = {}, {}
        self._drop_empty(group_keys)
        self._compact()

    def _open(self, group_key: Any) -> _Group:
        group = self._groups.get(group_key)
        if group is None:
            group = self._groups[group_key] = _Group(self._numbers, first=_NONE)
            self._numbers += 1
        return group

    def _replace(
        self, rows: pa.RecordBatch, inserted: _Flags, groups: Sequence[_Group], codes: Ints
    ) -> tuple[Ints, Ints, list[Any]]:
        """Remove the rows that are replaced, and add those that replace them.

        Returns:
            The positions of added rows, the places of their groups, and the row keys that have changed.
        """
        each = factorize_keys(self._columns(rows, self._names), rows.num_rows)
        last = find_last_rows(each.codes, len(each.first))
        row_keys = self._keys_at(rows, self._names, last)
        found = map(self._places.get, row_keys, repeat(_NOWHERE))
        old = np.fromiter(found, np.int64, len(row_keys))
        had, stays, code_of = old != _NOWHERE, inserted[last], codes[last]
        self._group_of[old[had]] = _NOWHERE
        for row_key in compress(row_keys, (had & ~stays).tolist()):
            del self._places[row_key]
        start = self._rows.add(rows.take(last[stays]))
        fresh = np.arange(start, len(self._rows))
        self._places.update(zip(compress(row_keys, stays.tolist()), fresh.tolist(), strict=True))
        while len(self._rows) > len(self._group_of):
            self._group_of = np.concatenate([self._group_of, np.full_like(self._group_of, _NOWHERE)])
        numbers = np.array([group.number for group in groups], np.int64)
        self._group_of[start : len(self._rows)] = numbers[code_of[stays]]
        more = np.bincount(code_of[stays], minlength=len(groups))
        less = np.bincount(code_of[had], minlength=len(groups))
        for group, change in zip(groups, (more - less).tolist(), strict=True):
            group.size += change
        return fresh, code_of[stays], row_keys

    def _merge(
        self, groups: Sequence[_Group], firsts: Sequence[Ints], has_others: _Flags, fresh: Ints, code_of: Ints
    ) -> None:
        """Add new rows to the first rows of groups, up to the last of these, and leave out removed ones.

        Args:
            firsts: The positions of the first rows before.
            has_others: Whether a group had other rows, which come after these.
        """
        counts = np.array([*map(len, firsts)], np.int64)
        places = np.concatenate([fresh, *firsts])
        codes = np.concatenate([code_of, np.repeat(np.arange(len(groups)), counts)])
        # A new row is before the equal one that it replaces.
        order = sort_rows([(pa.array(codes), False), *self._ordered(places)])
        sorted_at = np.empty(len(order), np.int64)
        sorted_at[order] = np.arange(len(order))
        ends = len(fresh) + np.cumsum(counts) - 1
        last_at = np.full(len(groups), len(places))
        last_at[has_others] = sorted_at[ends[has_others]]
        places, codes = places[order], codes[order]
        kept = (np.arange(len(places)) <= last_at[codes]) & (self._group_of[places] != _NOWHERE)
        places, codes = places[kept], codes[kept]
        bounds = np.searchsorted(codes, np.arange(len(groups) + 1)).tolist()
        for number, group in enumerate(groups):
            start, end, count = bounds[number], bounds[number + 1], self._target_size(group)
            end = end if end - start <= 2 * count else start + count
            group.first = places[start:end].copy()  # without the others, which it would keep in memory

    def _select_first(self, groups: Sequence[_Group]) -> None:
        """Find the first rows of groups among all their rows."""
        if not groups:
            return
        numbers = np.full(self._numbers + 1, _NOWHERE)  # the last one is that of no group
        numbers[[group.number for group in groups]] = np.arange(len(groups))
        codes = numbers[self._group_of[: len(self._rows)]]
        (places,) = np.nonzero(codes != _NOWHERE)
        places = places[np.argsort(codes[places], kind="stable")]
        ends = np.cumsum([group.size for group in groups]).tolist()
        parts = []
        for group, end in zip(groups, ends, strict=True):
            part, count = places[end - group.size : end], self._target_size(group)
            if group.size > 4 * count:
                part = part[find_first(self._ordered(part), count)]
            parts.append(part)
        places, codes, _ = _flatten(parts)
        places = places[sort_rows([(pa.array(codes), False), *self._ordered(places)])]
        ends = np.cumsum([*map(len, parts)]).tolist()
        for group, part, end in zip(groups, parts, ends, strict=True):
            first = places[end - len(part) : end]
            group.first = first[: self._target_size(group)].copy()

    def _target_size(self, group: _Group) -> int:
        """How many first rows of a group are selected."""
        return 2 * self._n + 16 + isqrt(group.size)

    def _ordered(self, places: Ints) -> list[OrderColumn]:
        names = dict.fromkeys(name for name, _ in self._order)
        rows = self._rows.take(places, [*names])
        return [(rows.column(name), descending) for name, descending in self._order]

    def _are_equal(self, first: Ints, second: Ints) -> _Flags:
        """Whether rows have the same values in the compared columns."""
        found = np.ones(len(first), np.bool_)
        if self._compared and len(first):
            rows = self._rows.take(np.concatenate([first, second]), self._compared)
            for column in rows.columns:
                found &= _compare_halves(column)
        return found

    def _take_some(self, places: Ints) -> pa.RecordBatch:
        """The compared columns of rows at positions, null at `_NOWHERE`."""
        known = places != _NOWHERE
        rows = self._rows.take(places[known], self._compared)
        if not self._compared:
            return rows
        return rows.take(pa.array(np.cumsum(known) - 1, mask=~known))

    def _store(self, places: Ints) -> pa.RecordBatch:
        rows = self._rows.take(places)
        flags = pa.array(np.zeros(rows.num_rows, np.bool_))
        schema = self._schema.append(pa.field(GONE, pa.bool_()))
        return pa.RecordBatch.from_arrays([*rows.columns, flags], schema=schema)

    def _drop_empty(self, group_keys: Sequence[Any]) -> None:
        for group_key in group_keys:
            if not self._groups[group_key].size:
                del self._groups[group_key]

    def _compact(self) -> None:
        """Drop removed rows once they outnumber the others."""
        if len(self._rows) - len(self) <= max(len(self), _LEAST_GARBAGE):
            return
        (places,) = np.nonzero(self._group_of[: len(self._rows)] != _NOWHERE)
        place_of = np.full(len(self._rows), _NOWHERE)
        place_of[places] = np.arange(len(places))
        numbers = np.full(self._numbers, _NOWHERE)
        for number, group in enumerate(self._groups.values()):
            numbers[group.number] = group.number = number
            group.first = None if group.first is None else place_of[group.first]
        numbers_now = numbers[self._group_of[places]]
        self._numbers = len(self._groups)
        self._rows.renew(self._rows.take(places))
        self._group_of = np.full(max(len(places), _LEAST_GARBAGE), _NOWHERE)
        self._group_of[: len(places)] = numbers_now
        now = place_of.tolist()
        self._places = {row_key: now[place] for row_key, place in self._places.items()}

    def _keys_at(self, rows: pa.RecordBatch, names: Sequence[str], places: Ints) -> list[Any]:
        return to_python_keys(take_rows(self._columns(rows, names), places), len(places))

    @staticmethod
    def _columns(rows: pa.RecordBatch, names: Sequence[str]) -> list[pa.Array[Any]]:
        return [rows.column(name) for name in names]


def _known(group: _Group) -> Ints:
    """The first rows of a group that has been opened for changes."""
    if group.first is None:
        raise AssertionError(group)
    return group.first


def _flatten(parts: Sequence[Ints]) -> tuple[Ints, Ints, Ints]:
    """The numbers in all parts, and for each one the part and its place there."""
    counts = np.array([*map(len, parts)], np.int64)
    codes = np.repeat(np.arange(len(parts)), counts)
    return np.concatenate([_NONE, *parts]), codes, np.arange(len(codes)) - (np.cumsum(counts) - counts)[codes]


def _compare_halves(column: pa.Array[Any]) -> _Flags:
    """Whether the values of the first half of a column equal those of the second half."""
    kind, count = column.type, len(column) // 2
    if pa.types.is_nested(kind) or pa.types.is_interval(kind) or pa.types.is_null(kind):
        pairs = zip(range(count), range(count, 2 * count), strict=True)
        return np.array(
            [column.slice(one, 1).equals(column.slice(other, 1)) for one, other in pairs], np.bool_
        )
    codes = factorize_keys([column], len(column)).codes
    found: _Flags = codes[:count] == codes[count:]
    return found
