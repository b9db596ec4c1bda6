"""Records for which their window does not fire: all of a key and a window are added at once.

That is so for most records of tumbling windows: only where a window is complete, each record may be late, or
may let the window emit. Built-in aggregates and rankings add them by column; process functions get them when
the window fires.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa

from flowcore.elements import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from flowcore.keyed.columns import take_rows
from flowcore.keyed.key_index import factorize_keys, to_key_values, to_python_records, to_python_values
from flowcore.ranking.order import sort_rows
from flowcore.windows.assigners import TumblingWindows
from flowcore.windows.built_in import BuiltIns
from flowcore.windows.config import WindowConfig
from flowcore.windows.contents import Content, StoredRecord
from flowcore.windows.functions import WindowAggregate, WindowProcess
from flowcore.windows.panes import open_pane
from flowcore.windows.state import KeyState, WindowState
from flowcore.windows.top_rows import TopRows
from flowcore.windows.triggers import EventTimeTrigger
from flowcore.windows.window import TimeWindow

__all__ = ["QuietRecords", "find_ranked"]

_FEW = 64
"""Of so few rows of a window, Python finds those with a rank sooner than Arrow."""
_LONGEST_MS = 1 << 60
"""Of longer windows, the times do not fit 64 bits."""


@dataclass(frozen=True, slots=True)
class QuietRecords:
    """Adds the records of tumbling windows that do not fire for them.

    Attributes:
        keys: The key's columns.
        key_of: Builds the key from their values.
        timestamp: The column of the records' timestamps, a 64-bit integer.
        values: The columns of a record's mapping.
        aggregates: What adds the records; None if the window keeps them.
    """

    config: WindowConfig
    windows: TumblingWindows
    aggregates: BuiltIns | TopRows | None
    keys: tuple[str, ...]
    key_of: Callable[[tuple[Any, ...]], Any]
    timestamp: str
    values: tuple[str, ...]

    @classmethod
    def of(
        cls,
        config: WindowConfig,
        keys: tuple[str, ...],
        key_of: Callable[[tuple[Any, ...]], Any],
        timestamp: str,
        values: tuple[str, ...],
    ) -> Self | None:
        """None if it is not known that records do not fire, or if a user's function folds them."""
        trigger, function = config.effective_trigger, config.function
        if config.time != "event" or config.evictor is not None or type(trigger) is not EventTimeTrigger:
            return None
        windows = config.assigner
        if type(windows) is not TumblingWindows or windows.size_ms >= _LONGEST_MS:
            return None
        match function:
            case WindowAggregate(function=BuiltIns() | TopRows() as aggregates):
                return cls(config, windows, aggregates, keys, key_of, timestamp, values)
            case WindowProcess():
                return cls(config, windows, None, keys, key_of, timestamp, values)
            case _:
                return None

    def add(self, rows: pa.RecordBatch, state: WindowState, ended_ms: int) -> tuple[pa.RecordBatch, set[Any]]:
        """Add the quiet ones of some rows; return the others, in order, and the keys that have changed.

        Args:
            ended_ms: The time up to which windows have ended.
        """
        column, size_ms = rows.column(self.timestamp), self.windows.size_ms
        times_ms = column.fill_null(MIN_TIMESTAMP_MS).to_numpy()
        inner = (times_ms > MIN_TIMESTAMP_MS + 2 * size_ms) & (times_ms < MAX_TIMESTAMP_MS - 2 * size_ms)
        starts_ms = times_ms - np.where(inner, times_ms - self.windows.offset_ms % size_ms, 0) % size_ms
        complete_ms = max(ended_ms, state.watermark_ms, MIN_TIMESTAMP_MS)
        quiet = inner & (starts_ms + (size_ms - 1) > complete_ms)
        if not quiet.any():
            return rows, set()
        mine, starts = rows.filter(pa.array(quiet)), pa.array(starts_ms[quiet])
        by = [mine.column(name) for name in self.keys]
        codes = factorize_keys([*by, starts], mine.num_rows)
        order = np.argsort(codes.codes, kind="stable")
        ends = np.cumsum(np.bincount(codes.codes)).tolist()
        sorted_rows = mine.take(order)
        match self.aggregates:
            case BuiltIns() as aggregates:
                add = _folding(aggregates, sorted_rows)
            case TopRows() as ranking:
                add = _ranking(ranking, sorted_rows.select(list(self.values)), len(ends))
            case None:
                add = self._adding(sorted_rows)
        parts = [to_key_values(each) for each in take_rows(by, codes.first)]
        changed: set[Any] = set()
        for number, start_ms in enumerate(starts.take(codes.first).to_pylist()):
            begin, end = ends[number - 1] if number else 0, ends[number]
            key = self.key_of(tuple(part[number] for part in parts))
            key_state = state.keys.setdefault(key, KeyState())
            window = TimeWindow(start_ms, start_ms + size_ms)
            opened = open_pane(self.config, state, key, key_state, window)
            add(opened.pane.content, begin, end)
            opened.register_end()
            opened.register_event_timer(window.last_ms)
            changed.add(key)
        return rows.filter(pa.array(~quiet)), changed

    def _adding(self, rows: pa.RecordBatch) -> Callable[[Content, int, int], None]:
        """Adds the records from one row to another one to a content."""
        times_ms = rows.column(self.timestamp).to_pylist()
        records = [*map(StoredRecord, times_ms, to_python_records(rows.select(list(self.values))))]

        def add(content: Content, begin: int, end: int) -> None:
            content += records[begin:end]

        return add


