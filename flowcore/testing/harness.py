"""In-memory harnesses: windows and keyed process functions in a test, without Spark, Kafka or a real clock.

They run the operators of live queries. Each step returns its outputs, and a harness keeps all outputs so far.

>>> from operator import add
>>> from flowcore.windows import TumblingWindows, WindowConfig, WindowReduce
>>> tumbling = TumblingWindows(1000)
>>> harness = WindowHarness(WindowConfig(assigner=tumbling, function=WindowReduce(add), late="side-output"))
>>> _ = harness.feed(("a", 2, 100), ("a", 3, 900), ("b", 5, 1700))
>>> [(result.key, result.value, result.window_start_ms) for result in harness.watermark(999).results]
[('a', 5, 0)]
>>> harness.restart()
>>> harness.feed(("a", 7, 950)).late
[KeyedRecord(key='a', value=7, timestamp_ms=950)]
>>> [(result.key, result.value) for result in harness.end_of_input().results]
[('b', 5)]
>>> len(harness.results), len(harness.late), harness.dropped_records
(2, 1, 0)

A window of processing time:

>>> from datetime import timedelta
>>> harness = WindowHarness(WindowConfig(assigner=tumbling, function=WindowReduce(add), time="processing"))
>>> _ = harness.feed(("a", 2))
>>> [result.value for result in harness.let_pass(timedelta(seconds=1)).results]
[2]

A keyed process function:

>>> from flowcore import KeyedProcessFunction
>>> class Silence(KeyedProcessFunction):
...     '''Reports the keys that have had no record for a second.'''
...     def open(self, context):
...         self.last = context.value_state("last", "BIGINT")
...     def process(self, record, context):
...         context.delete_event_timer(self.last.get(0) + 1000)
...         self.last.set(context.timestamp_ms)
...         context.register_event_timer(context.timestamp_ms + 1000)
...     def on_timer(self, time_ms, context):
...         yield {"sensor": context.key, "silent_since_ms": self.last.get()}
>>> process = ProcessHarness(Silence())
>>> _ = process.feed(("a", {"degrees": 20}, 100), ("a", {"degrees": 21}, 700), ("b", {"degrees": 9}, 800))
>>> process.restart()
>>> [(result.key, result.value["silent_since_ms"]) for result in process.watermark(1700).results]
[('a', 700)]
>>> len(process.end_of_input().results), len(process.results)
(1, 2)
"""

import copy
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Generic, TypeVar

import pyarrow as pa

from flowcore import process, windows
from flowcore.durations import MILLISECOND
from flowcore.elements import MAX_TIMESTAMP_MS
from flowcore.errors import ElementError
from flowcore.process.codec import decode_keys, encode_key, encode_keys, keys_of
from flowcore.windows.codec import decode_windows, encode_window_key, encode_windows

__all__ = ["ManualClock", "ProcessHarness", "WindowHarness"]


