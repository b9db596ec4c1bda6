"""Latest records: a log of Arrow batches of which the last row of each key counts.

Rows are put behind the log, and the log is made smaller when it has grown to twice what counts in it. So a
row costs the same however many are held, and no key is looked at on its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from flowcore.keyed.columns import concat_batches
from flowcore.keyed.key_index import factorize_keys

__all__ = ["Latest"]

_LOOSE_ROWS = 1 << 16
_ROWS_PER_LOOK = 1 << 12
_PIECE_BYTES = 4 << 20


class Latest:
    """The latest row of each key.

    Args:
        keys: The key's columns; none for one key for all.
        schema: Of the rows.
    """

    __slots__ = ("_distinct", "_keys", "_log", "_logged", "_schema")

    def __init__(self, keys: Sequence[str], schema: pa.Schema) -> None:
        self._keys = keys
        self._schema = schema
        self._log: list[pa.RecordBatch] = []
        self._logged = self._distinct = 0

    def __len__(self) -> int:
        """How many rows the log has, some of which later ones may replace."""
        return self._logged

    def add(self, rows: pa.RecordBatch) -> None:
        """Take rows, in order of arrival."""
        if rows.num_rows:
            self._log.append(rows)
            self._logged += rows.num_rows
        if self._logged > 2 * self._distinct + _LOOSE_ROWS:
            self.rows()

    def clear(self) -> None:
        """Forget all of them."""
        self._log, self._logged, self._distinct = [], 0, 0

    def rows(self) -> pa.RecordBatch:
        """Of each key the last row, in the order of arrival."""
        if self._logged > self._distinct:
            self._log = [self._last(concat_batches(self._log))]
            self._logged = self._distinct = self._log[0].num_rows
        return self._log[0] if self._log else _none(self._schema)

    def pieces(self) -> Iterator[pa.RecordBatch]:
        """The same, some MiB at a time."""
        rows = self.rows()
        many = max(1, _PIECE_BYTES * rows.num_rows // max(rows.nbytes, 1))
        yield from (rows.slice(begin, many) for begin in range(0, rows.num_rows, many))

    def reaches(self, most: int) -> bool:
        """Whether it holds so many keys."""
        return self._logged >= most and self.rows().num_rows >= most

    def room(self, rows: pa.RecordBatch, most: int) -> int:
        """How many of some rows can be added, one at least, until it holds so many keys.

        Args:
            rows: What came; at least one.
            most: How many keys it may hold, > 0; it holds fewer now.
        """
        if self._logged + rows.num_rows < most:
            return rows.num_rows
        held = self.rows()
        rows = rows.slice(0, max(_ROWS_PER_LOOK, 2 * most))
        whole = concat_batches([held, rows])
        first = factorize_keys(self._columns(whole), whole.num_rows).first
        new = np.sort(first[first >= held.num_rows]) - held.num_rows
        missing = most - held.num_rows
        return int(new[missing - 1]) + 1 if missing <= len(new) else rows.num_rows

    def _last(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        codes = factorize_keys(self._columns(rows), rows.num_rows).codes
        last = np.empty(codes.max(initial=-1) + 1, np.int64)
        last[codes] = np.arange(len(codes))
        return rows if len(last) == len(codes) else rows.take(pa.array(np.sort(last)))

    def _columns(self, rows: pa.RecordBatch) -> list[pa.Array[Any]]:
        return [rows.column(name) for name in self._keys]


def _none(schema: pa.Schema) -> pa.RecordBatch:
    return pa.record_batch([pa.array([], field.type) for field in schema], schema=schema)
