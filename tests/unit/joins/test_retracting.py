"""A regular join of rows that replace and delete each other agrees with nested loops over the last rows.

Rows pass the changelog of their side. Their names are what the compiled query makes: of the key of the rows
and of the key that is joined on, so that it does not matter in which order key groups emit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal, NamedTuple

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from flowcore.elements import MAX_TIMESTAMP_MS
from flowcore.joins.retracting import RetractingJoin
from flowcore.keyed import segments
from flowcore.keyed.content import StoredSchemas, read_content
from flowcore.keyed.inspection import _keys
from flowcore.keyed.manifest import StateManifest
from flowcore.keyed.operator import StepOutputs
from flowcore.keyed.output_columns import DELETED, EMISSION, RESULTS
from flowcore.retraction.changelog import CHANGE, Changelog
from tests.unit.keyed.stored_group import StoredGroup

How = Literal["inner", "left", "right", "full", "semi", "anti"]
KINDS: list[How] = ["inner", "left", "right", "full", "semi", "anti"]
_ROWS: list[tuple[str, pa.DataType]] = [
    ("id", pa.string()), ("key", pa.string()), ("number", pa.int64()), ("gone", pa.bool_()),
]  # fmt: skip
_CHANGES: list[tuple[str, pa.DataType]] = [
    ("is_right", pa.bool_()), ("key", pa.string()), ("change", pa.int8()), ("l", pa.int64()),
    ("r", pa.int64()), ("l_name", pa.string()), ("r_name", pa.string()),
]  # fmt: skip
SOURCE, CHANGES = pa.schema(_ROWS), pa.schema(_CHANGES)
GROUPS = 2
NAMES = ("l_name", "r_name")
Steps = list[tuple[list["Row"], str, int]]
"""Rows of a step, what becomes of the workers, and how long it lasts."""


class Row(NamedTuple):
    """A row of one side; ``gone`` deletes the row of its id."""

    is_right: bool
    id: str
    key: str | None
    number: int
    gone: bool


class Kept(NamedTuple):
    """A row of the oracle; ``name`` is that of the row, or its number if the side is final."""

    key: str | None
    number: int
    name: str
    time_ms: int


def join(how: How, updating: tuple[bool, bool], ttl_ms: int | None = None) -> RetractingJoin:
    kept_ms = MAX_TIMESTAMP_MS if ttl_ms is None else ttl_ms
    names = NAMES[0] if updating[0] else None, NAMES[1] if updating[1] else None
    left, right = (
        {each: each for each in (column, name) if each} for column, name in zip("lr", names, strict=True)
    )
    if how in ("semi", "anti"):
        right.pop("r")
    return RetractingJoin(
        keys=("key",), side="is_right", timestamp="t", rows=CHANGES, how=how, left=left, right=right,
        before_ms=kept_ms, after_ms=kept_ms, time="processing", change="change", row_names=names,
    )  # fmt: skip


def change(row: dict[str, Any], *, is_right: bool, updating: bool) -> dict[str, Any]:
    """A row of a changelog or of a final side, as the join reads it."""
    name = f"{row['id']}|{row['key']}" if updating else None
    side = {"r": row["number"], "r_name": name} if is_right else {"l": row["number"], "l_name": name}
    return {"is_right": is_right, "key": row["key"], "change": row.get(CHANGE, 1), **side}


@dataclass
class Flow:
    """A changelog of each updating side, and the key groups of a join.

    Attributes:
        has_unique_numbers: No two rows that it gets have one number, which is in the place of a record id.
    """

    how: How
    updating: tuple[bool, bool]
    ttl_ms: int | None = None
    has_unique_numbers: bool = True
    table: dict[tuple[Any, ...], dict[str, Any]] = field(default_factory=dict)
    """The rows that were emitted and not deleted, by `row_id`."""
    ids: set[tuple[Any, ...]] = field(default_factory=set)

    def __post_init__(self) -> None:
        passed = {name: name for name in SOURCE.names if name != "gone"}
        kept_ms = None if self.ttl_ms is None else self.ttl_ms + 1
        changelog = Changelog(
            keys=("id",), rows=SOURCE, passed=passed, deleted="gone", ttl_ms=kept_ms, retracts_expired=False
        )
        self.changes = [StoredGroup(changelog) for _ in range(2)]
        self.groups = [StoredGroup(join(self.how, self.updating, self.ttl_ms)) for _ in range(GROUPS)]

    def step(self, rows: list[Row], fate: str, processing_time_ms: int, *, calls: int = 1) -> list[Row]:
        """Process rows, in so many calls of the join; return what it emits as rows of another one."""
        found, emitted = [], list[Row]()
        for is_right, updating in enumerate(self.updating):
            mine = [row._asdict() for row in rows if row.is_right == bool(is_right)]
            if updating:
                mine = self._changelog(self.changes[is_right], mine, processing_time_ms, fate)
            found += [change(row, is_right=bool(is_right), updating=updating) for row in mine]
        for number, group in enumerate(self.groups):
            own = [row for row in found if _key_group(row) == number]
            out = StepOutputs()
            group.group.advance_processing_time(processing_time_ms, out)
            for start in range(calls):
                part = own[start * len(own) // calls : (start + 1) * len(own) // calls]
                group.group.rows(pa.RecordBatch.from_pylist(part, schema=CHANGES), out)
            group.store(fate)
            emitted += self._apply(row for _, batch in out.batches for row in batch.to_pylist())
        return emitted

    def _changelog(
        self, changes: StoredGroup, rows: list[dict[str, Any]], processing_time_ms: int, fate: str
    ) -> list[dict[str, Any]]:
        out = StepOutputs()
        changes.group.advance_processing_time(processing_time_ms, out)
        changes.group.rows(pa.RecordBatch.from_pylist(rows, schema=SOURCE), out)
        changes.store(fate)
        return [row for _, batch in out.batches for row in batch.to_pylist()]

    def _apply(self, rows: Iterator[dict[str, Any]]) -> Iterator[Row]:
        """Each deletion is of a row that is there, with its columns; no record id repeats."""
        for row in rows:
            deleted, emission = row.pop(DELETED), row.pop(EMISSION)
            row_id = tuple(row.get(name) or row.get(column) for name, column in zip(NAMES, "lr", strict=True))
            record_id = row["l"], row.get("r"), emission, deleted
            assert not self.has_unique_numbers or record_id not in self.ids
            self.ids.add(record_id)
            if deleted:
                assert self.table.pop(row_id) == row
            else:
                self.table[row_id] = row
            yield Row(False, repr(row_id), row["key"], pair_number(row["l"], row.get("r")), deleted)

    def rows(self) -> Counter[tuple[Any, ...]]:
        return Counter((row["key"], row["l"], row.get("r")) for row in self.table.values())


def pair_number(left: int | None, right: int | None) -> int:
    return (left or 0) * 1000 + (right or 0)


def _key_group(row: dict[str, Any]) -> int:
    """A row without key belongs to the key group of its name."""
    text = row["key"] or row["l_name" if not row["is_right"] else "r_name"] or ""
    return sum(text.encode()) % GROUPS


def last_rows(rows: list[Row], updating: tuple[bool, bool]) -> tuple[list[Row], list[Row]]:
    found: tuple[dict[Any, Row], dict[Any, Row]] = {}, {}
    for row in rows:
        found[row.is_right][row.id if updating[row.is_right] else row.number] = row
    left, right = (
        [row for row in each.values() if not (row.gone and changes)]
        for each, changes in zip(found, updating, strict=True)
    )
    return left, right


def joined(how: How, left: list[Row], right: list[Row]) -> Counter[tuple[Any, ...]]:
    """The join by nested loops."""
    pairs = [(a, b) for a in left for b in right if a.key == b.key and a.key is not None]
    lefts, rights = {a.number for a, _ in pairs}, {b.number for _, b in pairs}
    found: list[tuple[str | None, int | None, int | None]] = []
    found += [(a.key, a.number, b.number) for a, b in pairs] if how not in ("semi", "anti") else []
    if how == "semi":
        found += [(a.key, a.number, None) for a in left if a.number in lefts]
    if how in ("left", "full", "anti"):
        found += [(a.key, a.number, None) for a in left if a.number not in lefts]
    if how in ("right", "full"):
        found += [(b.key, None, b.number) for b in right if b.number not in rights]
    return Counter(found)


@st.composite
def histories(draw: st.DrawFn) -> Steps:
    row = st.tuples(
        st.booleans(), st.sampled_from("pqr"), st.sampled_from([None, "a", "a", "b"]),
        st.sampled_from([False, False, True]),
    )  # fmt: skip
    fate = st.sampled_from(["delta", "delta", "snapshot", "restart", "former worker"])
    lasts = st.sampled_from([0, 1, 2, 5])
    drawn = draw(st.lists(st.tuples(st.lists(row, max_size=6), fate, lasts), max_size=10))
    numbers = count(1)
    return [
        ([Row(is_right, id_, key, next(numbers), gone) for is_right, id_, key, gone in rows], how, lasts_ms)
        for rows, how, lasts_ms in drawn
    ]


UPDATING = st.sampled_from([(True, True), (True, False), (False, True)])


@settings(max_examples=250, deadline=None)
@given(st.sampled_from(KINDS), UPDATING, histories(), st.integers(1, 3))
def test_the_rows_that_are_left_are_the_join_of_the_last_rows(
    how: How, updating: tuple[bool, bool], history: Steps, calls: int
) -> None:
    """Over restarts and any batches, for rows that change their key, too."""
    flow, arrived = Flow(how, updating), list[Row]()
    processing_time_ms = 1
    for rows, fate, lasts_ms in history:
        flow.step(rows, fate, processing_time_ms, calls=calls)
        processing_time_ms += lasts_ms
        arrived += rows
        assert flow.rows() == joined(how, *last_rows(arrived, updating))


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(KINDS), st.sampled_from(KINDS), UPDATING, st.booleans(), histories())
def test_a_join_takes_rows_of_another_join_back(
    how: How, how_again: How, updating: tuple[bool, bool], updating_again: bool, history: Steps
) -> None:
    """The right rows of ``r`` are those of the second join."""
    first, second = Flow(how, updating), Flow(how_again, (True, updating_again), has_unique_numbers=False)
    arrived, others = list[Row](), list[Row]()
    for rows, fate, _ in history:
        mine = [row for row in rows if not (row.is_right and row.id == "r")]
        more = [row for row in rows if row.is_right and row.id == "r"]
        arrived += mine
        others += more
        second.step([*first.step(mine, fate, 1), *more], fate, 1)
        left = [
            Row(False, "", key, pair_number(*numbers), False)
            for key, *numbers in joined(how, *last_rows(arrived, updating)).elements()
        ]
        _, right = last_rows(others, (True, updating_again))
        assert second.rows() == joined(how_again, left, right)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(KINDS), UPDATING, histories())
def test_state_has_the_last_rows_and_no_other(how: How, updating: tuple[bool, bool], history: Steps) -> None:
    """As snapshots, `flowcore state` and `flowcore rescale` see it, before and after a snapshot."""
    flow, arrived = Flow(how, updating), list[Row]()
    for rows, fate, _ in history:
        flow.step(rows, fate, 1)
        arrived += rows
    expected = Counter(
        (name, row.key)
        for name, side in zip(("left_ms", "right_ms"), last_rows(arrived, updating), strict=True)
        for row in side
        if row.key is not None
    )
    for how_stored in ("delta", "snapshot"):
        shown: Counter[tuple[str, str]] = Counter()
        entries = written = 0
        for group in flow.groups:
            group.store(how_stored)
            manifest = StateManifest(layout=group.config.layout, key_groups=GROUPS)
            manifest.header = group.header
            for each in _keys(manifest, group.pieces) or ():
                for name, times_ms in each.states.items():
                    shown[name, each.key["key"]] += len(times_ms)
            schemas = StoredSchemas(pa.schema([CHANGES.field("key")]), group.config.outputs[RESULTS])
            found = read_content(manifest.layout, manifest.header, group.pieces, schemas)
            entries += sum(content.keys.num_rows for content in found)
            written += sum(rows.num_rows for piece in group.pieces for _, rows in segments.decode(piece))
        assert shown == expected
        assert entries == expected.total()
    assert written == expected.total()


@dataclass
class Expiring:
    """A join of rows that are kept for a time, one row at a time: what was emitted stays."""

    how: How
    updating: tuple[bool, bool]
    ttl_ms: int
    kept: tuple[list[Kept], list[Kept]] = field(default_factory=lambda: ([], []))
    lone: tuple[set[Kept], set[Kept]] = field(default_factory=lambda: (set(), set()))
    """The rows that are in the table without partner; of a semi-join, those that are not."""
    table: dict[tuple[Any, ...], tuple[Any, ...]] = field(default_factory=dict)

    def step(self, rows: list[Row], processing_time_ms: int) -> None:
        before = self._alive(processing_time_ms)
        for row in rows:
            self._take(row, processing_time_ms)
        after = self._alive(processing_time_ms)
        if self.how not in ("semi", "anti"):
            for pair in _pairs(*before):
                if pair not in _pairs(*after):
                    self.table.pop((pair[0].name, pair[1].name))
        found = [row for side in (0, 1) for row in self._single(side, before, after)]
        self.table |= {_row_id(side, row): _single_row(side, row) for side, row in found}
        if self.how not in ("semi", "anti"):
            for a, b in _pairs(*after):
                if a not in before[0] or b not in before[1]:
                    self.table[a.name, b.name] = (a.key, a.number, b.number)

    def _take(self, row: Row, processing_time_ms: int) -> None:
        side, updating = self.kept[row.is_right], self.updating[row.is_right]
        name = f"{row.id}|{row.key}" if updating else str(row.number)
        if updating:
            side[:] = [each for each in side if each.name.split("|")[0] != row.id]
        if not (updating and row.gone):
            side.append(Kept(row.key, row.number, name, processing_time_ms))

    def _single(self, side: int, before: Any, after: Any) -> Iterator[tuple[int, Kept]]:
        """Delete the rows that are not single any more; the rows that are from now on."""
        kinds = (("left", "full", "anti", "semi"), ("right", "full"))
        if self.how not in kinds[side]:
            return
        semi, lost = self.how == "semi", {row.key for row in before[1 - side] if row not in after[1 - side]}
        new = []
        for row in {*before[side], *after[side]}:
            had, has = row in before[side], row in after[side]
            partner = row.key is not None and any(each.key == row.key for each in after[1 - side])
            was_lone = row in self.lone[side]
            is_lone = not partner if not had or partner or row.key in lost else was_lone
            if had and (not has or was_lone != is_lone) and was_lone != semi:
                del self.table[_row_id(side, row)]
            if has and (not had or was_lone != is_lone) and is_lone != semi:
                new.append((side, row))
            (self.lone[side].add if has and is_lone else self.lone[side].discard)(row)
        yield from (new if not semi else [each for each in new if each[1].key is not None])

    def _alive(self, processing_time_ms: int) -> tuple[list[Kept], list[Kept]]:
        left, right = (
            [row for row in side if processing_time_ms <= row.time_ms + self.ttl_ms] for side in self.kept
        )
        self.kept[0][:], self.kept[1][:] = left, right
        return left, right


def _pairs(left: list[Kept], right: list[Kept]) -> list[tuple[Kept, Kept]]:
    return [(a, b) for a in left for b in right if a.key == b.key and a.key is not None]


def _row_id(side: int, row: Kept) -> tuple[Any, ...]:
    return (None, row.name) if side else (row.name, None)


def _single_row(side: int, row: Kept) -> tuple[Any, ...]:
    return (row.key, None, row.number) if side else (row.key, row.number, None)


@settings(max_examples=250, deadline=None)
@given(st.sampled_from(KINDS), UPDATING, histories(), st.sampled_from([0, 1, 3]))
def test_what_has_expired_is_no_partner_and_what_was_emitted_stays(
    how: How, updating: tuple[bool, bool], history: Steps, ttl_ms: int
) -> None:
    flow, oracle = Flow(how, updating, ttl_ms), Expiring(how, updating, ttl_ms)
    processing_time_ms = 1
    for rows, fate, lasts_ms in history:
        flow.step(rows, fate, processing_time_ms)
        oracle.step(rows, processing_time_ms)
        processing_time_ms += lasts_ms
        assert flow.rows() == Counter(oracle.table.values())
    for group in (*flow.groups, *flow.changes):
        group.group.advance_processing_time(processing_time_ms + ttl_ms + 1, StepOutputs())
        assert [*group.group.snapshot()] == []
