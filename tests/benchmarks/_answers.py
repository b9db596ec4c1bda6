"""Comparison of results with those that DuckDB computes from the same records."""

from __future__ import annotations

import duckdb

__all__ = ["count_differences"]


def count_differences(database: duckdb.DuckDBPyConnection, expected: str, found: str) -> int:
    """How many rows one query has and the other has not, each copy of a row counted.

    Args:
        expected: SQL of the right rows.
        found: SQL of the rows to check, with the same columns.
    """
    only = f"(({expected}) EXCEPT ALL ({found})) UNION ALL (({found}) EXCEPT ALL ({expected}))"
    ((different,),) = database.execute(f"SELECT count(*) FROM ({only})").fetchall()  # noqa: S608 - our own SQL
    return int(different)
