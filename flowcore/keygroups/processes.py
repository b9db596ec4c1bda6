"""Keyed process functions on key groups: every record and timer, by the pure operator.

Records become mappings, one by one, or stay a batch for a function of batches; a delta holds the keys whose
states or timers may have changed, as JSON after a version byte.

Every output has an *origin*, which is the same when a step is taken again: the record of which it was made
(of a batch its first), by the columns that say where it was; or a timer, as text. `ORDINAL` tells apart the
outputs of one origin.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from flowcore.elements import LatencyMarker, RecordAttributes, WatermarkStatus
from flowcore.errors import FunctionError, StateError
from flowcore.keygroups.emission import RESULTS, TIMESTAMP
from flowcore.keygroups.operator import Outputs
from flowcore.keygroups.records import ORDINAL
from flowcore.keygroups.slots import python_keys, python_values
from flowcore.keygroups.user_code import columns_of, of_operator
from flowcore.process import (
    KeyedProcessFunction,
    KeyedRecord,
    ProcessConfig,
    ProcessEmissions,
    ProcessOperator,
    ProcessResult,
    ProcessState,
)
from flowcore.process.codec import VERSION, decode_key, encode_key, forget_key, keys_of, require_forms
from flowcore.windows.plain import from_plain, to_plain

__all__ = ["TIMER", "KeyedProcesses"]

TIMER = "@timer"
"""Of which timer an output was made: key, clock and time; null for those of records."""
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

    @property
    def form(self) -> str:
        """What a key keeps; what its states are is in the header."""
        return f"process by {', '.join(self.keys)}"

    @property
    def outputs(self) -> Mapping[str, pa.Schema]:
        """Results and side outputs."""
        beside = [*(self.rows.field(name) for name in self.places), pa.field(TIMER, pa.string())]
        beside += [pa.field(TIMESTAMP, pa.int64()), pa.field(ORDINAL, pa.int32())]
        results = pa.schema([*self.results, *self.key_fields])
        own = {RESULTS: results, **{side(name): each for name, each in self.side_outputs.items()}}
        return {output: pa.schema([*schema, *beside]) for output, schema in own.items()}

    @property
    def key_fields(self) -> Sequence[pa.Field[Any]]:
        """The columns of a result's key, under names that no column of a user has."""
        names = self.keys if self.keyed else ()
        return [self.rows.field(name).with_name(f"{KEY}{name}") for name in names]

    def open(self) -> _Group:
        """A key group without state."""
        return _Group(self)

    @cached_property
    def opened(self) -> ProcessOperator:
        """The function, opened in this task."""
        with of_operator(self.name):
            config = ProcessConfig(function=self.function, side_outputs=tuple(self.side_outputs))
            return ProcessOperator(config)

    def close(self) -> None:
        """Close the function if it is open; who asks for it again opens it again."""
        opened = self.__dict__.pop("opened", None)
        if opened is not None:
            with of_operator(self.name):
                opened.close()


def side(name: str) -> str:
    """The output of a side output; a user may call one like `RESULTS`."""
    return f"side {name}"


