"""The regular join of two streams of which at least one takes rows back, as an operator on key groups.

The rows of such a side are changes: an insertion, or the retraction of a row that was inserted. A row has a
text that names it, under which a later insertion replaces it and its retraction finds it. Rows of the other
side may be final.

The changes of a call count together: what is emitted is the difference between the joins before and after
it. First rows are deleted: the pairs of a row that is gone, an unmatched row that is gone, and one that has a
partner now. Then rows are inserted: new unmatched rows, rows that have lost their last partner, and new
pairs.
A row that is deleted and inserted under the same name is only inserted, since it replaces the earlier one.

A row is kept for a time to live after its insertion. What is not kept any more is no partner, and its
retraction changes nothing: what was emitted stays.

Source: Flink's regular join (``StreamingJoinOperator`` and ``StreamingSemiAntiJoinOperator``). They count the
partners of a row, also those that have expired; here a row without a partner that is kept is unmatched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flowcore.joins.group import LEFT, RIGHT, NewRows
from flowcore.joins.interval import IntervalJoin, IntervalJoinGroup
from flowcore.joins.side_rows import Matches
from flowcore.keyed.key_index import Ints, factorize_keys, find_last_rows
from flowcore.keyed.operator import StepOutputs

__all__ = ["RetractingJoin", "RetractingJoinGroup"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetractingJoin(IntervalJoin):
    """Configuration; ``time`` is ``"processing"``, and both lengths are the time to live.

    Attributes:
        change: The column that is above 0 where a row is inserted, and below 0 where it is retracted.
        row_names: Of ``left`` and ``right``, the column with the text that names a row; None if the rows of
            the side are final.
    """

    change: str
    row_names: tuple[str | None, str | None]

    @property
    def retracts(self) -> bool:
        return True

    @property
    def takes_retractions(self) -> bool:
        return True

    def open(self) -> RetractingJoinGroup:
        return RetractingJoinGroup(self)


class _SideChanges(NamedTuple):
    """What a call changes on a side.

    Attributes:
        removed: The places of stored rows that are gone.
        replaced: Which of these have a successor: a row of the same key and name.
        added: The numbers of new rows that are inserted.
    """

    removed: Ints
    replaced: npt.NDArray[np.bool_]
    added: Ints


class RetractingJoinGroup(IntervalJoinGroup):
    """A key group."""

    _config: RetractingJoin

    def _emit_without_key(self, side: int, rows: pa.RecordBatch, times_ms: Ints, out: StepOutputs) -> None:
        """Emit the last insertion of each row, and delete the rows that were emitted in earlier calls."""
        name, inserted = self._config.row_names[side], self._are_inserted(rows)
        if name is None:
            super()._emit_without_key(side, rows, times_ms, out)
            return
        stored = self._stored_columns(rows, side)
        numbers = factorize_keys([stored.column(name)], rows.num_rows)
        first, last = numbers.first, find_last_rows(numbers.codes, len(numbers.first))
        for chosen, deleted in (
            (first[~inserted[first] & ~inserted[last]], True),
            (last[inserted[last]], False),
        ):
            self._emit_alone(side, stored.take(chosen), times_ms[chosen], out, deleted=deleted)

    def _join(self, new: NewRows, out: StepOutputs) -> None:
        """Emit the difference between the joins before and after the new rows."""
        changes = self._find_changes(LEFT, new), self._find_changes(RIGHT, new)
        if self._config.how not in {"semi", "anti"}:
            self._delete_pairs(changes, out)
        dropped = [
            (side.codes[each.removed], side.changes[each.removed])
            for side, each in zip(self._sides, changes, strict=True)
        ]
        for number, (side, each) in enumerate(zip(self._sides, changes, strict=True)):
            side.remove(each.removed)
            self._add(number, new, each.added)
        left, right = self._sides
        self._first_new = len(left) - len(changes[LEFT].added), len(right) - len(changes[RIGHT].added)
        lone = []
        for number in (LEFT, RIGHT):
            if self._keeps[number] or (self._config.how == "semi" and number == LEFT):
                self._delete_removed(number, changes[number], *dropped[number], out)
                lone.append((number, self._match_again(number, dropped[1 - number][0], out)))
        for number, places in lone:
            self._emit_rows(number, places, out)
        if self._config.how not in {"semi", "anti"}:
            self._insert_pairs(out)

    def _find_changes(self, number: int, new: NewRows) -> _SideChanges:
        """Find the stored rows that the new rows of a side retract or replace, and which of these stay."""
        mine, side = np.flatnonzero(new.is_right == bool(number)), self._sides[number]
        name = self._config.row_names[number]
        if name is None:
            return _SideChanges(np.empty(0, np.int64), np.empty(0, np.bool_), mine)
        stored = self._find_places(number, new.codes[mine])
        names = pa.concat_arrays(
            [side.rows.column(name).take(stored), new.rows.column(self._columns[number][name]).take(mine)]
        )
        codes = pa.array(np.concatenate([side.codes[stored], new.codes[mine]]))
        numbers = factorize_keys([codes, names], len(names))
        last = find_last_rows(numbers.codes, len(numbers.first)) - len(stored)
        changed = last >= 0
        stays = np.zeros(len(last), np.bool_)
        stays[changed] = self._are_inserted(new.rows)[mine[last[changed]]]
        own = numbers.codes[: len(stored)]
        removed = changed[own]
        return _SideChanges(stored[removed], stays[own[removed]], np.sort(mine[last[changed & stays]]))

    def _delete_pairs(self, changes: tuple[_SideChanges, _SideChanges], out: StepOutputs) -> None:
        """Delete the pairs of rows that are gone, unless their successors are a pair of the same name."""
        left, right = self._sides
        gone, removed = ([np.zeros(len(side), np.bool_) for side in self._sides] for _ in range(2))
        for number, each in enumerate(changes):
            removed[number][each.removed] = True
            gone[number][each.removed[~each.replaced]] = True
        for probing, places in self._find(RIGHT, left.codes[changes[LEFT].removed]).pairs():
            mine = changes[LEFT].removed[probing]
            chosen = gone[LEFT][mine] | gone[RIGHT][places]
            self._emit_stored_pairs(mine[chosen], places[chosen], out, deleted=True)
        for probing, places in self._find(LEFT, right.codes[changes[RIGHT].removed]).pairs():
            mine = changes[RIGHT].removed[probing]
            chosen = gone[RIGHT][mine] & ~removed[LEFT][places]
            self._emit_stored_pairs(places[chosen], mine[chosen], out, deleted=True)

    def _delete_removed(
        self, number: int, changed: _SideChanges, codes: Ints, changes: Ints, out: StepOutputs
    ) -> None:
        """Delete the single rows that are gone, unless their successors are emitted as such, too.

        Args:
            codes: The keys of the rows that are gone.
            changes: How often they found or lost partners.
        """
        side = self._sides[number]
        emitted = changes % 2 == self._emits_matched
        successors = changed.replaced & (self._have_partners(number, codes) == self._emits_matched)
        chosen = emitted & ~successors
        places = changed.removed[chosen]
        rows, emissions = side.rows.take(places), changes[chosen] // 2
        self._emit_alone(number, rows, side.times_ms[places], out, deleted=True, emissions=emissions)

    def _match_again(self, number: int, removed: Ints, out: StepOutputs) -> Ints:
        """Mark rows that have a partner now, or none any more; return the rows to emit as single rows.

        Rows of earlier calls that were emitted as such are deleted.

        Args:
            removed: The keys of the rows of the other side that are gone.
        """
        side, first_new = self._sides[number], self._first_new[number]
        arrived = self._sides[1 - number].codes[self._first_new[1 - number] :]
        old = self._find_places(number, np.concatenate([removed, arrived]))
        fresh = np.arange(first_new, len(side))
        places = np.concatenate([old[old < first_new], fresh])
        before, now = side.has_partner(places), self._have_partners(number, side.codes[places])
        changed, is_new = before != now, places >= first_new
        deleted = places[changed & ~is_new & (before == self._emits_matched)]
        self._emit_rows(number, deleted, out, deleted=True)
        side.match(places[now & ~before])
        side.unmatch(places[before & ~now])
        emitted: Ints = places[(changed | is_new) & (now == self._emits_matched)]
        return emitted

    def _insert_pairs(self, out: StepOutputs) -> None:
        """Emit the pairs with new rows."""
        left, right = self._sides
        first_left, first_right = self._first_new
        for probing, places in self._find(RIGHT, left.codes[first_left:]).pairs():
            self._emit_stored_pairs(first_left + probing, places, out)
        for probing, places in self._find(LEFT, right.codes[first_right:]).pairs():
            old = places < first_left
            self._emit_stored_pairs(places[old], first_right + probing[old], out)

    def _emit_stored_pairs(
        self, left_places: Ints, right_places: Ints, out: StepOutputs, *, deleted: bool = False
    ) -> None:
        left, right = self._sides
        rows = left.rows.take(left_places), right.rows.take(right_places)
        self._emit(*rows, left.times_ms[left_places], out, deleted=deleted)

    def _emit_rows(self, number: int, places: Ints, out: StepOutputs, *, deleted: bool = False) -> None:
        """Emit or delete stored rows as single rows."""
        side = self._sides[number]
        rows, emissions = side.rows.take(places), side.changes[places] // 2
        self._emit_alone(number, rows, side.times_ms[places], out, deleted=deleted, emissions=emissions)

    @property
    def _emits_matched(self) -> bool:
        """Whether rows are emitted as single rows while they have a partner, not while they have none."""
        return self._config.how == "semi"

    def _find(self, number: int, codes: Ints) -> Matches:
        """The rows of a side that are kept, by key."""
        now_ms = np.full(len(codes), self._watermark_ms + 1)
        return self._sides[number].find(codes, *self._config.partners_ms(1 - number, now_ms))

    def _find_places(self, number: int, codes: Ints) -> Ints:
        """The places of the rows of a side with these keys that are kept, in the order of the keys.

        Keys have other numbers after a restart, but rows leave in the same order: the last row that changes
        a group downstream names its result.
        """
        _, first = np.unique(codes, return_index=True)
        found = self._find(number, codes[np.sort(first)]).pairs()
        places: Ints = np.concatenate([np.empty(0, np.int64), *(places for _, places in found)])
        return places

    def _have_partners(self, number: int, codes: Ints) -> npt.NDArray[np.bool_]:
        """Whether rows of a side with these keys have partners that are kept."""
        return np.asarray(self._find(1 - number, codes).count > 0)

    def _are_inserted(self, rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        return np.asarray(rows.column(self._config.change).to_numpy() > 0)
