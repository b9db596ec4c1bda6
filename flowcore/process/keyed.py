"""Keyed process functions on key groups: every record and timer, by the pure operator.

Records become mappings, one by one, or stay a batch for a function of batches; a delta holds the keys whose
states or timers may have changed, as JSON after a version byte.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from flowcore.elements import LatencyMarker, RecordAttributes, WatermarkStatus
from flowcore.errors import StateError
from flowcore.keyed.dead_letters import DEAD_LETTERS, DeadLetters, Failure
from flowcore.keyed.key_index import key_by_name, python_keys, python_values
from flowcore.keyed.operator import StepOutputs
from flowcore.keyed.plain import from_plain, to_plain
from flowcore.keyed.user_code import to_function_error, wrap_errors
from flowcore.process import (
    KeyedProcessFunction,
    KeyedRecord,
    ProcessConfig,
    ProcessOperator,
    ProcessResult,
    ProcessState,
)
from flowcore.process.codec import (
    STATE_VERSION,
    decode_key_state,
    encode_key_state,
    keys_of,
    remove_key,
    require_layouts,
)
from flowcore.process.isolation import IsolatedCalls
from flowcore.process.outputs import Downstream, ProcessRows, outputs_of

__all__ = ["KeyedProcesses"]

KEY = "@key_"
_KEYS_PER_PIECE = 4096


@dataclass(frozen=True, kw_only=True)
class KeyedProcesses:
    """Configuration of a keyed process function.

    Attributes:
        name: The operator's name, for errors.
        function: The user's; what is opened is shared by all groups that this object opens.
        keys: The key's columns; none for one key for all.
        values: The columns of a record as the function sees it.
        timestamp: The column of the records' timestamps, a 64-bit integer.
        rows: The columns of records.
        results: The columns of what it puts out.
        side_outputs: The columns of what else it puts out, by name.
        places: Columns of records that say where one was, and go on with what is made of it.
        topics: By number, where the first three of these are a topic's number, partition and offset.
        keyed: Results carry their key, as `key_fields`; not from a function of batches, which has no one key.
        dead_letters: Which failures are sent as dead letters; None where each stops the query.
        downstream: Functions that process the results; rows are made of their outputs.
    """

    name: str
    function: KeyedProcessFunction
    keys: tuple[str, ...]
    values: tuple[str, ...]
    timestamp: str
    rows: pa.Schema
    results: pa.Schema
    side_outputs: Mapping[str, pa.Schema]
    places: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    keyed: bool = False
    dead_letters: DeadLetters | None = None
    downstream: Downstream | None = None

    @property
    def layout(self) -> str:
        """What a key keeps; what its states are is in the header."""
        return f"process by {', '.join(self.keys)}"

    @property
    def outputs(self) -> Mapping[str, pa.Schema]:
        """Results or what becomes of them, side outputs, and letters."""
        found = outputs_of(self)
        return (
            found
            if self.dead_letters is None
            else {**found, DEAD_LETTERS: self.dead_letters.schema(self.rows)}
        )

    @property
    def key_fields(self) -> Sequence[pa.Field[Any]]:
        """The columns of a result's key, under names that no column of a user has."""
        names = self.keys if self.keyed else ()
        return [self.rows.field(name).with_name(f"{KEY}{name}") for name in names]

    def place_of(self, rows: pa.RecordBatch, place: int) -> str | None:
        """Where a record was, None if that is not known."""
        if not self.topics:
            return None
        number, partition, offset = (rows.column(name)[place].as_py() for name in self.places[:3])
        return f"{self.topics[number]}[{partition}]@{offset}"

    def open(self) -> _Group:
        """A key group without state."""
        return _Group(self)

    @cached_property
    def opened(self) -> ProcessOperator:
        """The function, opened in this task."""
        with wrap_errors(self.name):
            config = ProcessConfig(function=self.function, side_outputs=tuple(self.side_outputs))
            return ProcessOperator(config)

    def close(self) -> None:
        """Close the function if it is open; who asks for it again opens it again."""
        if self.downstream is not None:
            self.downstream.close()
        opened = self.__dict__.pop("opened", None)
        if opened is not None:
            with wrap_errors(self.name):
                opened.close()


