"""Ranking by key group agrees with sorting all rows of a key, over restarts and any batches."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowcore.errors import NoTimestampError
from flowcore.keyed import segments
from flowcore.keyed.content import StoredSchemas, read_content
from flowcore.keyed.inspection import _keys
from flowcore.keyed.manifest import StateManifest
from flowcore.keyed.operator import StepOutputs
from flowcore.ranking.kept_rows import KeptRows
from flowcore.ranking.keyed import RANK, Ranking, is_sortable
from tests.unit.keyed.stored_group import StoredGroup

Row = tuple[str | None, float | None, str]
"""Key, price and label; a row also has a number, in order of arrival."""
ROWS = pa.schema([("key", pa.string()), ("price", pa.float64()), ("label", pa.string()), ("n", pa.int64())])


def ranking(n: int, *, descending: bool = True, newest_first: bool = False, **changed: Any) -> Ranking:
    given = {
        "order": (("price", descending), ("label", False)),
        "passed": {"user": "key", "n": "n"},
        "timestamp": None,
        **changed,
    }
    return Ranking(keys=("key",), n=n, newest_first=newest_first, rows=ROWS, **given)


def size_of(value: float | None) -> tuple[bool, bool, float]:
    """How Spark compares a number: null is the smallest, not-a-number the largest."""
    if value is None:
        return False, False, 0.0
    return True, math.isnan(value), 0.0 if math.isnan(value) else value


@dataclass
class Oracle:
    """Keeps all rows of each key, and sorts them again after each batch."""

    config: Ranking
    now_ms: int = 0
    rows: dict[str | None, list[tuple[Row, int]]] = field(default_factory=dict)
    touched_ms: dict[str | None, int] = field(default_factory=dict)

    def advance(self, now_ms: int) -> None:
        self.now_ms = now_ms
        if self.config.ttl_ms is not None:
            for key in [key for key, at in self.touched_ms.items() if at + self.config.ttl_ms <= now_ms]:
                del self.touched_ms[key], self.rows[key]

    def take(self, rows: list[tuple[Row, int]]) -> list[tuple[str | None, int, int]]:
        """Key, number and rank of what is emitted, in any order."""
        before = {(key, rank): n for key in self.rows for rank, n in enumerate(self.ranks(key), 1)}
        for row, n in rows:
            self.rows.setdefault(row[0], []).append((row, n))
            self.touched_ms[row[0]] = self.now_ms
        after = {(key, rank): n for key in self.rows for rank, n in enumerate(self.ranks(key), 1)}
        return [(key, n, rank) for (key, rank), n in after.items() if before.get((key, rank)) != n]

    def ranks(self, key: str | None) -> list[int]:
        _, (_, descending), *_ = None, *self.config.order
        found = sorted(self.rows[key], key=lambda each: -each[1] if self.config.newest_first else each[1])
        found.sort(key=lambda each: each[0][2])
        found.sort(key=lambda each: size_of(each[0][1]), reverse=descending)
        return [n for _, n in found][: self.config.n]


class Stored(StoredGroup):
    """A group, with what a step of it emits."""

    def step(self, rows: list[tuple[Row, int]], now_ms: int) -> list[tuple[str | None, int, int]]:
        out = StepOutputs()
        self.group.advance_processing_time(now_ms, out)
        self.group.rows(whole(rows), out)
        return [tuple(row.values()) for _, batch in out.batches for row in batch.to_pylist()]  # type: ignore[misc]


def whole(rows: list[tuple[Row, int]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [dict(zip(ROWS.names, (*row, n), strict=True)) for row, n in rows], schema=ROWS
    )


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[list[Row], int, str]]:
    """Batches of rows, how far the clock is after each, and what becomes of its worker."""
    price = st.sampled_from([None, math.nan, -1.0, 0.0, 1.0, 2.0, 3.0])
    row = st.tuples(st.sampled_from([None, "a", "b"]), price, st.sampled_from("xy"))
    fate = st.sampled_from(["delta", "delta", "snapshot", "restart", "former worker"])
    return draw(st.lists(st.tuples(st.lists(row, max_size=6), st.integers(0, 9), fate), max_size=12))


@settings(max_examples=150, deadline=None)
@given(
    histories(), st.integers(1, 4), st.booleans(), st.booleans(), st.sampled_from([None, 4, 12])
)  # fmt: skip
def test_ranks_are_as_the_oracle_says(
    history: Any, n: int, descending: bool, newest_first: bool, ttl_ms: int | None
) -> None:
    """Exactly the ranks with another row are emitted, each once, whatever is stored between batches."""
    config = ranking(n, descending=descending, newest_first=newest_first, ttl_ms=ttl_ms)
    oracle, stored = Oracle(config), Stored(config)
    processing_time_ms, number = 0, 0
    for rows, advance_ms, fate in history:
        processing_time_ms += advance_ms
        oracle.advance(processing_time_ms)
        numbered = [(row, number + place) for place, row in enumerate(rows)]
        number += len(rows)
        expected = oracle.take(numbered)
        found = stored.step(numbered, processing_time_ms)
        stored.store(fate)
        assert sorted(found, key=str) == sorted(expected, key=str)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([1.0, 2.0, 3.0]), st.just("x")), max_size=40),
    st.lists(st.integers(0, 40), max_size=6),
    st.integers(1, 3),
)
def test_the_last_row_of_each_rank_does_not_depend_on_batches(rows: Any, cuts: list[int], n: int) -> None:
    """The stored state does not depend on batches either."""
    numbered = [(row, place) for place, row in enumerate(rows)]
    bounds = sorted({0, *(min(cut, len(rows)) for cut in cuts), len(rows)})
    together, apart = Stored(ranking(n)), Stored(ranking(n))
    latest = {(key, rank): number for key, number, rank in together.step(numbered, 0)}
    found: dict[Any, int] = {}
    for start, end in pairwise(bounds):
        found |= {(key, rank): number for key, number, rank in apart.step(numbered[start:end], 0)}
    assert found == latest
    states = [sorted(table_of(each), key=str) for each in (together, apart)]
    assert states[0] == states[1]


def table_of(stored: Stored) -> list[dict[str, Any]]:
    return [
        row
        for piece in stored.group.snapshot()
        for _, table in segments.decode(piece)
        for row in table.to_pylist()
    ]


def test_rows_that_lost_their_rank_are_forgotten() -> None:
    """State is as large as the ranks, however many rows have come."""
    stored = Stored(ranking(2))
    for start in range(0, 30_000, 10_000):
        stored.step([(("a", float(start + place), "x"), start + place) for place in range(10_000)], 0)
    assert [row["n"] for row in table_of(stored)] == [29_999, 29_998]
    for price in range(30_000, 30_000 + 9_000, 100):
        stored.step([(("a", float(price + each), "x"), price + each) for each in range(100)], 0)
    assert len(stored.group._rows) < 8_000
    assert [row["n"] for row in table_of(stored)] == [38_999, 38_998]


def test_a_row_without_timestamp_has_no_place_in_time() -> None:
    """The error says what is not known."""
    config = ranking(1, order=(("n", True),), timestamp="n", newest_first=True)
    group = config.open()
    with pytest.raises(NoTimestampError, match=r"with \{'key': 'a'\} has no timestamp: .* which"):
        group.rows(pa.RecordBatch.from_pylist([{"key": "a"}], schema=ROWS), StepOutputs())


def test_state_can_be_inspected() -> None:
    """The rows of each key by rank, without those that expired."""
    stored = Stored(ranking(2, ttl_ms=10))
    stored.step([(("a", 1.0, "x"), 0), (("a", 2.0, "x"), 1), (("b", 3.0, "x"), 2)], 0)
    stored.store("delta")
    stored.step([(("a", 5.0, "x"), 3)], 5)
    stored.store("delta")
    stored.step([], 12)
    stored.store("delta")
    manifest = StateManifest(layout=stored.config.layout, key_groups=1)
    manifest.header = stored.header
    found = _keys(manifest, stored.pieces)
    assert found is not None
    assert [(each.key, [row["n"] for row in each.states["rows"]]) for each in found] == [
        ({"key": "a"}, [3, 1])
    ]


@settings(max_examples=60, deadline=None)
@given(histories(), st.integers(1, 3), st.sampled_from([None, 4]))
def test_state_can_be_distributed_anew(history: Any, n: int, ttl_ms: int | None) -> None:
    """What is read of all pieces and written again is the same state, without keys that expired."""
    stored = Stored(ranking(n, ttl_ms=ttl_ms))
    processing_time_ms, number = 0, 0
    for rows, advance_ms, _ in history:
        processing_time_ms += advance_ms
        stored.step([(row, number + place) for place, row in enumerate(rows)], processing_time_ms)
        number += len(rows)
        stored.store("delta")
    if not stored.pieces:
        return
    schemas = StoredSchemas(pa.schema([ROWS.field("key")]), pa.schema([]))
    (found,) = read_content(stored.config.layout, stored.header, stored.pieces, schemas)
    again = Stored(stored.config)
    again.group.restore(stored.header, found.encode(np.arange(found.keys.num_rows)))
    assert sorted(map(str, table_of(again))) == sorted(map(str, table_of(stored)))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [(pa.string(), True), (pa.bool_(), True), (pa.decimal128(9, 2), True), (pa.list_(pa.int8()), False),
     (pa.struct([("a", pa.int8())]), False), (pa.null(), False)],
)  # fmt: skip
def test_an_order_is_of_single_values(kind: pa.DataType, expected: bool) -> None:
    """Arrow sorts no nested values."""
    assert is_sortable(kind) is expected
    if expected:
        schema = pa.schema([("key", pa.string()), ("n", kind)])
        config = Ranking(
            keys=("key",),
            n=1,
            order=(("n", True),),
            newest_first=False,
            timestamp=None,
            rows=schema,
            passed={"n": "n"},
        )
        out = StepOutputs()
        config.open().rows(
            pa.RecordBatch.from_arrays([pa.array(["a"]), pa.nulls(1, kind)], schema=schema), out
        )
        assert out.batches[0][1].column(RANK).to_pylist() == [1]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 9), max_size=20), st.data())
def test_kept_rows_stay_at_their_positions(sizes: list[int], data: st.DataObject) -> None:
    """However they are merged."""
    schema = pa.schema([("n", pa.int64())])
    rows, count = KeptRows(schema), 0
    for size in sizes:
        assert rows.add(pa.record_batch({"n": pa.array(range(count, count + size), pa.int64())})) == count
        count += size
    assert len(rows._parts) <= max(count, 1).bit_length() + 1
    wanted = data.draw(st.lists(st.integers(0, count - 1), max_size=30)) if count else []
    assert rows.take(np.array(wanted, np.int64)).column("n").to_pylist() == wanted
    assert rows.take(np.array(wanted, np.int64), ["n"]).column("n").to_pylist() == wanted
    assert len(rows) == count
