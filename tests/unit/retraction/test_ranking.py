"""Ranks of rows that replace each other agree with sorting the last rows of each group, over any batches."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowcore.elements import RecordAttributes, WatermarkStatus
from flowcore.keyed.content import StoredSchemas, read_content
from flowcore.keyed.inspection import _keys
from flowcore.keyed.manifest import StateManifest
from flowcore.keyed.operator import StepOutputs
from flowcore.keyed.output_columns import DELETED
from flowcore.ranking.keyed import RANK
from flowcore.ranking.order import find_first, sort_rows
from flowcore.retraction import ordered_groups
from flowcore.retraction import ranking as ranking_of_changelog
from flowcore.retraction.changelog import CHANGE, Changelog
from flowcore.retraction.ranking import RetractingRanking
from tests.unit.keyed.stored_group import StoredGroup
from tests.unit.ranking.test_keyed import size_of

TYPES: dict[str, pa.DataType] = {
    "id": pa.string(), "part": pa.int64(), "shop": pa.string(), "price": pa.float64(),
    "note": pa.list_(pa.string()), "gone": pa.bool_(), "number": pa.int64(),
}  # fmt: skip
ROWS = pa.schema(TYPES)
CHANGED = ROWS.append(pa.field(CHANGE, pa.int8()))
RESULTS = ("price", "note")
Row = dict[str, Any]
Table = dict[tuple[Any, int], Row]
"""By group and rank, the columns of the row."""


def changelog() -> Changelog:
    return Changelog(
        keys=("id", "part"), rows=ROWS, passed={name: name for name in ROWS.names}, deleted="gone"
    )


def ranking(n: int, *keys: str, descending: bool = True, **changed: Any) -> RetractingRanking:
    given: dict[str, Any] = {
        "row_key": tuple(name for name in ("id", "part") if name not in keys),
        "order": (("price", descending),),
        "change": CHANGE,
        "rows": CHANGED,
        "results": {name: name for name in RESULTS},
        "passed": {"@number": "number"},
        **changed,
    }
    return RetractingRanking(keys=keys, n=n, **given)


class Stored(StoredGroup):
    """A group, with what a step of it emits."""

    def step(self, *parts: pa.RecordBatch, elements: bool = False) -> list[Row]:
        out = StepOutputs()
        self.group.advance_processing_time(0, out)
        for number, part in enumerate(parts):
            self.group.rows(part, out)
            if elements:
                self._element(number, out)
        before = len(out.batches)
        self.group.finish(out, idle=False)
        assert not elements or len(out.batches) == before  # an element follows what it has changed
        return [row for _, batch in out.batches for row in batch.to_pylist()]

    def emit(self, rows: list[Row]) -> list[pa.RecordBatch]:
        """What a changelog emits for rows."""
        out = StepOutputs()
        self.group.advance_processing_time(0, out)
        if rows:
            self.group.rows(pa.RecordBatch.from_pylist(rows, schema=ROWS), out)
        return [batch for _, batch in out.batches]

    def _element(self, number: int, out: StepOutputs) -> None:
        match number % 3:
            case 0:
                self.group.advance_watermark(number, out)
            case 1:
                self.group.attributes(RecordAttributes(backlog=True), out)
            case _:
                self.group.status(WatermarkStatus(idle=True), out)


@dataclass
class Oracle:
    """Keeps the last row of each key, and sorts those of a group again."""

    config: RetractingRanking
    rows: dict[Any, Row] = field(default_factory=dict)

    def step(self, rows: list[Row]) -> None:
        for row in rows:
            self.rows.pop((row["id"], row["part"]), None)
            if not row["gone"]:
                self.rows[row["id"], row["part"]] = row

    def table(self) -> Table:
        groups = defaultdict(list)
        for row in self.rows.values():
            groups[tuple(row[name] for name in self.config.keys)].append(row)
        return {
            (group, rank): {name: row[name] for name in RESULTS}
            for group, rows in groups.items()
            for rank, row in enumerate(self.ordered(rows)[: self.config.n], 1)
        }

    def ordered(self, rows: list[Row]) -> list[Row]:
        ((_, descending),) = self.config.order
        found = sorted(rows, key=lambda row: [(row[name] is not None, row[name]) for name in ("id", "part")])
        return sorted(found, key=lambda row: size_of(row["price"]), reverse=descending)


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[list[Row], str]]:
    """Steps of rows, and what becomes of their worker."""
    row = st.fixed_dictionaries({
        "id": st.sampled_from([None, "a", "b", "c", "é"]),
        "part": st.sampled_from([None, 0, 1]),
        "shop": st.sampled_from([None, "x", "y"]),
        "price": st.sampled_from([None, math.nan, -math.inf, 0.0, 1.0, 2.0]),
        "note": st.sampled_from([None, [], ["n"]]),
        "gone": st.sampled_from([False, False, None, True]),
    })  # fmt: skip
    fate = st.sampled_from(["delta", "delta", "snapshot", "restart", "former worker"])
    steps = draw(st.lists(st.tuples(st.lists(row, max_size=8), fate), max_size=12))
    number = iter(range(1_000))
    return [([{**each, "number": next(number)} for each in rows], fate) for rows, fate in steps]


def apply(table: Table, emitted: list[Row], keys: tuple[str, ...]) -> None:
    """Change a table of the results as a reader does; each row must change it."""
    for row in emitted:
        place = tuple(row[name] for name in keys), row[RANK]
        values = {name: row[name] for name in RESULTS}
        if row[DELETED]:
            assert not any(values.values())
            del table[place]  # it was there
        else:
            assert repr(values) != repr(table.get(place))
            table[place] = values


def run(
    history: list[tuple[list[Row], str]],
    config: RetractingRanking,
    *,
    pieces: int = 1,
    elements: bool = False,
) -> tuple[Stored, Stored, Table]:
    """The changelog and the ranking over a history, compared after each step."""
    changes, ranks, oracle = Stored(changelog()), Stored(config), Oracle(config)
    table: Table = {}
    for rows, fate in history:
        parts = [rows[start::pieces] for start in range(pieces)] if pieces > 1 else [rows]
        changed = []
        for part in parts:
            changed += changes.emit(part)
            oracle.step(part)
        changes.store(fate)
        emitted = ranks.step(*changed, elements=elements)
        ranks.store(fate)
        places = [(*(row[name] for name in config.keys), row[RANK]) for row in emitted]
        assert elements or len(places) == len({*places})
        apply(table, emitted, config.keys)
        assert repr(sorted(table.items(), key=str)) == repr(sorted(oracle.table().items(), key=str))
    return changes, ranks, table


KEYS = st.sampled_from([(), ("shop",), ("id",), ("shop", "id"), ("id", "part")])
CONFIGS = st.builds(
    lambda keys, n, descending: ranking(n, *keys, descending=descending),
    KEYS, st.integers(1, 4), st.booleans(),
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(histories(), CONFIGS, st.integers(1, 3), st.booleans())
def test_ranks_are_those_of_the_last_rows(
    history: Any, config: RetractingRanking, pieces: int, elements: bool
) -> None:
    """Changed ranks are emitted, each once between two elements, and deletions, whatever is stored."""
    run(history, config, pieces=pieces, elements=elements)


@pytest.fixture
def without_margin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each group has as few rows in order as it may, and is compacted at once; rows are not collected."""
    monkeypatch.setattr(ranking_of_changelog, "_ROWS_AT_ONCE", 1)
    monkeypatch.setattr(ordered_groups.OrderedGroups, "_target_size", lambda self, _: self._n)
    monkeypatch.setattr(ordered_groups, "_LEAST_GARBAGE", 1)


