"""Differences between results and DuckDB's are counted."""

from __future__ import annotations

import duckdb
import pytest

from tests.benchmarks._answers import count_differences


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
