"""The order of rows by some of their columns, as Spark compares values.

Null is the smallest value, not-a-number the largest. A struct is compared field by field.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flowcore.keyed.key_index import Ints

__all__ = ["OrderColumn", "find_first", "sort_rows"]

OrderColumn = tuple["pa.Array[Any]", bool]
"""The values of some rows, and whether larger values come first."""
_SortKeys = list[tuple[str, Literal["ascending", "descending"]]]


def sort_rows(columns: Sequence[OrderColumn]) -> Ints:
    """The positions of rows in their order; equal rows stay in the order in which they are.

    >>> sort_rows([(pa.array([1.0, None, 2.0]), True)]).tolist()
    [2, 0, 1]
    """
    table, keys = _arrange(columns)
    found: Ints = pc.sort_indices(table, sort_keys=keys).to_numpy().astype(np.int64)
    return found


def find_first(columns: Sequence[OrderColumn], count: int) -> Ints:
    """The positions of the first rows in their order, of rows of which none are equal.

    This takes a time that is proportional to the number of rows, if the count is small.
    """
    table, keys = _arrange(columns)
    chosen = pc.call_function("select_k_unstable", [table], pc.SelectKOptions(count, sort_keys=keys))
    found: Ints = chosen.to_numpy().astype(np.int64)
    return found


def _arrange(columns: Sequence[OrderColumn]) -> tuple[pa.Table, _SortKeys]:
    """The columns of single values that Arrow sorts by, and the direction of each."""
    found = [each for column, descending in columns for each in _expand(column, descending)]
    table = pa.table({str(place): column for place, (column, _) in enumerate(found)})
    return table, [
        (str(place), "descending" if descending else "ascending")
        for place, (_, descending) in enumerate(found)
    ]


def _expand(column: pa.Array[Any], descending: bool) -> Iterator[OrderColumn]:
    if column.null_count:
        yield column.is_valid(), descending
    if isinstance(column, pa.StructArray):
        for field in column.flatten():
            yield from _expand(field, descending)
        return
    if pa.types.is_floating(column.type):
        yield pc.is_nan(column).fill_null(fill_value=False), descending
    if not pa.types.is_null(column.type):
        yield column, descending