@pytest.mark.usefixtures("without_margin")
@settings(max_examples=120, deadline=None)
@given(histories(), CONFIGS, st.integers(1, 2))
def test_the_next_rows_are_found_among_the_others(
    history: Any, config: RetractingRanking, pieces: int
) -> None:
    """As often as a ranked row is taken back and none is known to be the next one."""
    run(history, config, pieces=pieces)


@settings(max_examples=25, deadline=None)
@given(histories(), histories(), st.data())
def test_the_table_does_not_depend_on_batches(first: Any, second: Any, data: st.DataObject) -> None:
    """Nor does the remaining state."""
    rows = [row for step, _ in (*first, *second) for row in step]
    cuts = sorted(data.draw(st.sets(st.integers(0, len(rows)), max_size=6)) | {0, len(rows)})
    _, together, table = run([(rows, "delta")], ranking(2, "shop"))
    _, apart, same = run([(rows[a:b], "delta") for a, b in pairwise(cuts)], ranking(2, "shop"))
    assert repr(sorted(table.items(), key=str)) == repr(sorted(same.items(), key=str))
    assert contents(together) == contents(apart)


def contents(stored: Stored) -> list[str]:
    """The rows of a group, as they are written."""
    schemas = StoredSchemas(pa.schema([ROWS.field(name) for name in stored.config.keys]), pa.schema([]))
    (found,) = read_content(stored.config.layout, {}, [*stored.group.snapshot()], schemas)
    return sorted(found.texts())


