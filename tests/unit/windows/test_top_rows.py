"""The first records of a window are those of a sorted list, however they are added."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cmp_to_key
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowcore.windows import quiet_records
from flowcore.windows.quiet_records import rank_rows
from flowcore.windows.top_rows import TopRows

SCHEMA = pa.schema({"price": pa.float64(), "name": pa.string(), "place": pa.int64()})
prices = st.sampled_from([None, -1.5, 0.0, -0.0, 2.0, math.inf, math.nan])
names = st.sampled_from([None, "", "a", "\ue000", "\U00010000"])
given_rows = st.lists(st.tuples(prices, names), max_size=12).map(
    lambda pairs: [
        {"price": price, "name": name, "place": place} for place, (price, name) in enumerate(pairs)
    ]
)
orders = st.lists(
    st.tuples(st.sampled_from(["price", "name"]), st.booleans()), min_size=1, max_size=2,
    unique_by=lambda each: each[0],
).map(tuple)  # fmt: skip
rankings = st.builds(TopRows, order=orders, n=st.integers(1, 4), rank=st.just("rank"), ties=st.booleans())

Row = Mapping[str, Any]


def _spark_order(value: Any) -> tuple[Any, ...]:
    """How Spark compares a value; text by its bytes in UTF-8."""
    if value is None:
        return (0,)
    if isinstance(value, str):
        return (1, value.encode())
    return (1, 1, 0.0) if math.isnan(value) else (1, 0, value)


def _expected(ranking: TopRows, rows: list[Row]) -> list[tuple[int, int]]:
    """The place of arrival and the rank of each row that has one, in order."""

    def compare(one: Row, other: Row) -> int:
        for name, descending in ranking.order:
            mine, theirs = _spark_order(one[name]), _spark_order(other[name])
            if mine != theirs:
                return -1 if (mine < theirs) != descending else 1
        return 0

    found: list[tuple[int, int]] = []
    ordered = sorted(rows, key=cmp_to_key(compare))
    for place, row in enumerate(ordered):
        rank = place + 1
        if ranking.ties:
            rank = 1 + sum(compare(other, row) < 0 for other in rows)
        if rank <= ranking.n:
            found.append((row["place"], rank))
    return found


def _shown(ranking: TopRows, kept: Any) -> list[tuple[int, int]]:
    return [(row["place"], row["rank"]) for row in ranking.result(kept)]


def _added(ranking: TopRows, rows: list[Row]) -> Any:
    kept: Any = ranking.create()
    for row in rows:
        kept = ranking.add(kept, row)
    return kept


@settings(max_examples=300, deadline=None)
@given(rankings, given_rows)
def test_ranks_are_those_of_the_sorted_records(ranking: TopRows, rows: list[Row]) -> None:
    """And no record without a rank is kept."""
    kept = _added(ranking, rows)

    assert _shown(ranking, kept) == _expected(ranking, rows)
    assert len(kept) == len(_expected(ranking, rows))


@settings(max_examples=300, deadline=None)
@given(rankings, given_rows, st.integers(0, 12))
def test_records_may_be_added_in_parts(ranking: TopRows, rows: list[Row], cut: int) -> None:
    """As columns, by Arrow or in Python, and in windows that merge later."""
    first, second = rows[:cut], rows[cut:]
    kept = _added(ranking, first)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(quiet_records, "_FEW", 0)
        by_arrow = rank_rows(ranking, kept, pa.RecordBatch.from_pylist(list(second), schema=SCHEMA))
    in_python = rank_rows(ranking, kept, pa.RecordBatch.from_pylist(list(second), schema=SCHEMA))
    merged = ranking.merge(kept, _added(ranking, second))

    for found in (by_arrow, in_python, merged):
        assert _shown(ranking, found) == _expected(ranking, rows)