def _folding(aggregates: BuiltIns, rows: pa.RecordBatch) -> Callable[[Content, int, int], None]:
    """Adds the rows from one to another one to the aggregates of a content."""
    read = dict.fromkeys(column for _, each in aggregates.columns for column in each.columns)
    values = {name: to_python_values(rows.column(name)) for name in read}

    def add(content: Content, begin: int, end: int) -> None:
        columns = {name: each[begin:end] for name, each in values.items()}
        kept = content[0].value if content else aggregates.create()
        content[:] = [StoredRecord(None, aggregates.add_many(kept, columns, end - begin))]

    return add


def _ranking(ranking: TopRows, rows: pa.RecordBatch, windows: int) -> Callable[[Content, int, int], None]:
    """Adds the rows from one to another one to the ranked records of a content.

    Of many rows of a window, Arrow finds those that have a rank among them, and only these become records.
    """
    records = [*to_python_records(rows)] if rows.num_rows <= _FEW * windows else None

    def add(content: Content, begin: int, end: int) -> None:
        kept = content[0].value if content else ranking.create()
        if records is not None:
            found: Iterable[Mapping[str, Any]] = records[begin:end]
        else:
            found = find_ranked(ranking, rows.slice(begin, end - begin))
        content[:] = [StoredRecord(None, ranking.merge(kept, found))]

    return add


def find_ranked(ranking: TopRows, rows: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """The rows that have a rank among these, in order of arrival."""
    return to_python_records(rows.take(_find_first(ranking, rows)) if rows.num_rows > ranking.n else rows)


def _find_first(ranking: TopRows, rows: pa.RecordBatch) -> pa.Array[Any]:
    """Their positions."""
    columns = [rows.column(name) for name, _ in ranking.order]
    descending = [descending for _, descending in ranking.order]
    places = sort_rows(list(zip(columns, descending, strict=True)))
    count = ranking.n
    if ranking.ties and count < len(places):
        codes = factorize_keys([*map(_with_one_form, columns)], rows.num_rows).codes[places]
        (others,) = np.nonzero(codes[count:] != codes[count - 1])
        count = count + int(others[0]) if len(others) else len(places)
    return pa.array(np.sort(places[:count]))


def _with_one_form(values: pa.Array[Any]) -> pa.Array[Any]:
    """Values, equal ones as equal keys: zero has a sign, and not-a-number has several forms."""
    if not pa.types.is_floating(values.type):
        return values
    numbers = values.to_numpy(zero_copy_only=False)  # null becomes not-a-number
    is_null = values.is_null().to_numpy(zero_copy_only=False)
    found: pa.Array[Any] = pa.array(np.where(np.isnan(numbers), np.nan, numbers + 0.0), mask=is_null)
    return found