@settings(max_examples=40, deadline=None)
@given(histories(), st.integers(1, 2), st.integers(1, 2))
def test_ranks_of_ranks_are_those_of_the_last_rows(history: Any, shops: int, ranks: int) -> None:
    """What vanishes from the first ranking is taken back by the next one, which has a row for each rank."""
    first, oracle = ranking(shops, "shop"), Oracle(ranking(ranks, "shop"))
    changes, places, again, best = map(Stored, (changelog(), first, changelog(), oracle.config))
    rows_so_far = Oracle(first)
    table: Table = {}
    for rows, fate in history:
        rows_so_far.step(rows)
        ranked = places.step(*changes.emit(rows))
        of_ranks = [
            {"id": row["shop"], "part": row[RANK], "shop": str(row[RANK]), "price": row["price"],
             "note": row["note"], "gone": row[DELETED], "number": 0}
            for row in ranked
        ]  # fmt: skip
        apply(table, best.step(*again.emit(of_ranks)), ("shop",))
        for each in (changes, places, again, best):
            each.store(fate)
        oracle.rows = {
            (*shop, rank): {"id": shop[0], "part": rank, "shop": str(rank), **row}
            for (shop, rank), row in rows_so_far.table().items()
        }
        assert repr(sorted(table.items(), key=str)) == repr(sorted(oracle.table().items(), key=str))


@settings(max_examples=25, deadline=None)
@given(histories(), KEYS)
def test_state_can_be_distributed_anew(history: Any, keys: tuple[str, ...]) -> None:
    """What is read of all pieces and written again is the same state, without rows that were removed."""
    _, ranks, _ = run([(rows, "delta") for rows, _ in history], ranking(2, *keys))
    schemas = StoredSchemas(pa.schema([ROWS.field(name) for name in keys]), pa.schema([]))
    (found,) = read_content(ranks.config.layout, ranks.header or {}, ranks.pieces, schemas)
    again = Stored(ranks.config)
    again.group.restore({}, found.encode(np.arange(found.keys.num_rows)))
    assert contents(again) == contents(ranks) == sorted(found.texts())


def change(id_: int, shop: str, price: float, sign: int = 1, number: int | None = None) -> Row:
    return {
        "id": str(id_), "part": 0, "shop": shop, "price": price, CHANGE: sign,
        "number": id_ if number is None else number,
    }  # fmt: skip


def batch(*rows: Row) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=CHANGED)


def test_state_can_be_inspected() -> None:
    """The number of rows of each group; nothing of groups without rows."""
    stored = Stored(ranking(1, "shop"))
    stored.step(batch(change(0, "x", 1.0), change(1, "x", 2.0), change(2, "y", 1.0)))
    stored.store("delta")
    stored.step(batch(change(2, "y", 1.0, -1)))
    stored.store("delta")
    found = _keys(StateManifest(layout=stored.config.layout, key_groups=1), stored.pieces) or ()
    assert [(each.key, each.states) for each in found] == [({"shop": "x"}, {"rows": 2})]
    assert not stored.group._groups._groups.keys() - {"x"}


