"""The operator: calls a keyed process function with records and timers.

Logic only: state is passed in and changed, outputs are returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flowcore.process.current import Current, ProcessEmissions
from flowcore.process.function import KeyedProcessFunction, Outputs, ProcessContext
from flowcore.process.opening import OpenContext
from flowcore.process.state import ProcessState
from flowcore.process.states import Declaration
from flowcore.windows.state import KeyedRecord

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ProcessConfig", "ProcessOperator"]

Call = Callable[[Callable[..., Outputs], Any], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessConfig:
    """Configuration of a process function."""

    function: KeyedProcessFunction
    side_outputs: tuple[str, ...] = ()
    no_timestamps: str | None = None
    """The error for a function that asks for a timestamp, if no record of the stream has one."""


class ProcessOperator:
    """Processes records, watermarks and processing time; the constructor opens the function.

    Attributes:
        current: The current call, or the last one if the function raised.
        call: Calls a method of the function: `call_function`, unless failures are isolated.

    Raises:
        StateError: A state is declared twice.
    """

    def __init__(self, config: ProcessConfig) -> None:
        self.config = config
        self.current = Current(config.no_timestamps)
        self.call: Call = self.call_function
        self._context = ProcessContext(self.current, config.side_outputs)
        opening = OpenContext(self.current)
        config.function.open(opening)
        opening.close()
        self.declared: Mapping[str, Declaration] = opening.declared

    def close(self) -> None:
        """Close the function."""
        self.config.function.close()

    def call_function(self, function: Callable[..., Outputs], argument: Any) -> None:
        """Call a method of the function with a record or a time, and collect its outputs."""
        outputs = function(argument, self._context)
        self.current.emissions.results.extend(map(self.current.result, outputs or ()))

    def process(self, state: ProcessState, records: Iterable[KeyedRecord]) -> ProcessEmissions:
        """Process records one by one."""
        current, call, function = self.current, self.call, self.config.function.process
        emissions = current.begin(state)
        for origin, (key, record, timestamp_ms) in enumerate(records):
            current.key, current.timestamp_ms, current.origin = key, timestamp_ms, origin
            call(function, record)
        return emissions

    def process_batch(
        self,
        state: ProcessState,
        keys: Sequence[Any],
        timestamps_ms: Sequence[int | None],
        batch: pa.RecordBatch,
    ) -> ProcessEmissions:
        """Process many records: at once if the function takes batches, otherwise one by one."""
        function = self.config.function
        if not function.by_batch():
            from flowcore.keyed.key_index import to_python_records  # noqa: PLC0415 - declaring needs no NumPy

            return self.process(state, map(KeyedRecord, keys, to_python_records(batch), timestamps_ms))
        emissions = self.current.begin(state, timestamps_ms)
        emissions.batches += function.process_batch(keys, batch, self._context) or ()
        return emissions

    def advance_watermark(self, state: ProcessState, watermark_ms: int) -> ProcessEmissions:
        """Advance the watermark; one that is not above the current watermark is ignored."""
        emissions = self.current.begin(state)
        if watermark_ms > state.watermark_ms:
            state.watermark_ms = watermark_ms
            while (due := state.event_timers.next_due(watermark_ms)) is not None:
                self._on_timer(*due)
        return emissions

    def advance_processing_time(self, state: ProcessState, processing_time_ms: int) -> ProcessEmissions:
        """Advance processing time, which never goes back.

        Expired entries are removed before timers fire.
        """
        emissions = self.current.begin(state)
        state.processing_time_ms = max(state.processing_time_ms, processing_time_ms)
        while (expiring := state.expiries.next_due(state.processing_time_ms)) is not None:
            (key, name), _ = expiring
            self._expire(state, key, name)
        while (due := state.processing_timers.next_due(state.processing_time_ms)) is not None:
            self._on_timer(*due)
        return emissions

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
            if end_ms > state.processing_time_ms:
                state.expiries.add((key, name), end_ms)
                return
            del cell[entry]
        del state.cells[key][name]
        if not state.cells[key]:
            del state.cells[key]
