"""A window function of the queries for the most and for the highest: the largest rows, ties included."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["keep_largest"]

Rows = Sequence[Mapping[str, Any]]


def keep_largest(column: str) -> Callable[[object, Rows], Rows]:
    """Return a process function of windows that emits all rows with the largest value of a column.

    >>> keep_largest("num")(None, [{"num": 1}, {"num": 3}, {"num": 3}])
    [{'num': 3}, {'num': 3}]
    """

    def emit(_window: object, rows: Rows) -> Rows:
        largest = max([row[column] for row in rows])
        return [row for row in rows if row[column] == largest]

    return emit
