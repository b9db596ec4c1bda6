"""The operator: from records, watermarks and the clock to what a keyed process function puts out.

Logic only: state is passed in and changed, what comes out is returned. It does not know where records
come from, where state is kept or who merges watermarks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flowcore.elements import MAX_TIMESTAMP_MS
from flowcore.process.context import ProcessContext
from flowcore.process.current import Current
from flowcore.process.function import KeyedProcessFunction, Outputs
from flowcore.process.opening import OpenContext
from flowcore.process.results import ProcessEmissions
from flowcore.process.state import ProcessState
from flowcore.process.states import Declaration
from flowcore.windows.rows import KeyedRecord

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ProcessConfig", "ProcessOperator"]

Call = Callable[[Callable[..., Outputs], Any], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessConfig:
    """What is done.

    Args:
        function: The user's.
        side_outputs: Names of what it puts out beside its results.
    """

    function: KeyedProcessFunction
    side_outputs: tuple[str, ...] = ()


class ProcessOperator:
    """What is done with records, watermarks and the clock; making one opens the function.

    Args:
        config: What to do.

    Attributes:
        declared: The states of the function by name.
        current: Which record or timer it is about, or was when the function raised.
        call: How methods of the function are called; `called`, unless failures are taken back.

    Raises:
        StateError: A state is declared twice.
    """

    def __init__(self, config: ProcessConfig) -> None:
        self.config = config
        self.current = Current()
        self.call: Call = self.called
        self._context = ProcessContext(self.current, config.side_outputs)
        opening = OpenContext(self.current)
        config.function.open(opening)
        opening.close()
        self.declared: Mapping[str, Declaration] = opening.declared

    def close(self) -> None:
        """Close the function."""
        self.config.function.close()

    def called(self, function: Callable[..., Outputs], argument: Any) -> None:
        """Call a method of the function with a record or a time, and take what it puts out."""
        outputs = function(argument, self._context)
        self.current.emissions.results.extend(map(self.current.result, outputs or ()))

    def process(self, state: ProcessState, records: Iterable[KeyedRecord]) -> ProcessEmissions:
        """Give records to the function, one after the other."""
        current, call, function = self.current, self.call, self.config.function.process
        seen = current.begin(state)
        for origin, (key, record, timestamp_ms) in enumerate(records):
            current.key, current.timestamp_ms, current.origin = key, timestamp_ms, origin
            call(function, record)
        return seen

    def process_batch(
        self,
        state: ProcessState,
        keys: Sequence[Any],
        timestamps_ms: Sequence[int | None],
        batch: pa.RecordBatch,
    ) -> ProcessEmissions:
        """Give many records to the function: at once if it takes batches, else one after the other."""
        function = self.config.function
        if not function.by_batch():
            return self.process(state, map(KeyedRecord, keys, batch.to_pylist(), timestamps_ms))
        seen = self.current.begin(state, timestamps_ms)
        seen.batches += function.process_batch(keys, batch, self._context) or ()
        return seen

    def advance_watermark(self, state: ProcessState, watermark_ms: int) -> ProcessEmissions:
        """Let event time come this far; a watermark that is not above the current one is ignored."""
        seen = self.current.begin(state)
        if watermark_ms > state.watermark_ms:
            state.watermark_ms = watermark_ms
            while (due := state.event_timers.next_due(watermark_ms)) is not None:
                self._on_timer(*due)
        return seen

    def end_of_input(self, state: ProcessState) -> ProcessEmissions:
        """No record will follow: the maximum watermark."""
        return self.advance_watermark(state, MAX_TIMESTAMP_MS)

    def advance_clock(self, state: ProcessState, clock_ms: int) -> ProcessEmissions:
        """Let the clock move to this time; one that was put back stands still until it catches up.

        What has expired by then is gone before any timer sees it.
        """
        seen = self.current.begin(state)
        state.clock_ms = max(state.clock_ms, clock_ms)
        while (expiring := state.expiries.next_due(state.clock_ms)) is not None:
            (key, name), _ = expiring
            self._expire(state, key, name)
        while (due := state.processing_timers.next_due(state.clock_ms)) is not None:
            self._on_timer(*due)
        return seen

    def _on_timer(self, key: Any, time_ms: int) -> None:
        self.current.key, self.current.timestamp_ms, self.current.origin = key, time_ms, None
        self.call(self.config.function.on_timer, time_ms)

    def _expire(self, state: ProcessState, key: Any, name: str) -> None:
        ttl_ms = self.declared[name].ttl_ms
        cell = state.cells[key][name]
        state.touched.add(key)
        while cell and ttl_ms is not None:
            entry = next(iter(cell))
            end_ms = cell[entry].used_ms + ttl_ms
            if end_ms > state.clock_ms:
                state.expiries.add((key, name), end_ms)
                return
            del cell[entry]
        del state.cells[key][name]
        if not state.cells[key]:
            del state.cells[key]
