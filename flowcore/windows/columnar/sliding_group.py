"""Aligned windows by column: tumbling and sliding windows whose aggregates are folded with NumPy.

Records that count are folded into panes, a window that becomes complete is made of its panes, and records
that come later make it emit again, each one, with running values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from flowcore.elements import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from flowcore.keyed import segments
from flowcore.keyed.columns import KeyColumns, concat_batches, take_rows
from flowcore.keyed.key_index import Ints, factorize_keys, first_rows, python_keys
from flowcore.keyed.operator import StepOutputs
from flowcore.keyed.output_columns import RESULTS
from flowcore.windows.columnar.accumulator_table import AccumulatorTable
from flowcore.windows.columnar.accumulators import Accumulator, AccumulatorColumns
from flowcore.windows.columnar.firing_counts import FiringCounts
from flowcore.windows.columnar.group import ColumnarGroup, Folded
from flowcore.windows.columnar.pane_grid import EVERY_WINDOW, PaneGrid
from flowcore.windows.columnar.results import ResultWriter

__all__ = ["SlidingGroup"]

_ROWS_PER_PIECE = 1 << 16


class SlidingGroup(ColumnarGroup):
    """A key group of aligned windows.

    Args:
        of: What the windows do.
        grid: Their panes.
    """

    def __init__(self, of: Folded, grid: PaneGrid) -> None:
        super().__init__(of)
        self._grid = grid
        self._folding = of.folding
        self._fields: tuple[Accumulator, ...] = self._folding.fields
        self._results = of.outputs[RESULTS]
        self._watermark_ms = MIN_TIMESTAMP_MS
        self._complete, self._ended = self._grid.complete_by(MIN_TIMESTAMP_MS), self._end(MIN_TIMESTAMP_MS)
        self._panes: dict[int, AccumulatorTable] = {}
        self._refirings = FiringCounts()

    @np.errstate(invalid="ignore", over="ignore")  # not-a-number and wrapped sums are results like others
    def rows(self, rows: pa.RecordBatch, out: StepOutputs) -> None:
        """Fold records into their panes."""
        times_ms = self._times(rows)
        panes = self._grid.panes(times_ms)
        ended = self._grid.below(panes, self._grid.panes_within(self._ended))
        if ended.any():
            self._too_late(rows.filter(pa.array(ended)), times_ms[ended] <= self._late_ms, out)
            rows, panes = rows.filter(pa.array(~ended)), panes[~ended]
        if not rows.num_rows:
            return
        again = self._grid.below(panes, self._grid.panes_reaching(self._complete))
        if again.any():
            self._emit_again(rows.filter(pa.array(again)), panes[again], out)
        self._fold(rows, panes)

    @np.errstate(invalid="ignore", over="ignore")
    def advance_watermark(self, watermark_ms: int, out: StepOutputs) -> None:
        """Complete windows emit, and forget what is not needed any more."""
        complete, self._complete = self._complete, self._grid.complete_by(watermark_ms)
        emission = ResultWriter(self._results, self._folding, out)
        for window in self._windows_with_records(complete, self._complete):
            parts = [self._panes[pane] for pane in self._existing(window)]
            keys, kept, count = self._together(parts)
            emission.first(self._grid.window(window), keys, kept, count)
        emission.close()
        self._forget(watermark_ms)

    def header(self) -> Mapping[str, Any]:
        """How far event time has come, and, for who reads it alone, the first pane that is not forgotten."""
        return {"watermark_ms": self._watermark_ms, "first_pane": self._grid.panes_within(self._ended)}

    def delta(self) -> bytes | None:
        """The slots that have changed, of panes that are still there."""
        changed = []
        for pane, table in self._panes.items():
            slots = table.touched()
            if len(slots):
                changed.append(self._written(pane, table, slots))
        tables = {"panes": concat_batches(changed)} if changed else {}
        tables |= self._refirings.changed()
        return segments.encode(tables) if tables else None

    def snapshot(self) -> Iterator[bytes]:
        """All panes."""
        for pane, table in self._panes.items():
            table.touched()
            for start in range(0, len(table), _ROWS_PER_PIECE):
                slots = np.arange(start, min(start + _ROWS_PER_PIECE, len(table)))
                yield segments.encode({"panes": self._written(pane, table, slots)})
        self._refirings.changed()
        tables = self._refirings.everything()
        if tables:
            yield segments.encode(tables)

    def restore(self, header: Mapping[str, Any], pieces: Iterator[bytes]) -> None:
        """Take what was written."""
        self._forget(header.get("watermark_ms", MIN_TIMESTAMP_MS))
        self._complete = self._grid.complete_by(self._watermark_ms)
        for piece in pieces:
            for name, table in segments.decode(piece):
                if name == "panes":
                    self._take(table)
                else:
                    self._refirings.take(name, table, self._ended)

    @property
    def _late_ms(self) -> int:
        """Up to this time records are late."""
        if self._watermark_ms == MAX_TIMESTAMP_MS:
            return MAX_TIMESTAMP_MS
        return self._watermark_ms - self._of.config.allowed_lateness_ms

    def _end(self, watermark_ms: int) -> int:
        """The last window that has ended."""
        if watermark_ms == MAX_TIMESTAMP_MS:
            return EVERY_WINDOW
        return self._grid.complete_by(watermark_ms - self._of.config.allowed_lateness_ms)

    def _fold(self, rows: pa.RecordBatch, panes: Ints) -> None:
        columns = [rows.column(name) for name in self._of.keys]
        keys = factorize_keys(columns, rows.num_rows)
        numbers, found = pd.factorize(panes)
        codes, first = keys.codes, keys.first
        if len(found) > 1:
            codes, pairs = pd.factorize(codes * len(found) + numbers)
            first = first_rows(codes, len(pairs))
        of_pane = numbers[first]
        slots = np.empty(len(first), np.int64)
        for number, pane in enumerate(found.tolist()):
            which = np.flatnonzero(of_pane == number) if len(found) > 1 else np.arange(len(first))
            mine = take_rows(columns, first[which])
            table = self._panes.setdefault(pane, AccumulatorTable(self._fields))
            slots[which] = table.slots(python_keys(mine, len(which)), mine)
        where = slots[codes]
        values = {field: field.of(rows) for field in self._fields}
        record_panes = numbers if len(found) > 1 else None
        for number, pane in enumerate(found.tolist()):
            mine_only = slice(None) if record_panes is None else record_panes == number
            for field, each in values.items():
                self._panes[pane].combine(field, where[mine_only], each[mine_only])

    def _emit_again(self, rows: pa.RecordBatch, panes: Ints, out: StepOutputs) -> None:
        """Each record makes every complete window that it is in emit, the earliest first."""
        numbers, found = pd.factorize(panes)
        spans = [self._grid.windows_of(pane) for pane in found.tolist()]
        lows = np.array([max(first, self._ended + 1) for first, _ in spans], np.int64)
        highs = np.array([min(last, self._complete) for _, last in spans], np.int64)
        counts = (highs - lows + 1)[numbers]
        record = np.repeat(np.arange(rows.num_rows), counts)
        if not len(record):
            return
        step = np.arange(len(record)) - np.repeat(np.cumsum(counts) - counts, counts)
        window = lows[numbers][record] + step
        columns = [rows.column(name) for name in self._of.keys]
        keys = factorize_keys(columns, rows.num_rows)
        which, windows = pd.factorize(window)
        groups, pairs = pd.factorize(keys.codes[record] * len(windows) + which)
        first = first_rows(groups, len(pairs))
        of_window = which[first]
        before: AccumulatorColumns = {
            field: np.full(len(pairs), field.nothing, field.dtype) for field in self._fields
        }
        firings = np.zeros(len(pairs), np.int64)
        times = pd.Series(groups).groupby(groups, sort=False).cumcount().to_numpy() + 1
        last = np.bincount(groups)
        for number, each in enumerate(windows.tolist()):
            mine = np.flatnonzero(of_window == number)
            key_columns = take_rows(columns, record[first[mine]])
            key_values = python_keys(key_columns, len(mine))
            for pane in self._existing(each):
                slots = self._panes[pane].find(key_values)
                known = slots >= 0
                kept = self._panes[pane].values(slots[known])
                for field in self._fields:
                    before[field][mine[known]] = field.combine(before[field][mine[known]], kept[field])
            emitted = (before[self._fields[0]][mine] > 0).astype(np.int64)
            firings[mine] = self._refirings.after(each, key_values, key_columns, emitted, last[mine])
        kept = {}
        for field in self._fields:
            running = field.running(field.of(rows)[record], groups)
            kept[field] = field.combine(before[field][groups], running)
        ResultWriter(self._results, self._folding, out).put(
            [self._grid.window(each) for each in windows.tolist()], which,
            take_rows(columns, record), kept,
            firings=(firings[groups] + times).astype(np.int32), is_late=True,
        )  # fmt: skip

    def _windows_with_records(self, after: int, through: int) -> list[int]:
        """The windows with records, after one and through another."""
        found: set[int] = set()
        for pane in self._panes:
            first, last = self._grid.windows_of(pane)
            found.update(range(max(first, after + 1), min(last, through) + 1))
        return sorted(found)

    def _existing(self, window: int) -> list[int]:
        panes = self._grid.panes_of(window)
        if len(panes) <= len(self._panes):
            return [pane for pane in panes if pane in self._panes]
        return [pane for pane in self._panes if pane in panes]

    def _together(self, parts: list[AccumulatorTable]) -> tuple[KeyColumns, AccumulatorColumns, int]:
        """What some panes keep, as one."""
        if len(parts) == 1:
            return parts[0].keys(), parts[0].values(), len(parts[0])
        columns = [pa.concat_arrays(each) for each in zip(*(part.keys() for part in parts), strict=True)]
        keys = factorize_keys(columns, sum(map(len, parts)))
        values = [part.values() for part in parts]
        kept: AccumulatorColumns = {}
        for field in self._fields:
            kept[field] = np.full(len(keys.first), field.nothing, field.dtype)
            field.combine.at(kept[field], keys.codes, np.concatenate([each[field] for each in values]))
        return take_rows(columns, keys.first), kept, len(keys.first)

    def _forget(self, watermark_ms: int) -> None:
        self._watermark_ms, self._ended = watermark_ms, self._end(watermark_ms)
        bound = self._grid.panes_within(self._ended)
        for pane in [pane for pane in self._panes if pane < bound]:
            del self._panes[pane]
        self._refirings.forget(self._ended)

    def _written(self, pane: int, table: AccumulatorTable, slots: Ints) -> pa.RecordBatch:
        columns = {"pane": pa.array(np.full(len(slots), pane))}
        columns |= {f"key{number}": each for number, each in enumerate(table.keys(slots))}
        columns |= {field.name: pa.array(values) for field, values in table.values(slots).items()}
        return pa.record_batch(columns)

    def _take(self, written: pa.RecordBatch) -> None:
        panes = written.column("pane").to_numpy()
        bounds = [0, *(np.flatnonzero(np.diff(panes)) + 1).tolist(), len(panes)]
        bound = self._grid.panes_within(self._ended)
        for start, end in pairwise(bounds):
            pane = int(panes[start])
            if pane < bound:
                continue
            part = written.slice(start, end - start)
            keys = [part.column(f"key{number}") for number in range(len(self._of.keys))]
            values = {field: part.column(field.name).to_numpy() for field in self._fields}
            self._panes.setdefault(pane, AccumulatorTable(self._fields)).restore(keys, values, end - start)
