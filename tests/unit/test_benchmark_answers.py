"""Differences between results and DuckDB's are counted."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pytest

from flowcore.errors import RunError
from pipelines.auctions import verify
from tests.benchmarks._answers import count_differences
from tests.benchmarks.held_state import COUNTS, check_counts
from tests.benchmarks.join import check_join


@pytest.mark.parametrize(
    ("found", "different"),
    [
        ("FROM (VALUES (1), (2), (2)) t(n)", 0),
        ("FROM (VALUES (2), (1), (2)) t(n)", 0),
        ("FROM (VALUES (1), (2)) t(n)", 1),
        ("FROM (VALUES (1), (2), (2), (2)) t(n)", 1),
        ("FROM (VALUES (1), (2), (3)) t(n)", 2),
        ("SELECT 1 AS n WHERE false", 3),
    ],
)
def test_missing_wrong_and_repeated_rows_count(found: str, different: int) -> None:
    """Both directions count, and each copy for itself; order does not."""
    with duckdb.connect() as database:
        assert count_differences(database, "FROM (VALUES (1), (2), (2)) t(n)", found) == different


def test_copy_of_a_bid_is_refused_where_delivery_is_exactly_once() -> None:
    """At least once, a repeated task may write it again."""
    enriched = pa.Table.from_pylist([{"bid_id": 1, "auction_id": 7, "price": 2.0}], schema=verify.ENRICHED)
    highest = pa.Table.from_pylist([{"auction_id": 7, "highest": 2.0}], schema=verify.HIGHEST)
    bid, price = b'{"bid_id":1,"auction_id":7,"price":2.0}', b'{"auction_id":7,"highest":2.0}'

    for once in (False, True):
        check_join((enriched, highest), [bid], [price], once=once)
    check_join((enriched, highest), [bid, bid], [price], once=False)
    with pytest.raises(RunError, match="duplicates=1"):
        check_join((enriched, highest), [bid, bid], [price], once=True)
    with pytest.raises(RunError, match="missing=1"):
        check_join((enriched, highest), [], [price], once=False)


@pytest.mark.parametrize(
    "rows",
    [[(0, 2), (1, 2)], [(0, 2), (1, 2), (2, 1)], [(0, 2), (1, 2), (1, 2)], [(0, 2), (1, 2), (3, 2)]],
    ids=["missing", "wrong", "repeated", "other"],
)
def test_each_held_key_is_demanded_once_with_its_count(rows: list[tuple[int, int]]) -> None:
    """As many rows as keys may be the wrong rows."""

    def table(rows: list[tuple[int, int]]) -> pa.Table:
        return pa.table(dict(zip(COUNTS.names, map(list, zip(*rows, strict=True)), strict=True)), COUNTS)

    check_counts(table([(2, 2), (0, 2), (1, 2)]), 3)
    with pytest.raises(RunError, match="3 keys were held"):
        check_counts(table(rows), 3)
