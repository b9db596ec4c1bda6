"""The first records of a window are those of a sorted list, however they are added."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cmp_to_key
from typing import Any

import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flowcore.windows import WindowAggregate
from flowcore.windows.contents import Accumulating
from flowcore.windows.quiet_records import find_ranked
from flowcore.windows.top_rows import EachRow, TopRows

SCHEMA = pa.schema({"price": pa.float64(), "name": pa.string(), "place": pa.int64()})
prices = st.sampled_from([None, -1.5, 0.0, -0.0, 2.0, math.inf, math.nan, -math.nan])  # two of its forms
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
rankings = st.builds(
    TopRows, order=orders, n=st.integers(1, 4), rank=st.just("rank"),
    ties=st.booleans(),
)  # fmt: skip

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


@example(
    TopRows(order=(("price", False),), n=1, rank="rank", ties=True),
    [{"price": price, "name": None, "place": place} for place, price in enumerate((0.0, -0.0))], 0,
)  # fmt: skip
@settings(max_examples=300, deadline=None)
@given(rankings, given_rows, st.integers(0, 12))
def test_records_may_be_added_in_parts(ranking: TopRows, rows: list[Row], cut: int) -> None:
    """As columns, and in windows that merge later."""
    first, second = rows[:cut], rows[cut:]
    columns = pa.RecordBatch.from_pylist(list(second), schema=SCHEMA)
    by_arrow = ranking.merge(_added(ranking, first), find_ranked(ranking, columns))
    merged = ranking.merge(_added(ranking, first), _added(ranking, second))

    for found in (by_arrow, merged):
        assert _shown(ranking, found) == _expected(ranking, rows)


def test_many_equal_records_are_ranked_soon() -> None:
    """Each is compared with few others, and copied once."""
    ranking = TopRows(order=(("price", True),), n=1, rank="rank", ties=True)
    kept = _added(ranking, [{"price": 1.0, "place": place} for place in range(50_000)])

    assert ranking.result(kept)[-1] == {"price": 1.0, "place": 49_999, "rank": 1}
    assert len(ranking.add(kept, {"price": 2.0, "place": 0})) == 1


def test_state_of_another_ranking_is_another_state() -> None:
    """With more ranks than before, records would be missing."""
    layouts = {
        Accumulating(WindowAggregate(TopRows(order=order, n=n, rank="rank", ties=ties), EachRow())).layout
        for order in ((("price", True),), (("price", False),), (("name", True),))
        for n in (1, 2)
        for ties in (True, False)
    }

    assert len(layouts) == 12
