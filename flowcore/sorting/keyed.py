"""Sorting by event time, as an operator on key groups: records wait for the watermark.

A record is kept until the watermark reaches its timestamp. After that no earlier record can arrive. All
records that a watermark reaches are emitted before it, in order of their timestamps, and of equal timestamps
in order of arrival. So no record is late downstream. A record up to the watermark is late: its place in the
order has passed.

The order holds for the whole key group, and so for each of its keys.

Times are integer milliseconds since the epoch, UTC.

Source: Flink's ``RowTimeSortOperator``, which drops records up to the last one that it has emitted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from flowcore.elements import MIN_TIMESTAMP_MS
from flowcore.keyed import segments
from flowcore.keyed.columns import concat_batches, timestamps_of
from flowcore.keyed.key_index import Ints, factorize_keys
from flowcore.keyed.operator import KeyGroup, KeyGroupOperator, StepOutputs
from flowcore.keyed.output_columns import LATE, RESULTS
from flowcore.sorting.waiting_rows import WaitingRows

__all__ = ["Sorting", "SortingGroup"]

_TABLE = "sorted"
_ID, _TIME = "@id", "@time_ms"
"""The first and the last column of a stored record; its key is in ``key0`` and so on."""
_ROWS_PER_PIECE = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Sorting(KeyGroupOperator):
    """Configuration.

    Attributes:
        keys: The key's columns. At least one.
        timestamp: The column of the records' timestamps, a 64-bit integer.
        rows: The columns of records.
        passed: The columns of a record that leaves in order.
        late: The columns of a late record, for `LATE`. None if late records are dropped.
    """

    keys: tuple[str, ...]
    timestamp: str
    rows: pa.Schema
    passed: tuple[str, ...]
    late: tuple[str, ...] | None = None
    memory_factor: ClassVar[int] = 3

    @property
    def layout(self) -> str:
        types, columns = (
            ", ".join(f"{name} {self.rows.field(name).type}" for name in names)
            for names in (self.keys, self.passed)
        )
        return f"sorted by {', '.join(self.keys)}: {types}; {columns}"

    @property
    def outputs(self) -> Mapping[str, pa.Schema]:
        return {
            name: pa.schema([self.rows.field(column) for column in columns])
            for name, columns in ((RESULTS, self.passed), (LATE, self.late or ()))
        }

    @property
    def stored(self) -> pa.Schema:
        """The columns of a stored record."""
        keys = ((f"key{place}", self.rows.field(name).type) for place, name in enumerate(self.keys))
        others = ((name, self.rows.field(name).type) for name in self.passed)
        return pa.schema([(_ID, pa.int64()), *keys, *others, (_TIME, pa.int64())])

    def open(self) -> SortingGroup:
        return SortingGroup(self)


class SortingGroup(KeyGroup):
    """A key group."""

    def __init__(self, config: Sorting) -> None:
        self._config = config
        self._schema = config.stored
        self._watermark_ms = MIN_TIMESTAMP_MS
        self._next_id = self._first_unsaved = 0
        self._waiting = WaitingRows(_TIME)
        """The records above the watermark; their ids are in order of arrival."""

    def rows(self, rows: pa.RecordBatch, out: StepOutputs) -> None:
        """Keep the records that are not late."""
        config, unknown = self._config, "its place in the order is not known"
        times_ms = timestamps_of(rows, config.timestamp, config.keys, unknown)
        late = times_ms <= self._watermark_ms
        if late.any():
            out.reject(LATE, rows, late, config.late)
            rows, times_ms = rows.filter(pa.array(~late)), times_ms[~late]
        if rows.num_rows:
            ids = np.arange(self._next_id, self._next_id + rows.num_rows)
            own = [rows.column(name) for name in (*config.keys, *config.passed)]
            self._waiting.add(
                pa.RecordBatch.from_arrays([pa.array(ids), *own, pa.array(times_ms)], schema=self._schema)
            )
            self._next_id += rows.num_rows

    def advance_watermark(self, watermark_ms: int, out: StepOutputs) -> None:
        """Emit the records up to the watermark, in order of time."""
        self._watermark_ms = watermark_ms
        due = self._waiting.take_due(watermark_ms)
        if due is not None:
            out.rows(RESULTS, due.select(list(self._config.passed)))

    def header(self) -> Mapping[str, Any]:
        """The watermark and the next id."""
        return {"watermark_ms": self._watermark_ms, "next_id": self._next_id}

    def delta(self) -> bytes | None:
        """The records since the last delta that are still kept."""
        first, self._first_unsaved = self._first_unsaved, self._next_id
        if first == self._next_id:
            return None
        unsaved = [(rows, rows.column(_ID).to_numpy() >= first) for rows in self._waiting.batches()]
        new = [rows.filter(pa.array(which)) for rows, which in unsaved if which.any()]
        return segments.encode({_TABLE: concat_batches(new)}) if new else None

    def snapshot(self) -> Iterator[bytes]:
        self._first_unsaved = self._next_id
        for rows in self._waiting.batches():
            for start in range(0, rows.num_rows, _ROWS_PER_PIECE):
                yield segments.encode({_TABLE: rows.slice(start, _ROWS_PER_PIECE)})

    def restore(self, header: Mapping[str, Any], pieces: Iterator[bytes]) -> None:
        self._watermark_ms = header["watermark_ms"]
        self._next_id = self._first_unsaved = header["next_id"]
        read = [table.cast(self._schema) for piece in pieces for _, table in segments.decode(piece)]
        known = [*self._waiting.batches(), *read]
        if not known:
            return
        rows = concat_batches(known)
        # A piece may be applied twice. If key groups were changed, records of different keys may have one id.
        names = [_ID, *(f"key{place}" for place in range(len(self._config.keys)))]
        first: Ints = factorize_keys([rows.column(name) for name in names], rows.num_rows).first
        rows = rows.take(np.sort(first))
        rows = rows.filter(pa.array(rows.column(_TIME).to_numpy() > self._watermark_ms))
        self._waiting = WaitingRows(_TIME)
        self._waiting.add(rows.take(np.argsort(rows.column(_ID).to_numpy(), kind="stable")))