def test_a_delta_has_only_the_rows_that_changed() -> None:
    """Not all rows of their group; a removed one has only its key."""
    stored = Stored(ranking(2, "shop"))
    stored.step(batch(*(change(number, "x", float(number)) for number in range(1_000))))
    stored.store("delta")
    stored.step(batch(change(7, "x", 7.0, -1), change(8, "x", 8.0, -1), change(8, "x", 9.5)))
    stored.store("delta")
    stored.step()
    stored.store("delta")
    first, second = stored.pieces
    assert len(second) < len(first) / 20


def test_what_did_not_change_is_not_emitted() -> None:
    """A ranked row that is replaced by an equal one, and rows without a rank."""
    stored = Stored(ranking(2, "shop"))
    assert len(stored.step(batch(*(change(number, "x", float(number)) for number in range(5))))) == 2
    assert stored.step(batch(change(4, "x", 4.0, -1), change(4, "x", 4.0, number=9))) == []
    assert stored.step(batch(change(0, "x", 0.0, -1), change(1, "x", 1.0, -1), change(1, "x", 2.5))) == []
    assert stored.step(batch(change(8, "x", 9.0), change(8, "x", 9.0, -1))) == []


def test_the_last_row_of_a_group_passes() -> None:
    """Passed columns are those of the last row of the group in the step, also where a rank vanishes."""
    stored = Stored(ranking(3, "shop"))
    parts = [change(0, "x", 1.0), change(1, "y", 5.0)], [change(2, "x", 2.0), change(3, "y", 0.5)]
    first = stored.step(*(batch(*part) for part in parts))
    assert [(row["shop"], row[RANK], row["@number"]) for row in first] == [
        ("x", 1, 2), ("x", 2, 2), ("y", 1, 3), ("y", 2, 3),
    ]  # fmt: skip
    found = stored.step(batch(change(2, "x", 2.0, -1, number=7)))
    assert [(row[RANK], row["price"], row[DELETED], row["@number"]) for row in found] == [
        (1, 1.0, False, 7), (2, None, True, 7),
    ]  # fmt: skip


def test_only_rank_and_group_may_be_read() -> None:
    """Then a rank does not change when another row has it."""
    stored = Stored(ranking(2, "shop", results={}, passed={}))
    assert stored.step(batch(change(0, "x", 1.0))) == [{"shop": "x", RANK: 1, DELETED: False}]
    assert stored.step(batch(change(1, "x", 2.0))) == [{"shop": "x", RANK: 2, DELETED: False}]
    stored.store("restart")
    assert stored.step(batch(change(1, "x", 2.0, -1))) == [{"shop": "x", RANK: 2, DELETED: True}]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.string(), [None, "", "a", "é"]),
        (pa.binary(), [None, b"", b"\x00", b"\xff"]),
        (pa.bool_(), [None, False, True]),
        (pa.decimal128(9, 2), [None, Decimal("-1.00"), Decimal("0.10")]),
        (pa.float64(), [None, -math.inf, 0.0, math.inf, math.nan]),
        (pa.struct([("a", pa.int8()), ("b", pa.string())]), [
            None, {"a": None, "b": "z"}, {"a": 1, "b": None}, {"a": 1, "b": "x"}, {"a": 2, "b": "a"},
        ]),
        (pa.null(), [None]),
    ],
)  # fmt: skip
def test_values_are_in_the_order_of_spark(kind: pa.DataType, values: list[Any]) -> None:
    """Null is the smallest, not-a-number the largest, a struct is compared by field; sorted or selected."""
    places = np.random.default_rng(3).permutation(len(values))
    column = pa.array([values[place] for place in places], kind)
    tie = pa.array(np.zeros(len(values), np.int64))
    for descending in (False, True):
        expected = np.argsort(places)[:: -1 if descending else 1].tolist()
        assert sort_rows([(tie, False), (column, descending)]).tolist() == expected
        assert find_first([(tie, True), (column, descending)], 2).tolist() == expected[:2]
