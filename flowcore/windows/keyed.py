"""Windows that process single records, as an operator on key groups.

They are for everything that `flowcore.windows.columnar` cannot do: custom triggers, evictors, windows of
processing time, Python functions. Records become mappings and go to `flowcore.windows.WindowOperator`. A
delta holds the keys that changed, as JSON after a version byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from flowcore.elements import RecordAttributes
from flowcore.keyed.content import read_ended_ms
from flowcore.keyed.dead_letters import DEAD_LETTERS, DeadLetters, Failure
from flowcore.keyed.key_index import key_by_name, to_key_columns, to_key_values, to_python_records
from flowcore.keyed.operator import KeyGroup, KeyGroupOperator, StepOutputs
from flowcore.keyed.output_columns import LATE, ORDINAL, RESULTS, WINDOW_FIELDS
from flowcore.keyed.user_code import build_columns, number_repeats, to_function_error, wrap_errors
from flowcore.windows import Emissions, KeyedRecord, WindowConfig, WindowOperator, WindowResult, WindowState
from flowcore.windows.codec import decode_windows, encode_windows, window_state_layout
from flowcore.windows.functions import WindowAggregate
from flowcore.windows.isolation import FailedRecord, FailedWindow, IsolatingWindowOperator
from flowcore.windows.panes import OpenPane
from flowcore.windows.quiet_records import QuietRecords
from flowcore.windows.state import WindowTimer, WindowTimers
from flowcore.windows.top_rows import TopRows
from flowcore.windows.window import TimeWindow, saturated

__all__ = ["RecordWindows"]

_KEYS_PER_PIECE = 4096
_MAX_RECORD_CHARACTERS = 200


def _unchanged(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordWindows(KeyGroupOperator):
    """Configuration of windows that process single records.

    Attributes:
        config: What the windows do; values are mappings.
        keys: The key's columns; none for one key for all.
        key_of: Builds the key from their values.
        values: The columns of a record's mapping.
        value_of: Builds the windows' input from the mapping.
        record_of: Builds a mapping from an output.
        timestamp: The column of the records' timestamps, a 64-bit integer.
        results: The schema of the output mappings.
        dead_letters: Writes dead letters for failures; None if a failure stops the query.
        latest_only: Emit only the last of a window's results that the same records caused.
    """

    name: str
    config: WindowConfig
    keys: tuple[str, ...]
    key_of: Callable[[tuple[Any, ...]], Any]
    values: tuple[str, ...]
    timestamp: str
    rows: pa.Schema
    results: pa.Schema
    late: tuple[str, ...] = ()
    value_of: Callable[[dict[str, Any]], Any] = _unchanged
    record_of: Callable[[Any], Mapping[str, Any]] = _unchanged
    dead_letters: DeadLetters | None = None
    latest_only: bool = False
    memory_factor: ClassVar[int] = 10

    @property
    def layout(self) -> str:
        layout = f"records by {', '.join(self.keys)}: {window_state_layout(self.config)}"
        match self.config.function:
            case WindowAggregate(function=TopRows()):  # they must be comparable with new ones, and whole
                kept = ", ".join(f"{name} {self.rows.field(name).type}" for name in self.values)
                return f"{layout} of {kept}"
            case _:
                return layout

    @property
    def outputs(self) -> Mapping[str, pa.Schema]:
        keys = [(name, self.rows.field(name).type) for name in self.keys]
        own = [(field.name, field.type) for field in self.results]
        outputs = {
            RESULTS: pa.schema([*keys, *own, *WINDOW_FIELDS, (ORDINAL, pa.int32())]),
            LATE: pa.schema([self.rows.field(name) for name in self.late]),
        }
        if self.dead_letters is not None:
            outputs[DEAD_LETTERS] = self.dead_letters.schema(self.rows)
        return outputs

    def open(self) -> _Group:
        return _Group(self)


class _Group(KeyGroup):
    def __init__(self, context: RecordWindows) -> None:
        self._context = context
        self._operator = WindowOperator(context.config)
        self._isolating: IsolatingWindowOperator | None = None
        self._failed = False
        self._changed: set[Any] = set()
        self._state = WindowState(
            event_timers=_RecordingTimers(self._changed), processing_timers=_RecordingTimers(self._changed)
        )
        self._schema = context.outputs[RESULTS]
        self._quiet = (
            QuietRecords.of(context.config, context.keys, context.key_of, context.timestamp, context.values)
            if context.value_of is _unchanged
            else None
        )

    @property
    def wake_ms(self) -> int | None:
        return self._state.processing_timers.next_ms

    def advance_processing_time(self, processing_time_ms: int, out: StepOutputs) -> None:
        self._emit(
            self._run(lambda windows: windows.advance_processing_time(self._state, processing_time_ms), out),
            out,
        )

    def rows(self, rows: pa.RecordBatch, out: StepOutputs) -> None:
        if self._quiet is not None and self._isolating is None:
            with wrap_errors(self._context.name, _where):
                rows, changed = self._quiet.add(rows, self._state, self._operator.ended_ms(self._state))
            self._changed |= changed
        records = self._records(rows)
        self._changed.update(record.key for record in records)
        seen = self._run(lambda windows: windows.process(self._state, records), out, (rows, records))
        self._emit(seen, out)
        if seen.late:
            places = {id(record): place for place, record in enumerate(records)}
            late = np.array([places[id(record)] for record in seen.late])
            out.rows(LATE, rows.select(list(self._context.late)).take(late))

    def advance_watermark(self, watermark_ms: int, out: StepOutputs) -> None:
        seen = self._run(lambda windows: windows.advance_watermark(self._state, watermark_ms), out)
        self._emit(seen, out)

    def attributes(self, attributes: RecordAttributes, out: StepOutputs) -> None:
        self._state.backlog = attributes.backlog

    def finish(self, out: StepOutputs, *, idle: bool) -> None:
        """Stop isolating failures after a step without one."""
        if not self._failed:
            self._isolating = None
        self._failed = False

    def isolate_failures(self) -> bool:
        if self._context.dead_letters is not None:
            self._isolating = IsolatingWindowOperator(self._context.config, self._result_batch)
        return self._isolating is not None

    def header(self) -> Mapping[str, Any]:
        """Event time, processing time, the backlog status, and which windows have ended."""
        state = self._state
        return {
            "watermark_ms": state.watermark_ms,
            "clock_ms": state.processing_time_ms,
            "backlog": state.backlog,
            "ended_ms": self._operator.ended_ms(state),
        }

    @property
    def has_changed_wholly(self) -> bool:
        return self._changed.issuperset(self._state.keys)

    def delta(self) -> bytes | None:
        written = encode_windows(self._changed, self._state) if self._changed else None
        self._changed.clear()
        return written

    def snapshot(self) -> Iterator[bytes]:
        self._changed.clear()
        keys = list(self._state.keys)
        for start in range(0, len(keys), _KEYS_PER_PIECE):
            yield encode_windows(keys[start : start + _KEYS_PER_PIECE], self._state)

    def restore(self, header: Mapping[str, Any], pieces: Iterator[bytes]) -> None:
        self._state.watermark_ms = header.get("watermark_ms", self._state.watermark_ms)
        self._state.processing_time_ms = header.get("clock_ms", self._state.processing_time_ms)
        self._state.backlog = header.get("backlog", self._state.backlog)
        self._state.ended_ms = max(self._state.ended_ms, read_ended_ms(header))
        for piece in pieces:
            decode_windows(piece, self._state, self._context.config)
        self._changed.clear()

    def _records(self, rows: pa.RecordBatch) -> list[KeyedRecord]:
        context = self._context
        key_columns = [to_key_values(rows.column(name)) for name in context.keys]
        keys = zip(*key_columns, strict=True) if key_columns else ((),) * rows.num_rows
        times = rows.column(context.timestamp).to_pylist()
        values = to_python_records(rows.select(list(context.values)))
        parts = zip(keys, values, times, strict=True)
        return [
            KeyedRecord(context.key_of(key), context.value_of(value), time_ms)
            for key, value, time_ms in parts
        ]

    def _run(
        self,
        work: Callable[[WindowOperator], Emissions],
        out: StepOutputs,
        batch: tuple[pa.RecordBatch, Sequence[KeyedRecord]] | None = None,
    ) -> Emissions:
        windows = self._isolating
        if windows is None:
            with wrap_errors(self._context.name, _where):
                return work(self._operator)
        seen = work(windows)
        dead_letters, name = self._context.dead_letters, self._context.name
        if dead_letters is None or not windows.failed:
            return seen
        self._failed = True
        rows, records = batch or (pa.RecordBatch.from_pylist([], schema=self._context.rows), ())
        places = {id(record): place for place, record in enumerate(records)}
        failures = []
        for each in windows.failed:
            match each:
                case FailedRecord(record, error):
                    wrapped = to_function_error(name, error, _describe_record(record))
                    failures.append(Failure(name, wrapped, places[id(record)]))
                case FailedWindow(key, window):
                    wrapped = to_function_error(name, each.error, _describe_window(key, window))
                    content = {
                        "key": key_by_name(self._context.keys, key),
                        "window_start_ms": window.start_ms,
                        "window_end_ms": saturated(window.end_ms),
                        "firing": each.firing,
                        "values": each.values,
                    }
                    failures.append(Failure(name, wrapped, content=content))
        out.rows(DEAD_LETTERS, dead_letters.build_rows(failures, rows))
        windows.failed.clear()
        return seen

    def _emit(self, seen: Emissions, out: StepOutputs) -> None:
        out.count("late_records", len(seen.late))
        out.count("dropped_records", seen.dropped_records)
        results: Sequence[WindowResult] = seen.results
        if self._context.latest_only:
            results = list({(each.key, each.window): each for each in results}.values())
        if results:
            out.rows(RESULTS, self._result_batch(results))

    def _result_batch(self, results: Sequence[WindowResult]) -> pa.RecordBatch:
        types = self._schema.types
        keys = to_key_columns([result.key for result in results], types[: len(self._context.keys)])
        columns: list[Sequence[Any]] = [
            [result.window_start_ms for result in results],
            [result.window_end_ms for result in results],
            [result.timestamp_ms for result in results],
            [result.firing for result in results],
            [result.is_late for result in results],
            number_repeats((repr(result.key), result.window, result.firing) for result in results),
        ]
        records = [self._context.record_of(result.value) for result in results]
        own = build_columns(records, self._context.results, self._context.name)
        arrays = [pa.array(*each) for each in zip(columns, types[len(keys) + len(own) :], strict=True)]
        return pa.record_batch([*keys, *own, *arrays], schema=self._schema)


class _RecordingTimers(WindowTimers):
    """A timer queue that records the keys of due timers, since their states change."""

    __slots__ = ("_changed",)

    def __init__(self, changed: set[Any]) -> None:
        super().__init__()
        self._changed = changed

    def next_due(self, now_ms: int) -> tuple[WindowTimer, int] | None:
        due = super().next_due(now_ms)
        if due is not None:
            self._changed.add(due[0].key)
        return due


def _where(error: Exception) -> str:
    """Describe the record or window of an error, from its traceback, so that success costs nothing."""
    where, trace = "", error.__traceback__
    while trace is not None:
        variables = trace.tb_frame.f_locals
        if isinstance(variables.get("self"), WindowOperator):
            if isinstance(variables.get("record"), KeyedRecord):
                where = _describe_record(variables["record"])
            elif isinstance(variables.get("opened"), OpenPane):
                where = _describe_window(variables["opened"].key, variables["opened"].window)
        trace = trace.tb_next
    return where


def _describe_record(record: KeyedRecord) -> str:
    text = repr(record.value)
    if len(text) > _MAX_RECORD_CHARACTERS:
        text = f"{text[:_MAX_RECORD_CHARACTERS]}..."
    return f" for key {record.key!r}, record {text}"


def _describe_window(key: Any, window: TimeWindow) -> str:
    return f" for key {key!r}, window from {window.start_ms} to {saturated(window.end_ms)} ms"