class ManualClock:
    """A clock that only moves when a test moves it.

    >>> clock = ManualClock()
    >>> clock.advance(timedelta(seconds=2))
    2000
    """

    def __init__(self, now_ms: int = 0) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        """Return the time."""
        return self.now_ms

    def move_to(self, now_ms: int) -> int:
        """Set the time and return it."""
        self.now_ms = now_ms
        return now_ms

    def advance(self, length: timedelta) -> int:
        """Advance the time and return it."""
        return self.move_to(self.now_ms + length // MILLISECOND)


def _read_rows(rows: Sequence[Sequence[Any]]) -> list[windows.KeyedRecord]:
    """The records of the rows that a test feeds.

    Raises:
        ElementError: A row has another form.
    """
    for row in rows:
        if not isinstance(row, tuple | list) or len(row) not in (2, 3):
            msg = (
                f"{row!r} is not a row: a record has a key, a value and perhaps a timestamp; pass for "
                "instance feed(('key', value, 1_000)), with None as the key where there are no keys"
            )
            raise ElementError(msg)
        for time_ms in row[2:]:
            if time_ms is not None and (not isinstance(time_ms, int) or isinstance(time_ms, bool)):
                msg = (
                    f"the timestamp {time_ms!r} of the row {row!r} is not a whole number of milliseconds "
                    "since 1970: no live record has such a timestamp; pass an int, of a datetime "
                    "int(at.timestamp() * 1000)"
                )
                raise ElementError(msg)
    return [windows.KeyedRecord(*row) for row in rows]


_E = TypeVar("_E")


class _Harness(Generic[_E]):
    """One operator with its state and a manual clock."""

    _operator: Any
    _state: Any

    def __init__(self, clock: ManualClock | None) -> None:
        self.clock = ManualClock() if clock is None else clock

    def watermark(self, watermark_ms: int) -> _E:
        """Advance event time to a watermark."""
        return self._keep(self._operator.advance_watermark(self._state, watermark_ms))

    def backlog(self, *, backlog: bool) -> None:
        """Set whether the records that follow are backlog."""
        self._state.backlog = backlog

    def end_of_input(self) -> _E:
        """End the input."""
        return self.watermark(MAX_TIMESTAMP_MS)

    def move_clock(self, processing_time_ms: int) -> _E:
        """Set processing time."""
        self.clock.move_to(processing_time_ms)
        return self._keep(self._operator.advance_processing_time(self._state, processing_time_ms))

    def let_pass(self, length: timedelta) -> _E:
        """Advance processing time by a length of time."""
        return self.move_clock(self.clock.advance(length))

    @property
    def watermark_ms(self) -> int:
        watermark_ms: int = self._state.watermark_ms
        return watermark_ms

    def _read_clock(self) -> None:
        if self.clock() > self._state.processing_time_ms:
            self._keep(self._operator.advance_processing_time(self._state, self.clock()))

    def _keep(self, seen: _E) -> _E:
        raise NotImplementedError


class WindowHarness(_Harness[windows.Emissions]):
    """A window operator in memory.

    Args:
        clock: A clock that is shared with other harnesses; a new one, at 0, if not given.

    Attributes:
        results: All outputs of windows, in order.
        late: All records of the late side output, in order.
    """

    def __init__(self, config: windows.WindowConfig, clock: ManualClock | None = None) -> None:
        super().__init__(clock)
        self.config = config
        self.results: list[windows.WindowResult] = []
        self.late: list[windows.KeyedRecord] = []
        self._operator = windows.WindowOperator(config)
        self._state = windows.WindowState(processing_time_ms=self.clock())

    def feed(self, *rows: Sequence[Any]) -> windows.Emissions:
        """Process records; if one is refused, none is processed.

        Args:
            rows: Key (None where windows are not keyed), value and, if it has one, timestamp in milliseconds.

        Raises:
            ElementError: A row has another form.
            NoTimestampError: A record that needs a timestamp has none.
            InvalidWindowError: The gap of a session is negative.
        """
        records = _read_rows(rows)
        self._read_clock()
        return self._keep(self._operator.process(self._state, records))

    def restart(self) -> None:
        """Write the state, drop everything else, and restore the state.

        Raises:
            StateError: A user's state cannot be written.
        """
        before, written = self._state, encode_windows(self._state.keys, self._state)
        self._state = windows.WindowState(
            before.watermark_ms, before.processing_time_ms, before.dropped_records, before.backlog,
            ended_ms=self._operator.ended_ms(before),
        )  # fmt: skip
        self._operator = windows.WindowOperator(self.config)
        decode_windows(written, self._state, self.config)

    def snapshot(self) -> dict[str, Any]:
        """The state as JSON-able data, to inspect and to compare."""
        state = self._state
        return {
            "watermark_ms": state.watermark_ms,
            "clock_ms": state.processing_time_ms,
            "dropped_records": state.dropped_records,
            "backlog": state.backlog,
            "keys": [encode_window_key(key, each) for key, each in state.keys.items()],
        }

    @property
    def dropped_records(self) -> int:
        """The number of late records that were dropped."""
        dropped: int = self._state.dropped_records
        return dropped

    def _keep(self, seen: windows.Emissions) -> windows.Emissions:
        self.results += seen.results
        self.late += seen.late
        return seen


class ProcessHarness(_Harness[process.ProcessEmissions]):
    """A keyed process function in memory.

    Args:
        function: The function. A restart continues with a copy of it as it was given, so that attributes that
            are not states are lost, as in a live query.
        clock: A clock that is shared with other harnesses; a new one, at 0, if not given.

    Attributes:
        results: All outputs, in order.
        side_outputs: All outputs of each side output, in order.
        batches: All record batches that ``process_batch`` has returned.
    """

    def __init__(
        self,
        function: process.KeyedProcessFunction,
        side_outputs: Sequence[str] = (),
        clock: ManualClock | None = None,
    ) -> None:
        super().__init__(clock)
        self.results: list[process.ProcessResult] = []
        self.side_outputs: dict[str, list[process.ProcessResult]] = {name: [] for name in side_outputs}
        self.batches: list[pa.RecordBatch] = []
        self._unopened = copy.deepcopy(function)
        self._operator = process.ProcessOperator(
            process.ProcessConfig(function=function, side_outputs=tuple(side_outputs))
        )
        self._state = process.ProcessState(processing_time_ms=self.clock())

    def feed(self, *rows: Sequence[Any]) -> process.ProcessEmissions:
        """Process records, as one batch if the function takes batches.

        Args:
            rows: Key, record and, if it has one, timestamp in milliseconds.

        Raises:
            ElementError: A row has another form.
        """
        records = _read_rows(rows)
        self._read_clock()
        if not self._operator.config.function.by_batch():
            return self._keep(self._operator.process(self._state, records))
        batch = pa.RecordBatch.from_pylist([record.value for record in records])
        times_ms = [record.timestamp_ms for record in records]
        keys = [record.key for record in records]
        return self._keep(self._operator.process_batch(self._state, keys, times_ms, batch))

    def restart(self) -> None:
        """Write the state, close the function, drop everything else, and restore the state.

        Raises:
            StateError: A user's state cannot be written.
        """
        before, written = self._state, encode_keys(keys_of(self._state), self._state)
        self._operator.close()
        function = copy.deepcopy(self._unopened)
        config = process.ProcessConfig(function=function, side_outputs=self._operator.config.side_outputs)
        self._operator = process.ProcessOperator(config)
        self._state = process.ProcessState(before.watermark_ms, before.processing_time_ms, before.backlog)
        decode_keys(written, self._state, self._operator.declared)

    def snapshot(self) -> dict[str, Any]:
        """The state as JSON-able data, to inspect and to compare."""
        state = self._state
        return {
            "watermark_ms": state.watermark_ms,
            "clock_ms": state.processing_time_ms,
            "backlog": state.backlog,
            "keys": [encode_key(key, state) for key in keys_of(state)],
        }

    def _keep(self, seen: process.ProcessEmissions) -> process.ProcessEmissions:
        self.results += seen.results
        self.batches += seen.batches
        for name, records in seen.side_outputs.items():
            self.side_outputs[name] += records
        return seen
