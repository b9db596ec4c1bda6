"""A key group of running aggregates: a window without end for each key, whose result leaves at each change.

The rows of a call are added together, so a key that they change is emitted once, with its last result. With a
time to live, a key is forgotten that long after its last record, in processing time, and begins anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from flowcore.elements import MIN_TIMESTAMP_MS
from flowcore.keyed import segments
from flowcore.keyed.columns import take_rows
from flowcore.keyed.content import NEWEST, TOUCHED, read_expired_ms
from flowcore.keyed.key_index import Ints, factorize_keys, to_python_keys
from flowcore.keyed.operator import StepOutputs
from flowcore.keyed.output_columns import RESULTS
from flowcore.windows.columnar.accumulators import Accumulator, AccumulatorTable
from flowcore.windows.columnar.group import ColumnarConfig, ColumnarGroup
from flowcore.windows.window import ALL_TIME, saturated

__all__ = ["RunningGroup"]

_RECORDS = Accumulator("count", None)
"""None are left of a key that has expired."""
_BEGAN, _TOUCHED = Accumulator("min", "@began_ms"), Accumulator("max", TOUCHED)
"""The processing time of the first record, and of the last."""
_NEWEST = Accumulator("max", NEWEST)
"""The latest event time of a record, `MIN_TIMESTAMP_MS` if none has one."""
_TIMES = (_BEGAN, _TOUCHED, _NEWEST)
_KEYS_PER_PIECE = 1 << 16
_LEAST_GARBAGE = 1 << 12
_FIRING_BITS = 31
_MAX_FIRING = (1 << _FIRING_BITS) - 1


class RunningGroup(ColumnarGroup):
    """A key group of running aggregates."""

    def __init__(self, context: ColumnarConfig) -> None:
        super().__init__(context)
        self._ttl_ms = context.config.ttl_ms
        self._table = AccumulatorTable((*self._accumulators, *_TIMES))
        self._now_ms = MIN_TIMESTAMP_MS
        self._expired_ms = MIN_TIMESTAMP_MS
        """Keys whose last record came until then have expired, by the times to live so far."""

    @property
    def wake_ms(self) -> int | None:
        """When the next key expires."""
        if self._ttl_ms is None:
            return None
        values = self._table.values()
        (live,) = np.nonzero(values[_RECORDS])
        if not len(live):
            return None
        return int(values[_TOUCHED][live].min()) + self._ttl_ms

    def advance_processing_time(self, processing_time_ms: int, out: StepOutputs) -> None:
        self._now_ms = max(self._now_ms, processing_time_ms)
        if self._ttl_ms is not None:
            self._expired_ms = max(self._expired_ms, self._now_ms - self._ttl_ms)
            self._expire()

    def advance_watermark(self, watermark_ms: int, out: StepOutputs) -> None:
        """Results leave at once, so that watermarks change nothing."""

    @np.errstate(invalid="ignore", over="ignore")  # not-a-number and wrapped sums are valid results
    def rows(self, rows: pa.RecordBatch, out: StepOutputs) -> None:
        columns = [rows.column(name) for name in self._context.keys]
        codes = factorize_keys(columns, rows.num_rows)
        columns = take_rows(columns, codes.first)
        changed = self._table.positions(to_python_keys(columns, len(codes.first)), columns)
        positions = changed[codes.codes]
        for each in self._accumulators:
            self._table.combine(each, positions, each.values_of(rows))
        times_ms = rows.column(self._context.timestamp).fill_null(MIN_TIMESTAMP_MS)
        self._table.combine(_NEWEST, positions, times_ms.to_numpy())
        self._table.combine(_BEGAN, changed, self._now_ms)
        self._table.combine(_TOUCHED, changed, self._now_ms)
        if len(changed):
            self._emit(columns, changed, out)

    def header(self) -> Mapping[str, Any]:
        """Processing time, which keys have expired and, for readers of the state, the time to live."""
        return {"now_ms": self._now_ms, "expired_ms": self._expired_ms, "ttl_ms": self._ttl_ms}

    def delta(self) -> bytes | None:
        """The keys that have changed since the last delta."""
        changed = self._live(self._table.take_changed())
        delta = self._encode(changed) if len(changed) else None
        self._compact()
        return delta

    def snapshot(self) -> Iterator[bytes]:
        self._table.take_changed()
        live = self._live(np.arange(len(self._table)))
        for start in range(0, len(live), _KEYS_PER_PIECE):
            yield self._encode(live[start : start + _KEYS_PER_PIECE])

    def restore(self, header: Mapping[str, Any], pieces: Iterator[bytes]) -> None:
        """The row of a key in a piece replaces the earlier one.

        That a key has expired is not in the pieces. It depends on the time to live of then, not of now.
        """
        for piece in pieces:
            for _, table in segments.decode(piece):
                columns = [table.column(f"key{place}") for place in range(len(self._context.keys))]
                values = {
                    each: table.column(_name(each)).to_numpy() for each in (*self._accumulators, *_TIMES)
                }
                self._table.restore(columns, values, table.num_rows)
        self._now_ms = max(self._now_ms, header["now_ms"])
        self._expired_ms = max(self._expired_ms, read_expired_ms(header))
        self._expire()
        self._compact()

    def _live(self, positions: Ints) -> Ints:
        """Those of some positions whose key has not expired."""
        return positions[self._table.values(positions)[_RECORDS] > 0]

    def _expire(self) -> None:
        if self._expired_ms == MIN_TIMESTAMP_MS:  # no key ever had a time to live
            return
        values = self._table.values()
        (expired,) = np.nonzero((values[_TOUCHED] <= self._expired_ms) & (values[_RECORDS] > 0))
        self._table.reset(expired)

    def _compact(self) -> None:
        """Forget the keys that have expired when they are more than the others."""
        if self._ttl_ms is None:
            return
        live = self._live(np.arange(len(self._table)))
        if len(self._table) - len(live) > max(len(live), _LEAST_GARBAGE):
            self._table.retain(live)

    def _emit(self, keys: list[pa.Array[Any]], positions: Ints, out: StepOutputs) -> None:
        """Emit the results of keys, each with the number of its records as that of its firing.

        The bits of that number which a firing has no place for are the ordinal. A key that returns after its
        expiry has other record ids, by the time of its first record.
        """
        values, count = self._table.values(positions), len(positions)
        newest_ms, end_ms = values[_NEWEST], saturated(ALL_TIME.end_ms)
        records = values[_RECORDS]
        windows: list[pa.Array[Any]] = [
            pa.array(values[_BEGAN]),
            pa.array(np.full(count, end_ms)),
            pa.array(newest_ms, mask=newest_ms == MIN_TIMESTAMP_MS),
            pa.array((records & _MAX_FIRING).astype(np.int32)),
            pa.array(np.zeros(count, np.bool_)),
            pa.array((records >> _FIRING_BITS).astype(np.int32)),
        ]
        columns = [*keys, *self._aggregates.results(values).values(), *windows]
        out.rows(RESULTS, pa.record_batch(columns, schema=self._schema))

    def _encode(self, positions: Ints) -> bytes:
        columns = {f"key{place}": column for place, column in enumerate(self._table.keys(positions))}
        values = self._table.values(positions).items()
        columns |= {_name(each): pa.array(column) for each, column in values}
        return segments.encode({"running": pa.record_batch(columns)})


def _name(accumulator: Accumulator) -> str:
    """The column of an accumulator in the state."""
    return accumulator.column or "" if accumulator in _TIMES else accumulator.name