class _Group:
    def __init__(self, of: KeyedProcesses) -> None:
        self._of = of
        self._state = ProcessState()
        self._advances = 0
        self._rows = ProcessRows(of)
        self._isolates = False
        self._failed = False

    @property
    def wake_ms(self) -> int | None:
        """When a timer of the clock is due, or something expires."""
        times = (self._state.processing_timers.next_ms, self._state.expiries.next_ms)
        return min((time for time in times if time is not None), default=None)

    def advance_clock(self, clock_ms: int, out: StepOutputs) -> None:
        """What expires, then timers of the clock that are due."""
        before_ms = self._state.clock_ms
        self._advances += 1
        with self._timers("clock", out):
            seen = self._of.opened.advance_clock(self._state, clock_ms)
        self._rows.put(seen, out, lambda result: self._timer(result, "clock", before_ms))

    def attributes(self, attributes: RecordAttributes, out: StepOutputs) -> None:  # noqa: ARG002 - puts out nothing
        """The function may ask for them."""
        self._state.backlog = attributes.backlog

    def rows(self, rows: pa.RecordBatch, out: StepOutputs) -> None:
        """Records, one by one, or at once for a function of batches."""
        keys = python_keys([rows.column(name) for name in self._of.keys], rows.num_rows)
        times = rows.column(self._of.timestamp).to_pylist()
        opened = self._of.opened
        batch = rows.select(list(self._of.values)) if opened.config.function.by_batch() else None
        if self._isolates:
            self._isolate_rows(keys, times, batch, rows, out)
            return
        with wrap_errors(self._of.name, lambda _: self._of_record(rows, opened.current.origin, keys)):
            if batch is not None:
                seen = opened.process_batch(self._state, keys, times, batch)
            else:
                seen = opened.process(self._state, map(KeyedRecord, keys, self._records(rows), times))
        self._rows.put(seen, out, lambda _: None, rows)

    def isolate_failures(self) -> bool:
        """See `flowcore.keyed.operator.SupportsFailureIsolation`."""
        self._isolates = self._of.dead_letters is not None
        return self._isolates

    def _isolate_rows(
        self, keys: Sequence[Any], times: Sequence[int | None], batch: pa.RecordBatch | None,
        rows: pa.RecordBatch, out: StepOutputs,
    ) -> None:  # fmt: skip
        """Records, so that those that fail leave as letters."""
        opened = self._of.opened
        calls = IsolatedCalls(opened, self._rows.require)
        if batch is not None:
            for start, end, seen in calls.batches(self._state, keys, times, batch):
                self._rows.put(seen, out, lambda _: None, rows.slice(start, end - start))
        else:
            with calls:
                seen = opened.process(self._state, map(KeyedRecord, keys, self._records(rows), times))
            self._rows.put(seen, out, lambda _: None, rows)
        name = self._of.name
        failures = [
            Failure(
                name,
                to_function_error(name, each.error, self._of_record(rows, each.origin, keys)),
                each.origin,
            )
            for each in calls.failed
        ]
        self._leave(failures, rows, out)

    def _leave(self, failures: Sequence[Failure], rows: pa.RecordBatch, out: StepOutputs) -> None:
        if failures and self._of.dead_letters is not None:
            self._failed = True
            out.rows(DEAD_LETTERS, self._of.dead_letters.written(failures, rows))

    @contextmanager
    def _timers(self, clock: str, out: StepOutputs) -> Iterator[None]:
        """Around calls for timers: those that fail leave as letters, if failures are minded."""
        name, current = self._of.name, self._of.opened.current
        if not self._isolates:
            with wrap_errors(name, lambda _: _of_timer(current.key, current.timestamp_ms)):
                yield
            return
        calls = IsolatedCalls(self._of.opened, self._rows.require)
        with calls:
            yield
        failures = [
            Failure(
                name,
                to_function_error(name, each.error, _of_timer(each.key, each.timestamp_ms)),
                content={
                    "key": key_by_name(self._of.keys, each.key),
                    "clock": clock,
                    "time_ms": each.timestamp_ms,
                },
            )
            for each in calls.failed
        ]
        self._leave(failures, pa.RecordBatch.from_pylist([], schema=self._of.rows), out)

    def advance_watermark(self, watermark_ms: int, out: StepOutputs) -> None:
        """Timers of event time that are due."""
        before_ms = self._state.watermark_ms
        self._advances += 1
        with self._timers("event", out):
            seen = self._of.opened.advance_watermark(self._state, watermark_ms)
        self._rows.put(seen, out, lambda result: self._timer(result, "event", before_ms))

    def status(self, status: WatermarkStatus, out: StepOutputs) -> None:
        """Nothing changes for timers."""

    def marker(self, marker: LatencyMarker, out: StepOutputs) -> None:
        """It follows what is out."""
        out.markers.append(marker)

    def finish(self, out: StepOutputs, *, idle: bool) -> None:  # noqa: ARG002 - a key group's signature
        """Nothing is held back; failures are minded until a step has none."""
        self._isolates, self._failed = self._isolates and self._failed, False

    def header(self) -> Mapping[str, Any]:
        """Both clocks, how often they moved, backlog, and what the function keeps."""
        return {
            "watermark_ms": self._state.watermark_ms,
            "clock_ms": self._state.clock_ms,
            "advances": self._advances,
            "backlog": self._state.backlog,
            "states": {name: each.layout for name, each in self._of.opened.declared.items()},
        }

    def delta(self) -> bytes | None:
        """The keys that were touched."""
        touched = list(self._state.touched)
        self._state.touched.clear()
        return self._written(touched) if touched else None

    def snapshot(self) -> Iterator[bytes]:
        """All keys."""
        self._state.touched.clear()
        keys = list(keys_of(self._state))
        for start in range(0, len(keys), _KEYS_PER_PIECE):
            yield self._written(keys[start : start + _KEYS_PER_PIECE])

    def restore(self, header: Mapping[str, Any], pieces: Iterator[bytes]) -> None:
        """Take what was written."""
        require_layouts(header.get("states", {}), self._of.opened.declared)
        self._state.watermark_ms = header.get("watermark_ms", self._state.watermark_ms)
        self._state.clock_ms = header.get("clock_ms", self._state.clock_ms)
        self._advances = header.get("advances", self._advances)
        self._state.backlog = header.get("backlog", self._state.backlog)
        for piece in pieces:
            for entry in _read(piece):
                remove_key(from_plain(entry["key"]), self._state)
                decode_key_state(entry, self._state, self._of.opened.declared)
        self._state.touched.clear()

    def _written(self, keys: Iterable[Any]) -> bytes:
        return (
            bytes([STATE_VERSION]) + json.dumps([encode_key_state(key, self._state) for key in keys]).encode()
        )

    def _records(self, rows: pa.RecordBatch) -> Iterable[dict[str, Any]]:
        names = self._of.values
        lists = [python_values(rows.column(name)) for name in names]
        if not names:
            return ({} for _ in range(rows.num_rows))
        return (dict(zip(names, each, strict=True)) for each in zip(*lists, strict=True))

    def _of_record(self, rows: pa.RecordBatch, origin: int | None, keys: Sequence[Any]) -> str:
        """Which record the function is at; of a batch its first."""
        batch = " the batch that begins with" if origin is None else ""
        key = f" for{batch} key {keys[origin or 0]!r}"
        place = self._of.place_of(rows, origin or 0)
        return key if place is None else f"{key} at {place}"

    def _timer(self, result: ProcessResult, clock: str, before_ms: int) -> str:
        """A time is reached once. A timer that was asked for behind it is told apart by the advance."""
        named = key_by_name(self._of.keys, result.key)
        key = json.dumps({name: to_plain(value) for name, value in named.items()})
        time_ms = result.timestamp_ms
        late = time_ms is not None and time_ms <= before_ms
        return f"{key}:{clock}:{time_ms}{f':{self._advances}' if late else ''}"


def _of_timer(key: Any, time_ms: int | None) -> str:
    return f" at the timer of key {key!r}, {time_ms} ms"


def _read(piece: bytes) -> list[Mapping[str, Any]]:
    if piece[:1] != bytes([STATE_VERSION]):
        msg = (
            f"state of version {piece[0] if piece else 'none'}, this flowcore reads {STATE_VERSION}: it "
            "would be misread; run the flowcore that wrote it, or start a new checkpoint"
        )
        raise StateError(msg)
    found: list[Mapping[str, Any]] = json.loads(piece[1:])
    return found