class _Group:
    def __init__(self, of: KeyedProcesses) -> None:
        self._of = of
        self._state = ProcessState()
        self._advances = 0
        self._outputs = of.outputs

    @property
    def wake_ms(self) -> int | None:
        """When a timer of the clock is due, or something expires."""
        times = (self._state.processing_timers.next_ms, self._state.expiries.next_ms)
        return min((time for time in times if time is not None), default=None)

    def advance_clock(self, clock_ms: int, out: Outputs) -> None:
        """What expires, then timers of the clock that are due."""
        before_ms = self._state.clock_ms
        self._advances += 1
        with of_operator(self._of.name, self._of_timer):
            seen = self._of.opened.advance_clock(self._state, clock_ms)
        self._put(seen, out, lambda result: self._timer(result, "clock", before_ms))

    def attributes(self, attributes: RecordAttributes, out: Outputs) -> None:  # noqa: ARG002 - puts out nothing
        """The function may ask for them."""
        self._state.backlog = attributes.backlog

    def rows(self, rows: pa.RecordBatch, out: Outputs) -> None:
        """Records, one by one, or at once for a function of batches."""
        keys = python_keys([rows.column(name) for name in self._of.keys], rows.num_rows)
        times = rows.column(self._of.timestamp).to_pylist()
        opened = self._of.opened
        with of_operator(self._of.name, lambda: self._of_record(rows)):
            if opened.config.function.by_batch():
                batch = rows.select(list(self._of.values))
                seen = opened.process_batch(self._state, keys, times, batch)
            else:
                seen = opened.process(self._state, map(KeyedRecord, keys, self._records(rows), times))
        self._put(seen, out, lambda _: None, rows)

    def advance_watermark(self, watermark_ms: int, out: Outputs) -> None:
        """Timers of event time that are due."""
        before_ms = self._state.watermark_ms
        self._advances += 1
        with of_operator(self._of.name, self._of_timer):
            seen = self._of.opened.advance_watermark(self._state, watermark_ms)
        self._put(seen, out, lambda result: self._timer(result, "event", before_ms))

    def status(self, status: WatermarkStatus, out: Outputs) -> None:
        """Nothing changes for timers."""

    def marker(self, marker: LatencyMarker, out: Outputs) -> None:
        """It follows what is out."""
        out.markers.append(marker)

    def finish(self, out: Outputs, *, idle: bool) -> None:
        """Nothing is held back."""

    def header(self) -> Mapping[str, Any]:
        """Both clocks, how often they moved, backlog, and what the function keeps."""
        return {
            "watermark_ms": self._state.watermark_ms,
            "clock_ms": self._state.clock_ms,
            "advances": self._advances,
            "backlog": self._state.backlog,
            "states": {name: each.form for name, each in self._of.opened.declared.items()},
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
        require_forms(header.get("states", {}), self._of.opened.declared)
        self._state.watermark_ms = header.get("watermark_ms", self._state.watermark_ms)
        self._state.clock_ms = header.get("clock_ms", self._state.clock_ms)
        self._advances = header.get("advances", self._advances)
        self._state.backlog = header.get("backlog", self._state.backlog)
        for piece in pieces:
            for entry in _read(piece):
                forget_key(from_plain(entry["key"]), self._state)
                decode_key(entry, self._state, self._of.opened.declared)
        self._state.touched.clear()

    def _written(self, keys: Iterable[Any]) -> bytes:
        return bytes([VERSION]) + json.dumps([encode_key(key, self._state) for key in keys]).encode()

    def _records(self, rows: pa.RecordBatch) -> Iterable[dict[str, Any]]:
        names = self._of.values
        lists = [python_values(rows.column(name)) for name in names]
        if not names:
            return ({} for _ in range(rows.num_rows))
        return (dict(zip(names, each, strict=True)) for each in zip(*lists, strict=True))

    def _of_record(self, rows: pa.RecordBatch) -> str:
        """Where the record was that the function is at; of a batch its first."""
        if not self._of.topics:
            return ""
        number, partition, offset = (
            rows.column(name)[self._of.opened.current.origin or 0].as_py() for name in self._of.places[:3]
        )
        first = " the batch that begins with" if self._of.opened.config.function.by_batch() else ""
        return f" at{first} {self._of.topics[number]}[{partition}]@{offset}"

    def _of_timer(self) -> str:
        current = self._of.opened.current
        return f" at the timer of key {current.key!r}, {current.timestamp_ms} ms"

    def _timer(self, result: ProcessResult, clock: str, before_ms: int) -> str:
        """A time is reached once. A timer that was asked for behind it is told apart by the advance."""
        names = self._of.keys
        values = result.key if len(names) > 1 else (result.key,) * len(names)
        key = json.dumps({name: to_plain(value) for name, value in zip(names, values, strict=True)})
        time_ms = result.timestamp_ms
        late = time_ms is not None and time_ms <= before_ms
        return f"{key}:{clock}:{time_ms}{f':{self._advances}' if late else ''}"

    def _put(
        self,
        seen: ProcessEmissions,
        out: Outputs,
        timer: Callable[[ProcessResult], str | None],
        rows: pa.RecordBatch | None = None,
    ) -> None:
        if seen.results:
            out.rows(RESULTS, self._made(RESULTS, seen.results, timer, rows))
        for name, results in seen.side_outputs.items():
            out.rows(side(name), self._made(side(name), results, timer, rows))
        first = 0
        for batch in seen.batches:
            out.rows(RESULTS, self._whole(batch, first, rows))
            first += batch.num_rows

    def _made(
        self,
        output: str,
        results: Sequence[ProcessResult],
        timer: Callable[[ProcessResult], str | None],
        rows: pa.RecordBatch | None,
    ) -> pa.RecordBatch:
        schema = self._outputs[output]
        keys = self._of.key_fields if output == RESULTS else ()
        own = pa.schema(list(schema)[: -len(keys) - len(self._of.places) - 3])
        columns = columns_of([result.value for result in results], own, self._of.name)
        whole = [result.key if len(keys) > 1 else (result.key,) for result in results]
        columns += [pa.array([key[n] for key in whole], field.type) for n, field in enumerate(keys)]
        columns += self._places(rows, [result.origin or 0 for result in results])
        columns.append(pa.array([timer(result) for result in results], pa.string()))
        columns.append(pa.array([result.timestamp_ms for result in results], pa.int64()))
        columns.append(pa.array(_ordinals(results), pa.int32()))
        return pa.record_batch(columns, schema=schema)

    def _whole(self, batch: pa.RecordBatch, first: int, rows: pa.RecordBatch | None) -> pa.RecordBatch:
        """What a function of batches returned."""
        count = batch.num_rows
        try:
            columns = [batch.column(field.name).cast(field.type) for field in self._of.results]
        except (pa.ArrowException, KeyError) as error:
            msg = (
                f"operator {self._of.name!r}: its function returned a batch of {batch.schema.names}, none of "
                f"{self._of.results.names}: {error!r}; return batches of the declared schema"
            )
            raise FunctionError(" ".join(msg.split())) from error
        columns += self._places(rows, [0] * count)
        columns += [pa.nulls(count, pa.string()), pa.nulls(count, pa.int64())]
        columns.append(pa.array(range(first, first + count), pa.int32()))
        return pa.record_batch(columns, schema=self._outputs[RESULTS])

    def _places(self, rows: pa.RecordBatch | None, origins: Sequence[int]) -> list[pa.Array[Any]]:
        if rows is None:
            return [pa.nulls(len(origins), self._of.rows.field(name).type) for name in self._of.places]
        taken = np.array(origins, np.int64)
        return [rows.column(name).take(taken) for name in self._of.places]


def _read(piece: bytes) -> list[Mapping[str, Any]]:
    if piece[:1] != bytes([VERSION]):
        msg = (
            f"state of version {piece[0] if piece else 'none'}, this flowcore reads {VERSION}: reading it "
            "would make something else of it; go on with the one that wrote it, or start a new checkpoint"
        )
        raise StateError(msg)
    found: list[Mapping[str, Any]] = json.loads(piece[1:])
    return found


def _ordinals(results: Sequence[ProcessResult]) -> list[int]:
    """The place of each among the outputs of its origin; those of batches have one origin together."""
    found: dict[Any, int] = {}
    places = []
    for result in results:
        of_timer = result.origin is None and result.timestamp_ms is not None
        origin = (result.key, result.timestamp_ms) if of_timer else result.origin
        places.append(found.get(origin, 0))
        found[origin] = places[-1] + 1
    return places
