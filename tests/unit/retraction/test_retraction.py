"""An aggregate over rows that replace each other agrees with one over the last rows, over any batches."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from flowcore.keyed.content import StoredSchemas, read_content
from flowcore.keyed.inspection import _keys
from flowcore.keyed.manifest import StateManifest
from flowcore.keyed.output_columns import DELETED
from flowcore.retraction.aggregates import RetractingAggregates
from flowcore.retraction.changelog import CHANGE
from flowcore.windows.built_in import BuiltIn
from tests.unit.retraction.stored_changes import (
    AGGREGATES,
    CHANGED,
    ROWS,
    Row,
    Stored,
    changelog,
    state_of,
    totals,
)


@dataclass
class Oracle:
    """Keeps the last row of each id, and aggregates all rows of a shop again after each step."""

    ttl_ms: int | None = None
    rows: dict[str, Row] = field(default_factory=dict)
    touched_ms: dict[str, int] = field(default_factory=dict)

    def step(self, rows: list[Row], processing_time_ms: int) -> None:
        if self.ttl_ms is not None:
            for key in [key for key, at in self.touched_ms.items() if at + self.ttl_ms <= processing_time_ms]:
                del self.rows[key], self.touched_ms[key]
        for row in rows:
            self.rows.pop(row["id"], None)
            self.touched_ms.pop(row["id"], None)
            if not row["gone"]:
                self.rows[row["id"]] = row
                self.touched_ms[row["id"]] = processing_time_ms

    def results(self, keys: tuple[str, ...]) -> dict[Any, Row]:
        groups: dict[Any, list[Row]] = {} if keys else {(): []}
        for row in self.rows.values():
            groups.setdefault(tuple(row[key] for key in keys), []).append(row)
        return {key: aggregate(rows) for key, rows in groups.items()}


def aggregate(rows: list[Row]) -> Row:
    """All aggregates of some rows, one value after the other."""
    found = {
        name: [row[name] for row in rows if row[name] is not None] for name in ("n", "price", "cost", "word")
    }
    numbers, costs, words = found["n"], found["cost"], found["word"]
    prices = [math.inf if price == math.inf else price for price in found["price"]]
    finite = [Fraction(price) for price in prices if math.isfinite(price)]
    odd = {price for price in prices if not math.isfinite(price) and price == price}  # noqa: PLR0124
    odd_sum = math.nan if len(odd) > 1 or any(map(math.isnan, prices)) else next(iter(odd), None)
    known = sorted({price + 0.0 for price in prices if price == price})  # noqa: PLR0124
    has_nan = any(map(math.isnan, prices))
    cents = Decimal("0.000001")
    return {
        "rows": len(rows),
        "numbers": len(numbers),
        "total": sum(numbers) if numbers else None,
        "mean": sum(numbers) / len(numbers) if numbers else None,
        "paid": None if not prices else odd_sum if odd_sum is not None else float(sum(finite)),
        "price": None if not prices else odd_sum if odd_sum is not None else float(sum(finite) / len(finite)),
        "least": None if not prices else known[0] if known else math.nan,
        "greatest": None if not prices else math.nan if has_nan else known[-1],
        "prices": len(known) + has_nan,
        "spent": sum(costs, Decimal("0.00")) if costs else None,
        "cost": (sum(costs) / len(costs)).quantize(cents, ROUND_HALF_UP) if costs else None,
        "first": min(words, default=None),
        "words": len(set(words)),
    }


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[list[Row], int, str]]:
    """Steps of rows, how far the clock is after each, and what becomes of its worker."""
    row = st.fixed_dictionaries({
        "id": st.sampled_from("abcd"),
        "shop": st.sampled_from([None, "x", "y"]),
        "n": st.sampled_from([None, -3, 0, 2, 7]),
        "price": st.sampled_from([None, math.nan, math.inf, -math.inf, -0.0, 0.0, 0.1, 1e300, -1e-300]),
        "cost": st.sampled_from([None, Decimal("-0.05"), Decimal("0.10"), Decimal("9999999.99")]),
        "word": st.sampled_from([None, "a", "b", "é"]),
        "gone": st.sampled_from([False, False, False, None, True]),
    })  # fmt: skip
    fate = st.sampled_from(["delta", "delta", "snapshot", "restart", "former worker"])
    return draw(st.lists(st.tuples(st.lists(row, max_size=5), st.integers(0, 9), fate), max_size=10))


def run(
    history: list[tuple[list[Row], int, str]],
    keys: tuple[str, ...],
    ttl_ms: int | None = None,
    ttls_ms: Iterator[int | None] | None = None,
) -> tuple[Stored, Stored, Oracle, dict[Any, Row]]:
    """Both operators over a history, compared after each step; what a table of the results has.

    With ``ttls_ms``, each restart is one with another time to live.
    """
    changes, groups, oracle = Stored(changelog(ttl_ms=ttl_ms)), Stored(totals(keys)), Oracle(ttl_ms)
    table: dict[Any, Row] = {}
    processing_time_ms = 0
    for rows, advance_ms, fate in history:
        processing_time_ms += advance_ms
        oracle.step(rows, processing_time_ms)
        changed = changes.step(pa.RecordBatch.from_pylist(rows, schema=ROWS), processing_time_ms)
        if ttls_ms is not None and fate == "restart":
            ttl_ms = oracle.ttl_ms = next(ttls_ms)
            changes.config = changelog(ttl_ms=ttl_ms)
        changes.store(fate)
        if ttls_ms is not None:
            changes.former = None  # it has the former time to live
        if ttl_ms is None and fate == "snapshot":
            oracle.touched_ms |= dict.fromkeys(
                oracle.touched_ms, processing_time_ms
            )  # the time of its last writing
        results = groups.step(changed, processing_time_ms).to_pylist()
        groups.store(fate)
        emitted = [tuple(row[key] for key in keys) for row in results]
        assert len({*emitted}) == len(emitted)
        for key, row in zip(emitted, results, strict=True):
            values = {name: row[name] for name in AGGREGATES}
            if row[DELETED]:
                del table[key]  # it was there
            else:
                assert repr(values) != repr(table.get(key)) or "nan" in repr(values)
                table[key] = values
        expected = oracle.results(keys)
        if not table:
            expected.pop((), None)  # without any row so far
        assert repr(sorted(table.items(), key=str)) == repr(sorted(expected.items(), key=str))
    return changes, groups, oracle, table


@settings(max_examples=50, deadline=None)
@given(
    histories(), st.sampled_from([("shop",), (), ("id",), ("shop", "word")]), st.sampled_from([None, 4, 12])
)
def test_results_are_those_of_the_last_rows(history: Any, keys: tuple[str, ...], ttl_ms: int | None) -> None:
    """Changed results are emitted, each once, and deletions, whatever is stored between steps."""
    run(history, keys, ttl_ms)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(histories(), min_size=2, max_size=2),
    st.lists(st.sampled_from([None, 4, 12, 40]), min_size=22, max_size=22),
)
def test_the_time_to_live_may_change(both: Any, ttls_ms: list[int | None]) -> None:
    """What has expired is not back with a longer time to live; with a shorter one, rows are retracted."""
    history = [(rows, at, "restart" if fate == "former worker" else fate) for rows, at, fate in chain(*both)]
    run(history, ("shop",), ttls_ms[0], iter(ttls_ms[1:]))


@settings(max_examples=25, deadline=None)
@given(st.lists(histories(), min_size=2, max_size=2).map(lambda both: both[0] + both[1]), st.data())
def test_the_table_does_not_depend_on_batches(history: Any, data: st.DataObject) -> None:
    """The remaining state does not depend on batches either."""
    rows = [row for step, _, _ in history for row in step]
    cuts = sorted(data.draw(st.sets(st.integers(0, len(rows)), max_size=6)) | {0, len(rows)})
    parts = [(rows[start:end], 0, "delta") for start, end in pairwise(cuts)]
    _, together, _, table = run([(rows, 0, "delta")], ("shop",))
    _, apart, _, same = run(parts, ("shop",))
    assert repr(sorted(table.items(), key=str)) == repr(sorted(same.items(), key=str))
    assert state_of(together) == state_of(apart)


@settings(max_examples=25, deadline=None)
@given(histories(), st.sampled_from([("shop",), ()]))
def test_state_can_be_distributed_anew(history: Any, keys: tuple[str, ...]) -> None:
    """What is read of all pieces and written again is the same state."""
    changes, groups, _, _ = run([(rows, at, "delta") for rows, at, _ in history], keys)
    for stored, names in ((changes, ("id",)), (groups, keys)):
        if not stored.pieces:
            continue
        schemas = StoredSchemas(pa.schema([ROWS.field(name) for name in names]), pa.schema([]))
        (found,) = read_content(stored.config.layout, stored.header, stored.pieces, schemas)
        again = Stored(stored.config)
        again.group.restore(stored.header, found.encode(np.arange(found.keys.num_rows)))
        assert state_of(again) == state_of(stored)


def test_state_can_be_inspected() -> None:
    """The rows, the sums, and how many values are counted; nothing of groups without rows."""
    stored = Stored(totals(("shop",), "total", "first"))
    rows = [{"shop": "x", "n": 4, "word": "a", CHANGE: 1}, {"shop": "y", "n": 1, "word": "b", CHANGE: 1}]
    stored.step(pa.RecordBatch.from_pylist([*rows, {**rows[0], "n": 5, "word": "c"}], schema=CHANGED))
    stored.store("delta")
    stored.step(pa.RecordBatch.from_pylist([{**row, CHANGE: -1} for row in rows], schema=CHANGED))
    stored.store("delta")
    manifest = StateManifest(layout=stored.config.layout, key_groups=1)
    manifest.header = stored.header
    (found,) = _keys(manifest, stored.pieces) or ()
    assert found.key == {"shop": "x"}
    assert found.states == {"rows": 1, "n:n": 1, "sum:n": "5", "n:word": 1, "values1": 1}
    whole = Stored(totals((), "total"))
    for row in rows:
        whole.step(pa.RecordBatch.from_pylist([row], schema=CHANGED))
        whole.store("delta")
    (found,) = _keys(StateManifest(layout=whole.config.layout, key_groups=1), whole.pieces) or ()
    assert (found.key, found.states) == ({}, {"rows": 2, "n:n": 2, "sum:n": "5"})


def test_keys_that_are_deleted_are_not_shown() -> None:
    """Although their deletion is in the state until the next snapshot."""
    stored = Stored(changelog())
    for rows in ([("a", False), ("b", None)], [("a", True), ("c", True)]):
        found = [{"id": key, "gone": gone} for key, gone in rows]
        stored.step(pa.RecordBatch.from_pylist(found, schema=ROWS))
        stored.store("delta")
    manifest = StateManifest(layout=stored.config.layout, key_groups=1)
    manifest.header = stored.header
    (shown,) = _keys(manifest, stored.pieces) or ()
    assert shown.key == {"id": "b"}
    assert len(shown.states["rows"]) == 1


def test_sums_are_exact_and_wrap_around() -> None:
    """What was added and taken back leaves no trace in a sum of floating-point numbers."""
    config = totals((), "paid", "total", "mean")
    stored = Stored(config)
    rows = [{"n": 2**63 - 1, "price": 0.1, CHANGE: 1}, {"n": 1, "price": 1e300, CHANGE: 1}]
    (both,) = stored.step(pa.RecordBatch.from_pylist(rows, schema=CHANGED)).to_pylist()
    assert (both["total"], both["mean"]) == (-(2**63), 2.0**62)
    stored.store("restart")
    (row,) = stored.step(pa.RecordBatch.from_pylist([{**rows[1], CHANGE: -1}], schema=CHANGED)).to_pylist()
    assert (row["paid"], row["total"]) == (0.1, 2**63 - 1)
    alone = Stored(totals((), "paid"))
    sums = []
    for price, change in ((1.5, 1), (math.inf, 1), (-math.inf, 1), (math.inf, -1), (-math.inf, -1)):
        alone.store("restart")
        found = alone.step(pa.RecordBatch.from_pylist([{"price": price, CHANGE: change}], schema=CHANGED))
        sums += [row["paid"] for row in found.to_pylist()]
    assert repr(sums) == "[1.5, inf, nan, -inf, 1.5]"


def test_the_last_row_of_a_group_passes() -> None:
    """Columns that are passed are those of the last row in the step."""
    stored = Stored(totals(("shop",), "rows"))
    rows = [{"id": str(number), "shop": "xyx"[number], CHANGE: 1} for number in range(3)]
    found = stored.step(pa.RecordBatch.from_pylist(rows, schema=CHANGED)).to_pylist()
    assert {row["shop"]: row["@id"] for row in found} == {"x": "2", "y": "1"}


def test_groups_that_are_gone_take_no_memory() -> None:
    """Deleted keys of the changelog take none once the deletion is written."""
    changes, groups = Stored(changelog()), Stored(totals(("id",), "least"))
    rows = [{"id": str(number), "price": 1.0, "gone": False} for number in range(100)]
    for gone in (False, True):
        batch = pa.RecordBatch.from_pylist([{**row, "gone": gone} for row in rows], schema=ROWS)
        groups.step(changes.step(batch))
        groups.store("delta")
        changes.store("delta")
    assert not groups.group._groups
    assert not changes.group._places
    groups.store("restart")
    changes.store("restart")
    assert not groups.group._groups
    assert not changes.group._places
    assert [*groups.group.snapshot()] == []


def test_a_worker_that_is_back_knows_the_results_of_another_one() -> None:
    """A result that it emitted before is emitted again where another worker has emitted a newer one."""
    stored = Stored(totals(("shop",), "rows"))
    row = pa.RecordBatch.from_pylist([{"shop": "x", CHANGE: 1}], schema=CHANGED)
    back = pa.RecordBatch.from_pylist([{"shop": "x", CHANGE: -1}], schema=CHANGED)
    found = []
    for rows, fate in ((row, "restart"), (row, "former worker"), (back, "delta")):
        found += [each["rows"] for each in stored.step(rows).to_pylist()]
        stored.store(fate)
    assert found == [1, 2, 1]


def test_values_of_any_type_are_compared() -> None:
    """Times and dates, as Arrow gives them back."""
    kinds = {
        "at": pa.timestamp("us", tz="UTC"),
        "day": pa.date32(),
        "plain": pa.timestamp("us"),
        "flag": pa.bool_(),
    }
    at = dt.datetime(2024, 2, 29, 12, 0, 0, 7, tzinfo=dt.UTC)
    values = {"at": at, "day": at.date(), "plain": at.replace(tzinfo=None), "flag": True}
    schema = pa.schema([*kinds.items(), (CHANGE, pa.int8())])
    config = RetractingAggregates(
        keys=("day",), aggregates=tuple((f"max_{name}", BuiltIn("max", (name,))) for name in kinds),
        change=CHANGE, rows=schema, passed={},
    )  # fmt: skip
    stored = Stored(config)
    (row,) = stored.step(pa.RecordBatch.from_pylist([{**values, CHANGE: 1}], schema=schema)).to_pylist()
    assert row == {
        "day": values["day"],
        **{f"max_{name}": each for name, each in values.items()},
        DELETED: False,
    }
    stored.store("restart")
    (row,) = stored.step(pa.RecordBatch.from_pylist([{**values, CHANGE: -1}], schema=schema)).to_pylist()
    assert row[DELETED]
