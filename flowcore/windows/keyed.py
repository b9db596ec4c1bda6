"""Windows record by record: every window there is, by the pure operator, on key groups.

For what is not folded by column: sessions, custom triggers, evictors, windows by the clock, Python functions.
Records become mappings, one by one, and go to `flowcore.windows.WindowOperator`; a delta holds the keys that
were touched, as JSON after a version byte.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from flowcore.elements import LatencyMarker, RecordAttributes, WatermarkStatus
from flowcore.errors import StateError
from flowcore.keyed.dead_letters import DEAD_LETTERS, DeadLetters, Failure
from flowcore.keyed.key_index import key_by_name, key_values, python_values
from flowcore.keyed.operator import StepOutputs
from flowcore.keyed.output_columns import LATE, ORDINAL, RESULTS, WINDOW_FIELDS
from flowcore.keyed.plain import from_plain, to_plain
from flowcore.keyed.timers import TimerQueue
from flowcore.keyed.user_code import build_columns, to_function_error, wrap_errors
from flowcore.windows import Emissions, KeyedRecord, WindowConfig, WindowOperator, WindowResult, WindowState
from flowcore.windows.codec import VERSION, decode_key, encode_key, layout_of
from flowcore.windows.isolation import FailedRecord, FailedWindow, IsolatingWindowOperator
from flowcore.windows.panes import OpenPane, forget_key
from flowcore.windows.state import WindowTimer
from flowcore.windows.window import TimeWindow, saturated

__all__ = ["RecordWindows"]

"""Tells apart the outputs of one emission."""
_KEYS_PER_PIECE = 4096
_SHOWN = 200


def _unchanged(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordWindows:
    """Configuration of windows that look at each record.

    Attributes:
        name: The operator's name, for errors.
        config: What the windows do; values are mappings.
        keys: The key's columns; none for one key for all.
        key_of: Makes the key of their values.
        values: The columns of a record's mapping.
        value_of: Makes what the windows see of the mapping.
        record_of: Makes a mapping of what comes out.
        timestamp: The column of the records' timestamps, a 64-bit integer.
        rows: The columns of records.
        results: Those of the mappings that come out.
        late: Those of late records.
        dead_letters: Which failures leave as letters; None where each stops the query.
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

    @property
    def layout(self) -> str:
        """What a key keeps."""
        return f"records by {', '.join(self.keys)}: {layout_of(self.config)}"

    @property
    def outputs(self) -> Mapping[str, pa.Schema]:
        """Results and late records."""
        keys = [(name, self.rows.field(name).type) for name in self.keys]
        own = [(field.name, field.type) for field in self.results]
        results = [*keys, *own, *WINDOW_FIELDS, (ORDINAL, pa.int32())]
        found = {RESULTS: pa.schema(results), LATE: pa.schema([self.rows.field(name) for name in self.late])}
        return (
            found
            if self.dead_letters is None
            else {**found, DEAD_LETTERS: self.dead_letters.schema(self.rows)}
        )

    def open(self) -> _Group:
        """A key group without state."""
        return _Group(self)


