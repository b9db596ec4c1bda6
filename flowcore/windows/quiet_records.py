"""Records for which their window does not fire: built-in aggregates add them by column.

All records of a key and a window are added at once. That is so for most records of tumbling windows: only
where a window is complete, each record may be late, or may let the window emit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa

from flowcore.elements import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from flowcore.keyed.columns import take_rows
from flowcore.keyed.key_index import factorize_keys, to_key_values, to_python_values
from flowcore.windows.assigners import TumblingWindows
from flowcore.windows.built_in import BuiltIns
from flowcore.windows.config import WindowConfig
from flowcore.windows.contents import StoredRecord
from flowcore.windows.functions import WindowAggregate
from flowcore.windows.panes import open_pane
from flowcore.windows.state import KeyState, WindowState
from flowcore.windows.triggers import EventTimeTrigger
from flowcore.windows.window import TimeWindow

__all__ = ["QuietRecords"]

_LONGEST_MS = 1 << 60
"""Of longer windows, the times do not fit 64 bits."""


@dataclass(frozen=True, slots=True)
class QuietRecords:
    """Adds the records of tumbling windows that do not fire for them.

    Attributes:
        keys: The key's columns.
        key_of: Builds the key from their values.
        timestamp: The column of the records' timestamps, a 64-bit integer.
    """

    config: WindowConfig
    windows: TumblingWindows
    aggregates: BuiltIns
    keys: tuple[str, ...]
    key_of: Callable[[tuple[Any, ...]], Any]
    timestamp: str

    @classmethod
    def of(
        cls,
        config: WindowConfig,
        keys: tuple[str, ...],
        key_of: Callable[[tuple[Any, ...]], Any],
        timestamp: str,
    ) -> Self | None:
        """None if it is not known that records do not fire, or if their function is not built in."""
        trigger, function = config.effective_trigger, config.function
        if config.time != "event" or config.evictor is not None or type(trigger) is not EventTimeTrigger:
            return None
        match config.assigner, function:
            case TumblingWindows() as windows, WindowAggregate(function=BuiltIns() as aggregates) if (
                windows.size_ms < _LONGEST_MS
            ):
                return cls(config, windows, aggregates, keys, key_of, timestamp)
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
        read = dict.fromkeys(column for _, each in self.aggregates.columns for column in each.columns)
        values = {name: to_python_values(mine.column(name).take(order)) for name in read}
        parts = [to_key_values(each) for each in take_rows(by, codes.first)]
        changed: set[Any] = set()
        for number, start_ms in enumerate(starts.take(codes.first).to_pylist()):
            begin, end = ends[number - 1] if number else 0, ends[number]
            key = self.key_of(tuple(part[number] for part in parts))
            columns = {name: each[begin:end] for name, each in values.items()}
            self._add(state, key, TimeWindow(start_ms, start_ms + size_ms), columns, end - begin)
            changed.add(key)
        return rows.filter(pa.array(~quiet)), changed

    def _add(
        self,
        state: WindowState,
        key: Any,
        window: TimeWindow,
        columns: Mapping[str, Sequence[Any]],
        records: int,
    ) -> None:
        """Add records of one key and window, as `flowcore.windows.WindowOperator` adds them one by one."""
        opened = open_pane(self.config, state, key, state.keys.setdefault(key, KeyState()), window)
        content = opened.pane.content
        kept = content[0].value if content else self.aggregates.create()
        content[:] = [StoredRecord(None, self.aggregates.add_many(kept, columns, records))]
        opened.register_end()
        opened.register_event_timer(window.last_ms)
