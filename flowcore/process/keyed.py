"""Keyed process functions as operators on key groups.

Records become mappings one by one, or stay a batch for a function of batches. A delta contains the keys whose
states or timers may have changed, as JSON after a version byte.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import pyarrow as pa

from flowcore.elements import RecordAttributes
from flowcore.keyed.dead_letters import DEAD_LETTERS, Failure
from flowcore.keyed.key_index import key_by_name, to_python_keys
from flowcore.keyed.operator import KeyGroup, KeyGroupOperator, StepOutputs
from flowcore.keyed.plain import to_plain
from flowcore.keyed.user_code import to_function_error, wrap_errors
from flowcore.process.codec import decode_keys, encode_keys, keys_of, require_layouts
from flowcore.process.current import ProcessResult
from flowcore.process.function import KeyedProcessFunction
from flowcore.process.isolation import IsolatedCalls
from flowcore.process.operator import ProcessConfig, ProcessOperator
from flowcore.process.outputs import ProcessOutputs, RowBuilder
from flowcore.process.state import ProcessState

__all__ = ["KeyedProcesses"]

_KEYS_PER_PIECE = 4096
_LONGEST_KEY = 200
"""Characters of a key in the ids of a timer's results; of a longer one they have the digest."""


@dataclass(frozen=True, kw_only=True)
class KeyedProcesses(ProcessOutputs, KeyGroupOperator):
    """Configuration of a keyed process function.

    Attributes:
        function: The user's function; all groups of a worker share it.
        values: The columns of a record that the function gets.
        timestamp: The column of the records' timestamps, a 64-bit integer.
        no_timestamps: The error for a function that asks for a timestamp, if no record has one.
    """

    function: KeyedProcessFunction
    values: tuple[str, ...]
    timestamp: str
    no_timestamps: str | None = None
    memory_factor: ClassVar[int] = 10

    @property
    def layout(self) -> str:
        """The state layout of a key; those of the declared states are in the header."""
        return f"process by {', '.join(self.keys)}"

    def open(self) -> _Group:
        return _Group(self)

    @cached_property
    def opened(self) -> ProcessOperator:
        """The function, opened in this worker."""
        with wrap_errors(self.name):
            config = ProcessConfig(
                function=self.function,
                side_outputs=tuple(self.side_outputs),
                no_timestamps=self.no_timestamps,
            )
            return ProcessOperator(config)

    def close(self) -> None:
        """Close the function if it is open; the next access opens it again."""
        if self.downstream is not None:
            self.downstream.close()
        opened = self.__dict__.pop("opened", None)
        if opened is not None:
            with wrap_errors(self.name):
                opened.close()


