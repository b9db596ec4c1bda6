"""A key group of tumbling and sliding windows.

Records are folded into panes. A complete window is computed from its panes. Each record that arrives later
makes the window emit again, with running values.
"""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from flowcore.elements import MIN_TIMESTAMP_MS
from flowcore.keyed import segments
from flowcore.keyed.columns import KeyColumns, concat_batches, take_rows
from flowcore.keyed.key_index import Ints, factorize_keys, find_first_rows, to_python_keys
from flowcore.keyed.operator import StepOutputs
from flowcore.windows.columnar.accumulators import Accumulator, AccumulatorColumns, AccumulatorTable
from flowcore.windows.columnar.group import ColumnarConfig, ColumnarGroup
from flowcore.windows.columnar.pane_grid import PaneGrid

__all__ = ["SlidingGroup"]

_ROWS_PER_PIECE = 1 << 16
_FIRINGS = Accumulator("max", "firings")


class SlidingGroup(ColumnarGroup):
    """A key group of tumbling or sliding windows; a tumbling window slides by its size.

    Keys with records that arrived after a window was complete have a number of firings, as long as the window
    is kept. All other keys with records in a complete window have fired once.
    """

    def __init__(self, context: ColumnarConfig, grid: PaneGrid) -> None:
        super().__init__(context)
        self._grid = grid
        self._complete, self._ended = map(grid.last_complete, (MIN_TIMESTAMP_MS, self._late_ms))
        self._panes: dict[int, AccumulatorTable] = {}
        self._firings: dict[int, AccumulatorTable] = {}

    @np.errstate(invalid="ignore", over="ignore")  # not-a-number and wrapped sums are valid results
    def rows(self, rows: pa.RecordBatch, out: StepOutputs) -> None:
        times_ms = self._times_of(rows)
        panes = self._grid.panes_at(times_ms)
        ended = panes < self._grid.first_pane_after(self._ended)
        if ended.any():
            self._reject(rows.filter(pa.array(ended)), times_ms[ended] <= self._late_ms, out)
            rows, panes = rows.filter(pa.array(~ended)), panes[~ended]
        if not rows.num_rows:
            return
        complete = panes < self._grid.panes_of(self._complete).stop
        if complete.any():
            self._emit_again(rows.filter(pa.array(complete)), panes[complete], out)
        self._fold(rows, panes)

    @np.errstate(invalid="ignore", over="ignore")
    def advance_watermark(self, watermark_ms: int, out: StepOutputs) -> None:
        """Emit the windows that are complete, and delete what has ended."""
        before, self._complete = self._complete, self._grid.last_complete(watermark_ms)
        writer = self._writer(out)
        for window in self._windows_with_records(before, self._complete):
            keys, values, count = self._combine([self._panes[pane] for pane in self._panes_of(window)])
            writer.add_first(self._grid.window(window), keys, values, count)
        writer.flush()
        self._watermark_ms = watermark_ms
        self._delete_ended()

    def header(self) -> Mapping[str, Any]:
        """The watermark, which windows have ended and, for readers of the state, the first pane kept."""
        first_pane = self._grid.first_pane_after(self._ended)
        return {"watermark_ms": self._watermark_ms, "ended_ms": self._late_ms, "first_pane": first_pane}

    def delta(self) -> bytes | None:
        """Write the keys that changed, of panes that are still kept."""
        tables = {}
        for name, kept in (("panes", self._panes), ("refirings", self._firings)):
            changed = [(number, table, table.take_changed()) for number, table in kept.items()]
            parts = [_encode(name, *each) for each in changed if len(each[-1])]
            if parts:
                tables[name] = concat_batches(parts)
        return segments.encode(tables) if tables else None

    def snapshot(self) -> Iterator[bytes]:
        for pane, table in self._panes.items():
            table.take_changed()
            for start in range(0, len(table), _ROWS_PER_PIECE):
                positions = np.arange(start, min(start + _ROWS_PER_PIECE, len(table)))
                yield segments.encode({"panes": _encode("panes", pane, table, positions)})
        parts = []
        for window, table in self._firings.items():
            table.take_changed()
            parts.append(_encode("refirings", window, table, np.arange(len(table))))
        if parts:
            yield segments.encode({"refirings": concat_batches(parts)})

    def restore(self, header: Mapping[str, Any], pieces: Iterator[bytes]) -> None:
        self._restore_times(header)
        self._delete_ended()
        self._complete = self._grid.last_complete(self._watermark_ms)
        for piece in pieces:
            for name, table in segments.decode(piece):
                self._decode(name, table)

    def _fold(self, rows: pa.RecordBatch, panes: Ints) -> None:
        columns = [rows.column(name) for name in self._context.keys]
        keys = factorize_keys(columns, rows.num_rows)
        numbers, distinct = pd.factorize(panes)
        codes, first = keys.codes, keys.first
        if len(distinct) > 1:
            codes, unique = pd.factorize(codes * len(distinct) + numbers)
            first = find_first_rows(codes, len(unique))
        pane_of_pair = numbers[first]
        positions = np.empty(len(first), np.int64)
        for number, pane in enumerate(distinct.tolist()):
            pairs = np.flatnonzero(pane_of_pair == number) if len(distinct) > 1 else np.arange(len(first))
            key_columns = take_rows(columns, first[pairs])
            table = self._panes.setdefault(pane, AccumulatorTable(self._accumulators))
            positions[pairs] = table.positions(to_python_keys(key_columns, len(pairs)), key_columns)
        row_positions = positions[codes]
        values = {each: each.values_of(rows) for each in self._accumulators}
        for number, pane in enumerate(distinct.tolist()):
            in_pane = slice(None) if len(distinct) == 1 else numbers == number
            for each, column in values.items():
                self._panes[pane].combine(each, row_positions[in_pane], column[in_pane])

    def _emit_again(self, rows: pa.RecordBatch, panes: Ints, out: StepOutputs) -> None:
        """Emit every complete window of each record once more, the earliest first."""
        numbers, distinct = pd.factorize(panes)
        spans = [self._grid.windows_of(pane) for pane in distinct.tolist()]
        lows = np.array([max(first, self._ended + 1) for first, _ in spans], np.int64)
        highs = np.array([min(last, self._complete) for _, last in spans], np.int64)
        counts = (highs - lows + 1)[numbers]
        record = np.repeat(np.arange(rows.num_rows), counts)
        if not len(record):
            return
        step = np.arange(len(record)) - np.repeat(np.cumsum(counts) - counts, counts)
        window = lows[numbers][record] + step
        columns = [rows.column(name) for name in self._context.keys]
        keys = factorize_keys(columns, rows.num_rows)
        which, windows = pd.factorize(window)
        groups, pairs = pd.factorize(keys.codes[record] * len(windows) + which)
        first = find_first_rows(groups, len(pairs))
        window_of_pair = which[first]
        before = {each: np.full(len(pairs), each.identity, each.dtype) for each in self._accumulators}
        firings = np.zeros(len(pairs), np.int64)
        times = pd.Series(groups).groupby(groups, sort=False).cumcount().to_numpy() + 1
        records_of_pair = np.bincount(groups)
        for number, each_window in enumerate(windows.tolist()):
            mine = np.flatnonzero(window_of_pair == number)
            key_columns = take_rows(columns, record[first[mine]])
            to_key_values = to_python_keys(key_columns, len(mine))
            self._read_window(each_window, to_key_values, mine, before)
            table = self._firings.setdefault(each_window, AccumulatorTable([_FIRINGS]))
            known = table.find(to_key_values) >= 0
            positions = table.positions(to_key_values, key_columns)
            fired = before[self._accumulators[0]][mine] > 0
            firings[mine] = np.where(known, table.values(positions)[_FIRINGS], fired)
            table.combine(_FIRINGS, positions, firings[mine] + records_of_pair[mine])
        values = {
            each: each.running(each.values_of(rows)[record], groups, before[each])
            for each in self._accumulators
        }
        self._writer(out).emit_windows(
            [self._grid.window(each) for each in windows.tolist()], which,
            take_rows(columns, record), values,
            firings=(firings[groups] + times).astype(np.int32), is_late=True,
        )  # fmt: skip

    def _read_window(self, window: int, keys: list[Any], positions: Ints, values: AccumulatorColumns) -> None:
        """Combine the accumulators of some keys in a window into the values at positions."""
        for pane in self._panes_of(window):
            found = self._panes[pane].find(keys)
            known = found >= 0
            kept = self._panes[pane].values(found[known])
            for each in self._accumulators:
                values[each][positions[known]] = each.combine(values[each][positions[known]], kept[each])

    def _windows_with_records(self, after: int, through: int) -> list[int]:
        """Return the windows with records, after one and up to another."""
        windows: set[int] = set()
        for pane in self._panes:
            first, last = self._grid.windows_of(pane)
            windows.update(range(max(first, after + 1), min(last, through) + 1))
        return sorted(windows)

    def _panes_of(self, window: int) -> list[int]:
        """Return the panes of a window that have records."""
        panes = self._grid.panes_of(window)
        if len(panes) <= len(self._panes):
            return [pane for pane in panes if pane in self._panes]
        return [pane for pane in self._panes if pane in panes]

    def _combine(self, tables: list[AccumulatorTable]) -> tuple[KeyColumns, AccumulatorColumns, int]:
        if len(tables) == 1:
            return tables[0].keys(), tables[0].values(), len(tables[0])
        columns = [pa.concat_arrays(each) for each in zip(*(table.keys() for table in tables), strict=True)]
        keys = factorize_keys(columns, sum(map(len, tables)))
        parts = [table.values() for table in tables]
        values: AccumulatorColumns = {}
        for each in self._accumulators:
            values[each] = np.full(len(keys.first), each.identity, each.dtype)
            each.combine.at(values[each], keys.codes, np.concatenate([part[each] for part in parts]))
        return take_rows(columns, keys.first), values, len(keys.first)

    def _delete_ended(self) -> None:
        self._ended = self._grid.last_complete(self._late_ms)
        bound = self._grid.first_pane_after(self._ended)
        for pane in [pane for pane in self._panes if pane < bound]:
            del self._panes[pane]
        for window in [window for window in self._firings if window <= self._ended]:
            del self._firings[window]

    def _decode(self, name: str, written: pa.RecordBatch) -> None:
        panes = name == "panes"
        numbers = written.column(0).to_numpy()
        bounds = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
        first_kept = self._grid.first_pane_after(self._ended) if panes else self._ended + 1
        for start, end in pairwise(bounds):
            number = int(numbers[start])
            if number < first_kept:
                continue
            part = written.slice(start, end - start)
            keys = [part.column(f"key{place}") for place in range(len(self._context.keys))]
            if panes:
                values = {each: part.column(each.name).to_numpy() for each in self._accumulators}
                table = self._panes.setdefault(number, AccumulatorTable(self._accumulators))
                table.restore(keys, values, end - start)
            else:
                rows = factorize_keys(keys, end - start).first  # older versions may write a key repeatedly
                firings = part.column("firings").to_numpy()[rows]
                table = self._firings.setdefault(number, AccumulatorTable([_FIRINGS]))
                table.restore(take_rows(keys, rows), {_FIRINGS: firings}, len(rows))


def _encode(name: str, number: int, table: AccumulatorTable, positions: Ints) -> pa.RecordBatch:
    values = table.values(positions)
    columns = {"pane" if name == "panes" else "window": pa.array(np.full(len(positions), number))}
    if name == "refirings":
        columns["firings"] = pa.array(values.pop(_FIRINGS))
    columns |= {f"key{place}": each for place, each in enumerate(table.keys(positions))}
    columns |= {each.name: pa.array(column) for each, column in values.items()}
    return pa.record_batch(columns)
