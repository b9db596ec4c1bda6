"""The base class of users' keyed process functions, and the context that it gets with records and timers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flowcore.elements import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from flowcore.errors import ElementError, FunctionError, NoTimestampError
from flowcore.process.current import Current
from flowcore.process.opening import OpenContext

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["KeyedProcessFunction", "Outputs", "ProcessContext", "RecordMapping"]

RecordMapping = Mapping[str, Any]
"""A record: values by column."""

Outputs = Iterable[RecordMapping] | None
"""What a function returns or yields: records of its schema, or nothing."""


class KeyedProcessFunction:
    """Processes records and timers of a key; a base class.

    One object serves all keys of a worker. Data of a key belongs into states, which are declared in `open`
    and are read and written for the key of the current record or timer. A function has `process`, or
    `process_batch` where whole columns are faster.
    """

    def open(self, context: OpenContext) -> None:
        """Declare states and open resources; called once in a worker, before anything else."""

    def process(self, record: RecordMapping, context: ProcessContext) -> Outputs:
        """Process one record."""
        raise NotImplementedError

    def process_batch(
        self, keys: Sequence[Any], batch: pa.RecordBatch, context: ProcessContext
    ) -> Iterable[pa.RecordBatch] | None:
        """Process many records of many keys at once, in order of arrival.

        Set ``context.key`` to access states and timers of a key. `ProcessContext.timestamps_ms` has the rows'
        timestamps. The outputs belong to no single record and have no timestamp.

        Args:
            keys: The key of each row.
            batch: The rows.
            context: As for `process`, without a current key.
        """
        raise NotImplementedError

    def on_timer(self, time_ms: int, context: ProcessContext) -> Outputs:
        """Process a timer of the key that is due."""

    def close(self) -> None:
        """Release resources; called when the worker ends, or its task in a bounded stage."""

    @classmethod
    def by_batch(cls) -> bool:
        """Whether the function takes batches."""
        return cls.process_batch is not KeyedProcessFunction.process_batch


class ProcessContext:
    """Key, time, timers and side outputs of the current call. Times are milliseconds since 1970, UTC."""

    def __init__(self, current: Current, side_outputs: Sequence[str]) -> None:
        self._current = current
        self._side_outputs = tuple(side_outputs)

    @property
    def key(self) -> Any:
        """The current key; a function of batches sets it before it accesses states or timers."""
        return self._current.key

    @key.setter
    def key(self, key: Any) -> None:
        self._current.key = key

    @property
    def timestamp_ms(self) -> int:
        """The timestamp of the record, or the time of the timer.

        Raises:
            NoTimestampError: The record has no timestamp.
        """
        if self._current.timestamp_ms is None:
            msg = self._current.no_timestamps or (
                "timestamp_ms of a record without timestamp: its stream was read without event time; set a "
                "watermark strategy on its source, for instance watermark=monotonous()"
            )
            raise NoTimestampError(msg)
        return self._current.timestamp_ms

    @property
    def timestamps_ms(self) -> Sequence[int | None]:
        """The timestamps of the rows of a batch, None for rows without timestamp.

        Raises:
            NoTimestampError: No record of the stream has a timestamp.
        """
        if self._current.no_timestamps is not None:
            raise NoTimestampError(self._current.no_timestamps)
        return self._current.timestamps_ms

    @property
    def watermark_ms(self) -> int:
        """The current watermark; the smallest timestamp before the first one."""
        return self._current.state.watermark_ms

    @property
    def processing_time_ms(self) -> int:
        """The current processing time."""
        return self._current.state.processing_time_ms

    @property
    def is_backlog(self) -> bool:
        """The records are backlog: outputs that are soon replaced may be left out."""
        return self._current.state.backlog

    @property
    def input_ended(self) -> bool:
        """No record follows. A function whose timers register timers must stop doing so."""
        return self.watermark_ms == MAX_TIMESTAMP_MS

    def register_event_timer(self, time_ms: int) -> None:
        """Call ``on_timer`` for this key once the watermark reaches this time.

        Registering a time twice has no effect. A timer set in the past fires at the next watermark.

        Raises:
            ElementError: The time is not a 64-bit integer.
        """
        self._current.state.event_timers.add(self.key, _require_time(time_ms))

    def register_processing_timer(self, time_ms: int) -> None:
        """Call ``on_timer`` for this key once processing time reaches this time."""
        self._current.state.processing_timers.add(self.key, _require_time(time_ms))

    def delete_event_timer(self, time_ms: int) -> None:
        """Cancel a timer, if there is one."""
        self._current.state.event_timers.discard(self.key, time_ms)

    def delete_processing_timer(self, time_ms: int) -> None:
        """Cancel a timer, if there is one."""
        self._current.state.processing_timers.discard(self.key, time_ms)

    def side_output(self, name: str, record: Mapping[str, Any]) -> None:
        """Emit a record to a side output.

        Raises:
            FunctionError: No side output of this name was declared.
        """
        if name not in self._side_outputs:
            known = ", ".join(self._side_outputs) or "none"
            msg = (
                f"side output {name!r} was not declared (declared: {known}): the record would be lost; pass "
                "side_outputs={...} to .process(...)"
            )
            raise FunctionError(msg)
        self._current.emissions.side_outputs.setdefault(name, []).append(self._current.result(record))


def _require_time(time_ms: int) -> int:
    if not isinstance(time_ms, int) or not MIN_TIMESTAMP_MS <= time_ms <= MAX_TIMESTAMP_MS:
        msg = f"timer at {time_ms!r}: not a time in 64-bit milliseconds, it would never fire; pass an int"
        raise ElementError(msg)
    return time_ms