class _Group:
    def __init__(self, of: RecordWindows) -> None:
        self._of = of
        self._operator = WindowOperator(of.config)
        self._minding: IsolatingWindowOperator | None = None
        self._failed = False
        self._touched: set[Any] = set()
        self._state = WindowState(
            event_timers=_Noting(self._touched), processing_timers=_Noting(self._touched)
        )
        self._results = of.outputs[RESULTS]

    @property
    def wake_ms(self) -> int | None:
        """When a timer of the clock is due."""
        return self._state.processing_timers.next_ms

    def advance_clock(self, clock_ms: int, out: StepOutputs) -> None:
        """Timers of the clock that are due."""
        self._put(self._called(lambda windows: windows.advance_clock(self._state, clock_ms), out), out)

    def rows(self, rows: pa.RecordBatch, out: StepOutputs) -> None:
        """Records, one by one."""
        records = self._records(rows)
        self._touched.update(record.key for record in records)
        seen = self._called(lambda windows: windows.process(self._state, records), out, (rows, records))
        self._put(seen, out)
        if seen.late:
            places = {id(record): place for place, record in enumerate(records)}
            late = np.array([places[id(record)] for record in seen.late])
            out.rows(LATE, rows.select(list(self._of.late)).take(late))

    def advance_watermark(self, watermark_ms: int, out: StepOutputs) -> None:
        """Timers of event time that are due."""
        seen = self._called(lambda windows: windows.advance_watermark(self._state, watermark_ms), out)
        self._put(seen, out)

    def attributes(self, attributes: RecordAttributes, out: StepOutputs) -> None:
        """Functions may ask for them."""
        self._state.backlog = attributes.backlog

    def status(self, status: WatermarkStatus, out: StepOutputs) -> None:
        """Nothing changes for windows."""

    def marker(self, marker: LatencyMarker, out: StepOutputs) -> None:
        """It follows what is out."""
        out.markers.append(marker)

    def finish(self, out: StepOutputs, *, idle: bool) -> None:
        """Nothing is held back; failures are minded until a step has none."""
        if not self._failed:
            self._minding = None
        self._failed = False

    def isolate_failures(self) -> bool:
        """See `flowcore.keyed.operator.SupportsFailureIsolation`."""
        if self._of.dead_letters is not None:
            self._minding = IsolatingWindowOperator(self._of.config, self._require)
        return self._minding is not None

    def header(self) -> Mapping[str, Any]:
        """Both clocks, and backlog."""
        state = self._state
        return {"watermark_ms": state.watermark_ms, "clock_ms": state.clock_ms, "backlog": state.backlog}

    def delta(self) -> bytes | None:
        """The keys that were touched."""
        touched = list(self._touched)
        self._touched.clear()
        return self._written(touched) if touched else None

    def snapshot(self) -> Iterator[bytes]:
        """All keys."""
        self._touched.clear()
        keys = list(self._state.keys)
        for start in range(0, len(keys), _KEYS_PER_PIECE):
            yield self._written(keys[start : start + _KEYS_PER_PIECE])

    def restore(self, header: Mapping[str, Any], pieces: Iterator[bytes]) -> None:
        """Take what was written."""
        self._state.watermark_ms = header.get("watermark_ms", self._state.watermark_ms)
        self._state.clock_ms = header.get("clock_ms", self._state.clock_ms)
        self._state.backlog = header.get("backlog", self._state.backlog)
        for piece in pieces:
            written = _read(piece)
            for entry in written["keys"]:
                forget_key(self._state, from_plain(entry["key"]), self._of.config)
                decode_key(entry, self._state, self._of.config)
            for key in written["gone"]:
                forget_key(self._state, from_plain(key), self._of.config)
        self._touched.clear()

    def _written(self, keys: Iterable[Any]) -> bytes:
        held = self._state.keys
        entries, gone = [], []
        for key in keys:
            if key in held:
                entries.append(encode_key(key, held[key]))
            else:
                gone.append(to_plain(key))
        return bytes([VERSION]) + json.dumps({"keys": entries, "gone": gone}).encode()

    def _records(self, rows: pa.RecordBatch) -> list[KeyedRecord]:
        keys = [key_values(rows.column(name)) for name in self._of.keys]
        whole = zip(*keys, strict=True) if keys else ((),) * rows.num_rows
        names = self._of.values
        lists = [python_values(rows.column(name)) for name in names]
        values = [dict(zip(names, each, strict=True)) for each in zip(*lists, strict=True)]
        times = rows.column(self._of.timestamp).to_pylist()
        key_of, value_of = self._of.key_of, self._of.value_of
        found = zip(whole, values or ({},) * rows.num_rows, times, strict=True)
        return [KeyedRecord(key_of(key), value_of(value), time_ms) for key, value, time_ms in found]

    def _called(
        self,
        work: Callable[[WindowOperator], Emissions],
        out: StepOutputs,
        given: tuple[pa.RecordBatch, Sequence[KeyedRecord]] | None = None,
    ) -> Emissions:
        windows = self._minding
        if windows is None:
            with wrap_errors(self._of.name, _where):
                return work(self._operator)
        seen = work(windows)
        self._leave(windows.failed, out, given)
        windows.failed.clear()
        return seen

    def _leave(
        self,
        failed: Sequence[FailedRecord | FailedWindow],
        out: StepOutputs,
        given: tuple[pa.RecordBatch, Sequence[KeyedRecord]] | None,
    ) -> None:
        """DeadLetters of what failed."""
        letters, name = self._of.dead_letters, self._of.name
        if letters is None or not failed:
            return
        self._failed = True
        rows, records = given or (pa.RecordBatch.from_pylist([], schema=self._of.rows), ())
        places = {id(record): place for place, record in enumerate(records)}
        failures = []
        for each in failed:
            match each:
                case FailedRecord(record, error):
                    said = to_function_error(name, error, _of_record(record))
                    failures.append(Failure(name, said, places[id(record)]))
                case FailedWindow(key, window):
                    said = to_function_error(name, each.error, _of_window(key, window))
                    failures.append(Failure(name, said, content=self._shown(each)))
        out.rows(DEAD_LETTERS, letters.build_rows(failures, rows))

    def _shown(self, failed: FailedWindow) -> dict[str, Any]:
        return {
            "key": key_by_name(self._of.keys, failed.key),
            "window_start_ms": failed.window.start_ms,
            "window_end_ms": saturated(failed.window.end_ms),
            "firing": failed.firing,
            "values": failed.values,
        }

    def _put(self, seen: Emissions, out: StepOutputs) -> None:
        out.count("late_records", len(seen.late))
        out.count("dropped_records", seen.dropped_records)
        if seen.results:
            out.rows(RESULTS, self._batch(seen.results))

    def _require(self, results: Sequence[WindowResult]) -> None:
        self._batch(results)

    def _batch(self, results: Sequence[WindowResult]) -> pa.RecordBatch:
        many = len(self._of.keys) > 1
        keys = [
            pa.array([result.key[place] if many else result.key for result in results], field.type)
            for place, field in enumerate(list(self._results)[: len(self._of.keys)])
        ]
        columns: list[Sequence[Any]] = [
            [result.window_start_ms for result in results],
            [result.window_end_ms for result in results],
            [result.timestamp_ms for result in results],
            [result.firing for result in results],
            [result.is_late for result in results],
            _ordinals(results),
        ]
        found = [self._of.record_of(result.value) for result in results]
        own = build_columns(found, self._of.results, self._of.name)
        beside = list(self._results)[len(keys) + len(own) :]
        arrays = [pa.array(values, field.type) for values, field in zip(columns, beside, strict=True)]
        return pa.record_batch([*keys, *own, *arrays], schema=self._results)


