"""An in-memory harness: what does a keyed process function do with these records, watermarks and times?

It runs the very logic that runs in a flow, without Spark, Kafka or a real clock. Each step returns what
came out of it; all that ever came out is kept too.

>>> from flowcore import KeyedProcessFunction
>>> class Silence(KeyedProcessFunction):
...     '''Says which keys have had no record for a second.'''
...     def open(self, context):
...         self.last = context.value_state("last", "BIGINT")
...     def process(self, record, context):
...         context.delete_event_timer(self.last.get(0) + 1000)
...         self.last.set(context.timestamp_ms)
...         context.register_event_timer(context.timestamp_ms + 1000)
...     def on_timer(self, time_ms, context):
...         yield {"sensor": context.key, "silent_since_ms": self.last.get()}
>>> harness = ProcessHarness(Silence())
>>> _ = harness.feed(("a", {"degrees": 20}, 100), ("a", {"degrees": 21}, 700), ("b", {"degrees": 9}, 800))
>>> harness.restart()
>>> [(result.key, result.value["silent_since_ms"]) for result in harness.watermark(1700).results]
[('a', 700)]
>>> len(harness.end_of_input().results), len(harness.results)
(1, 2)
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pyarrow as pa

from flowcore.process import (
    KeyedProcessFunction,
    KeyedRecord,
    ProcessConfig,
    ProcessEmissions,
    ProcessOperator,
    ProcessResult,
    ProcessState,
    restore,
    snapshot,
)
from flowcore.testing.clock import ManualClock

__all__ = ["ProcessHarness"]


class ProcessHarness:
    """One keyed process function in memory.

    Args:
        function: The user's. A restart goes on with a copy of it as it was given, so that what it keeps in
            itself and not in states is lost, as in a flow.
        side_outputs: Names of what it puts out beside its results.
        clock: A clock that others look at too; a new one, at 0, if not given.

    Attributes:
        results: Every output, in order.
        side_outputs: Every output beside them by name, in order.
        batches: Every record batch that a function of batches has returned.
    """

    def __init__(
        self,
        function: KeyedProcessFunction,
        side_outputs: Sequence[str] = (),
        clock: ManualClock | None = None,
    ) -> None:
        self.clock = ManualClock() if clock is None else clock
        self.results: list[ProcessResult] = []
        self.side_outputs: dict[str, list[ProcessResult]] = {name: [] for name in side_outputs}
        self.batches: list[pa.RecordBatch] = []
        self._unopened = copy.deepcopy(function)
        self._operator = ProcessOperator(ProcessConfig(function=function, side_outputs=tuple(side_outputs)))
        self._state = ProcessState(clock_ms=self.clock())

    def feed(self, *rows: Sequence[Any]) -> ProcessEmissions:
        """Put records in; as one batch, if the function takes batches.

        Args:
            rows: Key, record and, if it has one, timestamp in milliseconds.
        """
        records = [KeyedRecord(*row) for row in rows]
        if self.clock() != self._state.clock_ms:
            self._kept(self._operator.advance_clock(self._state, self.clock()))
        if not self._operator.config.function.by_batch():
            return self._kept(self._operator.process(self._state, records))
        batch = pa.RecordBatch.from_pylist([record.value for record in records])
        times_ms = [record.timestamp_ms for record in records]
        keys = [record.key for record in records]
        return self._kept(self._operator.process_batch(self._state, keys, times_ms, batch))

    def watermark(self, watermark_ms: int) -> ProcessEmissions:
        """Let event time come this far."""
        return self._kept(self._operator.advance_watermark(self._state, watermark_ms))

    def backlog(self, *, backlog: bool) -> None:
        """Let the records that follow be history, or news."""
        self._state.backlog = backlog

    def end_of_input(self) -> ProcessEmissions:
        """Let the input end."""
        return self._kept(self._operator.end_of_input(self._state))

    def move_clock(self, clock_ms: int) -> ProcessEmissions:
        """Let the clock move to a time."""
        self.clock.move_to(clock_ms)
        return self._kept(self._operator.advance_clock(self._state, clock_ms))

    def let_pass(self, length: timedelta) -> ProcessEmissions:
        """Let time pass by the clock."""
        return self.move_clock(self.clock.advance(length))

    def restart(self) -> None:
        """Write the state, close the function, forget everything else, and read it back.

        Raises:
            StateError: A user's state cannot be written.
        """
        written = json.dumps(self.snapshot())
        self._operator.close()
        function = copy.deepcopy(self._unopened)
        config = ProcessConfig(function=function, side_outputs=self._operator.config.side_outputs)
        self._operator = ProcessOperator(config)
        self._state = restore(json.loads(written), self._operator.declared)

    def snapshot(self) -> dict[str, Any]:
        """The state as it is written: to look into, and to compare."""
        return snapshot(self._state, self._operator.declared)

    @property
    def watermark_ms(self) -> int:
        """How far event time has come."""
        return self._state.watermark_ms

    def _kept(self, seen: ProcessEmissions) -> ProcessEmissions:
        self.results += seen.results
        self.batches += seen.batches
        for name, records in seen.side_outputs.items():
            self.side_outputs[name] += records
        return seen
