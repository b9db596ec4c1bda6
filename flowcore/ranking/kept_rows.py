"""Rows that are added at the end and read by position, without copying all of them at each addition."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from flowcore.keyed.columns import concat_batches
from flowcore.keyed.key_index import Ints

__all__ = ["KeptRows"]


class KeptRows:
    """Rows with positions, which stay until `renew`.

    Args:
        schema: The columns of a row.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self.renew(pa.RecordBatch.from_pylist([], schema=schema))

    def __len__(self) -> int:
        return self._length

    def renew(self, rows: pa.RecordBatch) -> None:
        """Replace all rows; their positions begin at 0."""
        self._parts, self._length = [rows], rows.num_rows

    def add(self, rows: pa.RecordBatch) -> int:
        """Add rows; returns the position of the first one."""
        start = self._length
        if not rows.num_rows:
            return start
        self._length += rows.num_rows
        self._parts.append(rows)
        # A part is at least twice as long as the next one, so a row is copied a logarithmic number of times.
        while len(self._parts) > 1 and self._parts[-2].num_rows < 2 * self._parts[-1].num_rows:
            last = self._parts.pop()
            self._parts[-1] = concat_batches([self._parts[-1], last])
        return start

    def take(self, positions: Ints, names: Sequence[str] | None = None) -> pa.RecordBatch:
        """The rows at some positions, in this order; ``names`` are the columns, if not all of them."""
        columns = self._schema.names if names is None else [*names]
        parts = [part.select(columns) for part in self._parts]
        if len(parts) == 1:
            return parts[0].take(positions)
        ends = np.cumsum([part.num_rows for part in parts])
        part_of = np.searchsorted(ends, positions, side="right")
        taken, places = [parts[0].slice(0, 0)], [np.empty(0, np.int64)]
        for number, part in enumerate(parts):
            (mine,) = np.nonzero(part_of == number)
            if len(mine):
                taken.append(part.take(positions[mine] - (ends[number] - part.num_rows)))
                places.append(mine)
        return concat_batches(taken).take(np.argsort(np.concatenate(places), kind="stable"))
