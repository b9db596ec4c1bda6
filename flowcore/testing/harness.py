"""An in-memory harness: what does a window do with these records, watermarks and times?

It runs the very logic that runs in a flow, without Spark, Kafka or a real clock. Each step returns what
came out of it; all that ever came out is kept too.

>>> from flowcore.windows import WindowAggregate, TumblingWindows, WindowConfig
>>> from flowcore.testing.window_functions import Sum
>>> harness = WindowHarness(
...     WindowConfig(assigner=TumblingWindows(1000), function=WindowAggregate(Sum()), late="side-output")
... )
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

A window by the clock's time:

>>> from datetime import timedelta
>>> harness = WindowHarness(
...     WindowConfig(assigner=TumblingWindows(1000), function=WindowAggregate(Sum()), time="processing")
... )
>>> _ = harness.feed(("a", 2))
>>> [result.value for result in harness.let_pass(timedelta(seconds=1)).results]
[2]
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from flowcore.testing.clock import ManualClock
from flowcore.windows import (
    Emissions,
    KeyedRecord,
    WindowConfig,
    WindowOperator,
    WindowResult,
    WindowState,
    restore,
    snapshot,
)

__all__ = ["WindowHarness"]


class WindowHarness:
    """One window operator in memory.

    Args:
        config: What it does.
        clock: A clock that others look at too; a new one, at 0, if not given.

    Attributes:
        results: Every output of a window, in order.
        late: Every record that left through the side output, in order.
    """

    def __init__(self, config: WindowConfig, clock: ManualClock | None = None) -> None:
        self.config = config
        self.clock = ManualClock() if clock is None else clock
        self.results: list[WindowResult] = []
        self.late: list[KeyedRecord] = []
        self._operator = WindowOperator(config)
        self._state = WindowState(clock_ms=self.clock())

    def feed(self, *rows: Sequence[Any]) -> Emissions:
        """Put records in, all or (if one is refused) none.

        Args:
            rows: Key, value and, if it has one, timestamp in milliseconds. The key is None where windows
                are not keyed.

        Raises:
            NoTimestampError: One has no timestamp, and needs one.
            InvalidWindowError: The gap of a session is negative.
        """
        records = [KeyedRecord(*row) for row in rows]
        self._look_at_clock()
        return self._kept(self._operator.process(self._state, records))

    def watermark(self, watermark_ms: int) -> Emissions:
        """Let event time come this far."""
        return self._kept(self._operator.advance_watermark(self._state, watermark_ms))

    def backlog(self, *, backlog: bool) -> None:
        """Let the records that follow be history, or news."""
        self._state.backlog = backlog

    def end_of_input(self) -> Emissions:
        """Let the input end."""
        return self._kept(self._operator.end_of_input(self._state))

    def move_clock(self, clock_ms: int) -> Emissions:
        """Let the clock move to a time."""
        self.clock.move_to(clock_ms)
        return self._kept(self._operator.advance_clock(self._state, clock_ms))

    def let_pass(self, length: timedelta) -> Emissions:
        """Let time pass by the clock."""
        return self.move_clock(self.clock.advance(length))

    def restart(self) -> None:
        """Write the state, forget everything else, and read it back.

        Raises:
            StateError: A user's state cannot be written.
        """
        written = json.dumps(self.snapshot())
        self._operator = WindowOperator(self.config)
        self._state = restore(json.loads(written), self.config)

    def snapshot(self) -> dict[str, Any]:
        """The state as it is written: to look into, and to compare."""
        return snapshot(self._state, self.config)

    @property
    def watermark_ms(self) -> int:
        """How far event time has come."""
        return self._state.watermark_ms

    @property
    def dropped_records(self) -> int:
        """How many records were dropped as late."""
        return self._state.dropped_records

    def _look_at_clock(self) -> None:
        if self.clock() != self._state.clock_ms:
            self._kept(self._operator.advance_clock(self._state, self.clock()))

    def _kept(self, seen: Emissions) -> Emissions:
        self.results += seen.results
        self.late += seen.late
        return seen