class _Noting(TimerQueue[WindowTimer]):
    """Timers whose keys are noted when they are due, since their states change."""

    __slots__ = ("_due",)

    def __init__(self, due: set[Any]) -> None:
        super().__init__()
        self._due = due

    def next_due(self, now_ms: int) -> tuple[WindowTimer, int] | None:
        due = super().next_due(now_ms)
        if due is not None:
            self._due.add(due[0].key)
        return due


def _where(error: Exception) -> str:
    """Which record or window it was about; the traceback knows, so that nothing is noted per record."""
    found, trace = "", error.__traceback__
    while trace is not None:
        held = trace.tb_frame.f_locals
        if isinstance(held.get("self"), WindowOperator):
            if isinstance(held.get("record"), KeyedRecord):
                found = _of_record(held["record"])
            elif isinstance(held.get("opened"), OpenPane):
                found = _of_window(held["opened"].key, held["opened"].window)
        trace = trace.tb_next
    return found


def _of_record(record: KeyedRecord) -> str:
    shown = repr(record.value)
    return f" for key {record.key!r}, record {shown if len(shown) <= _SHOWN else f'{shown[:_SHOWN]}...'}"


def _of_window(key: Any, window: TimeWindow) -> str:
    return f" for key {key!r}, window from {window.start_ms} to {saturated(window.end_ms)} ms"


def _read(piece: bytes) -> dict[str, Any]:
    if piece[:1] != bytes([VERSION]):
        msg = (
            f"windows' state of version {piece[0] if piece else 'none'}, this flowcore reads {VERSION}: "
            "it would become something else; go on with the flowcore that wrote it, or start a new checkpoint"
        )
        raise StateError(msg)
    written: dict[str, Any] = json.loads(piece[1:])
    return written


def _ordinals(results: Sequence[WindowResult]) -> list[int]:
    """The place of each among the outputs of its emission."""
    found: dict[tuple[Any, ...], int] = {}
    places = []
    for result in results:
        emission = (repr(result.key), result.window, result.firing)
        places.append(found.get(emission, 0))
        found[emission] = places[-1] + 1
    return places
