"""The latest row of each key, in a log of Arrow batches.

New rows are appended, and the log is compacted when it is twice as long as necessary. So the cost of a row
does not depend on the number of buffered rows, and no key is handled on its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from flowcore.keyed.columns import concat_batches
from flowcore.keyed.key_index import factorize_keys

__all__ = ["LatestRecords"]

_UNCOMPACTED_ROWS = 1 << 16
_ROWS_PER_PROBE = 1 << 12
_PIECE_BYTES = 4 << 20


class LatestRecords:
    """The latest row of each key; without key columns, of one key for all."""

    __slots__ = ("_distinct", "_keys", "_log", "_logged", "_schema")

    def __init__(self, keys: Sequence[str], schema: pa.Schema) -> None:
        self._keys = keys
        self._schema = schema
        self._log: list[pa.RecordBatch] = []
        self._logged = self._distinct = 0

    def __len__(self) -> int:
        """Number of rows in the log; later rows may replace some of them."""
        return self._logged

    def add(self, rows: pa.RecordBatch) -> None:
        """Append rows, in order of arrival."""
        if rows.num_rows:
            self._log.append(rows)
            self._logged += rows.num_rows
        if self._logged > 2 * self._distinct + _UNCOMPACTED_ROWS:
            self.rows()

    def clear(self) -> None:
        """Remove all rows."""
        self._log, self._logged, self._distinct = [], 0, 0

    def rows(self) -> pa.RecordBatch:
        """The last row of each key, in order of arrival."""
        if self._logged > self._distinct:
            self._log = [self._compact(concat_batches(self._log))]
            self._logged = self._distinct = self._log[0].num_rows
        return self._log[0] if self._log else pa.RecordBatch.from_pylist([], self._schema)

    def pieces(self) -> Iterator[pa.RecordBatch]:
        """The same rows, some MiB at a time."""
        rows = self.rows()
        many = max(1, _PIECE_BYTES * rows.num_rows // max(rows.nbytes, 1))
        yield from (rows.slice(begin, many) for begin in range(0, rows.num_rows, many))

    def reaches(self, most: int) -> bool:
        """Whether there are this many keys."""
        return self._logged >= most and self.rows().num_rows >= most

    def room(self, rows: pa.RecordBatch, most: int) -> int:
        """How many of some rows can be added, at least one, until there are this many keys.

        Args:
            rows: At least one row.
            most: How many keys there may be, > 0. If there are as many already, since a buffer with more room
                was restored, one can be added.
        """
        if self._logged + rows.num_rows < most:
            return rows.num_rows
        present = self.rows()
        if present.num_rows >= most:
            return 1
        rows = rows.slice(0, max(_ROWS_PER_PROBE, 2 * most))
        both = concat_batches([present, rows])
        first = factorize_keys(self._key_columns(both), both.num_rows).first
        new = np.sort(first[first >= present.num_rows]) - present.num_rows
        missing = most - present.num_rows
        return int(new[missing - 1]) + 1 if missing <= len(new) else rows.num_rows

    def _compact(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        codes = factorize_keys(self._key_columns(rows), rows.num_rows).codes
        last = np.empty(codes.max(initial=-1) + 1, np.int64)
        last[codes] = np.arange(len(codes))
        return rows if len(last) == len(codes) else rows.take(pa.array(np.sort(last)))

    def _key_columns(self, rows: pa.RecordBatch) -> list[pa.Array[Any]]:
        return [rows.column(name) for name in self._keys]