class _Group(KeyGroup):
    def __init__(self, config: KeyedProcesses) -> None:
        self._config = config
        self._state = ProcessState()
        self._advances = 0
        self._rows = RowBuilder(config)
        self._isolates = False
        self._failed = False

    @property
    def wake_ms(self) -> int | None:
        """When a processing-time timer fires, or an entry expires."""
        times = (self._state.processing_timers.next_ms, self._state.expiries.next_ms)
        return min((time for time in times if time is not None), default=None)

    def advance_processing_time(self, processing_time_ms: int, out: StepOutputs) -> None:
        """Remove expired entries, then fire processing-time timers."""
        before_ms = self._state.processing_time_ms
        self._advances += 1
        with self._timer_calls("processing", out):
            emissions = self._config.opened.advance_processing_time(self._state, processing_time_ms)
        self._rows.emit(emissions, out, lambda result: self._timer_text(result, "processing", before_ms))

    def attributes(self, attributes: RecordAttributes, out: StepOutputs) -> None:  # noqa: ARG002 - emits nothing
        """Update the backlog status, which the function may read."""
        self._state.backlog = attributes.backlog
        self._rows.attributes = attributes

    def rows(self, rows: pa.RecordBatch, out: StepOutputs) -> None:
        """Process records one by one, or at once for a function of batches; isolate failures if asked to."""
        keys = to_python_keys([rows.column(name) for name in self._config.keys], rows.num_rows)
        times = rows.column(self._config.timestamp).to_pylist()
        opened = self._config.opened
        values = rows.select(list(self._config.values))
        if not self._isolates:
            with wrap_errors(self._config.name, lambda _: self._describe(rows, opened.current.origin, keys)):
                emissions = opened.process_batch(self._state, keys, times, values)
            self._rows.emit(emissions, out, rows=rows)
            return
        calls = IsolatedCalls(opened, self._rows.require)
        if opened.config.function.by_batch():
            for start, end, emissions in calls.batches(self._state, keys, times, values):
                self._rows.emit(emissions, out, rows=rows.slice(start, end - start))
        else:
            with calls:
                emissions = opened.process_batch(self._state, keys, times, values)
            self._rows.emit(emissions, out, rows=rows)
        name = self._config.name
        failures = [
            Failure(
                name,
                to_function_error(name, each.error, self._describe(rows, each.origin, keys)),
                each.origin,
            )
            for each in calls.failed
        ]
        self._emit_dead_letters(failures, rows, out)

    def isolate_failures(self) -> bool:
        self._isolates = self._config.dead_letters is not None
        return self._isolates

    def _emit_dead_letters(self, failures: Sequence[Failure], rows: pa.RecordBatch, out: StepOutputs) -> None:
        if failures and self._config.dead_letters is not None:
            self._failed = True
            out.rows(DEAD_LETTERS, self._config.dead_letters.build_rows(failures, rows))

    @contextmanager
    def _timer_calls(self, time: str, out: StepOutputs) -> Iterator[None]:
        """Around calls for timers; failures become dead letters if they are isolated."""
        name, current = self._config.name, self._config.opened.current
        if not self._isolates:
            with wrap_errors(name, lambda _: _describe_timer(current.key, current.timestamp_ms)):
                yield
            return
        calls = IsolatedCalls(self._config.opened, self._rows.require)
        with calls:
            yield
        failures = [
            Failure(
                name,
                to_function_error(name, each.error, _describe_timer(each.key, each.timestamp_ms)),
                content={
                    "key": key_by_name(self._config.keys, each.key),
                    "time": time,
                    "time_ms": each.timestamp_ms,
                },
            )
            for each in calls.failed
        ]
        self._emit_dead_letters(failures, pa.RecordBatch.from_pylist([], schema=self._config.rows), out)

    def advance_watermark(self, watermark_ms: int, out: StepOutputs) -> None:
        before_ms = self._state.watermark_ms
        self._advances += 1
        with self._timer_calls("event", out):
            emissions = self._config.opened.advance_watermark(self._state, watermark_ms)
        self._rows.emit(emissions, out, lambda result: self._timer_text(result, "event", before_ms))

    def finish(self, out: StepOutputs, *, idle: bool) -> None:  # noqa: ARG002 - a key group's signature
        """Isolate failures until a step has none."""
        self._isolates, self._failed = self._isolates and self._failed, False

    def header(self) -> Mapping[str, Any]:
        """Times, how often they advanced, backlog status, and the layouts of states."""
        return {
            "watermark_ms": self._state.watermark_ms,
            "clock_ms": self._state.processing_time_ms,
            "advances": self._advances,
            "backlog": self._state.backlog,
            "states": {name: each.layout for name, each in self._config.opened.declared.items()},
        }

    def delta(self) -> bytes | None:
        written = encode_keys(self._state.touched, self._state) if self._state.touched else None
        self._state.touched.clear()
        return written

    def snapshot(self) -> Iterator[bytes]:
        self._state.touched.clear()
        keys = list(keys_of(self._state))
        for start in range(0, len(keys), _KEYS_PER_PIECE):
            yield encode_keys(keys[start : start + _KEYS_PER_PIECE], self._state)

    def restore(self, header: Mapping[str, Any], pieces: Iterator[bytes]) -> None:
        declared = self._config.opened.declared
        require_layouts(header.get("states", {}), declared)
        self._state.watermark_ms = header.get("watermark_ms", self._state.watermark_ms)
        self._state.processing_time_ms = header.get("clock_ms", self._state.processing_time_ms)
        self._advances = header.get("advances", self._advances)
        self._state.backlog = header.get("backlog", self._state.backlog)
        self._rows.attributes = RecordAttributes(self._state.backlog)
        for piece in pieces:
            decode_keys(piece, self._state, declared)
        self._state.touched.clear()

    def _describe(self, rows: pa.RecordBatch, origin: int | None, keys: Sequence[Any]) -> str:
        """The current record, or the first of a batch, for errors."""
        batch = " the batch that begins with" if origin is None else ""
        key = f" for{batch} key {keys[origin or 0]!r}"
        place = self._config.place_of(rows, origin or 0)
        return key if place is None else f"{key} at {place}"

    def _timer_text(self, result: ProcessResult, clock: str, before_ms: int) -> str:
        """The identity of a timer. A timer that was set in the past also has the number of the advance."""
        key = key_by_name(self._config.keys, result.key)
        text = json.dumps({name: to_plain(value) for name, value in key.items()})
        if len(text) > _LONGEST_KEY:
            text = hashlib.sha256(text.encode()).hexdigest()
        time_ms = result.timestamp_ms
        in_past = time_ms is not None and time_ms <= before_ms
        return f"{text}:{clock}:{time_ms}{f':{self._advances}' if in_past else ''}"


def _describe_timer(key: Any, time_ms: int | None) -> str:
    return f" at the timer of key {key!r}, {time_ms} ms"
