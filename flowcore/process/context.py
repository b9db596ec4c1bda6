"""The context: what does a function see of key and time, and what may it ask for?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flowcore.elements import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from flowcore.errors import ElementError, FunctionError, NoTimestampError
from flowcore.process.current import Current

__all__ = ["ProcessContext"]


class ProcessContext:
    """What a function is given with each record and timer. Times are milliseconds since 1970, UTC."""

    def __init__(self, current: Current, side_outputs: Sequence[str]) -> None:
        self._current = current
        self._side_outputs = tuple(side_outputs)

    @property
    def key(self) -> Any:
        """The key; a function of batches sets it before it asks for states or timers."""
        return self._current.key

    @key.setter
    def key(self, key: Any) -> None:
        self._current.key = key

    @property
    def timestamp_ms(self) -> int:
        """When the record happened, or for when the timer was set.

        Raises:
            NoTimestampError: The record has no timestamp.
        """
        if self._current.timestamp_ms is None:
            msg = (
                "timestamp_ms of a record without one: it was not read as part of a stream with event time; "
                "set a watermark strategy on its source, for instance watermark=monotonous()"
            )
            raise NoTimestampError(msg)
        return self._current.timestamp_ms

    @property
    def timestamps_ms(self) -> Sequence[int | None]:
        """When the rows of a batch happened, None for those without timestamp."""
        return self._current.timestamps_ms

    @property
    def watermark_ms(self) -> int:
        """How far event time has come; the smallest timestamp if that is not known yet."""
        return self._current.state.watermark_ms

    @property
    def clock_ms(self) -> int:
        """The clock."""
        return self._current.state.clock_ms

    @property
    def is_backlog(self) -> bool:
        """What comes is history, not news: what is sent on meanwhile, soon replaced, may be left out."""
        return self._current.state.backlog

    @property
    def input_ended(self) -> bool:
        """No record will follow. A function whose timers ask for timers for ever has to stop then."""
        return self.watermark_ms == MAX_TIMESTAMP_MS

    def register_event_timer(self, time_ms: int) -> None:
        """Have ``on_timer`` called for this key once the watermark reaches this time.

        Asking twice for one time is asking once. A time that the watermark has reached already is due when
        it advances next.

        Raises:
            ElementError: It is no time.
        """
        self._current.state.event_timers.add(self.key, _time(time_ms))

    def register_processing_timer(self, time_ms: int) -> None:
        """Have ``on_timer`` called for this key once the clock reaches this time."""
        self._current.state.processing_timers.add(self.key, _time(time_ms))

    def delete_event_timer(self, time_ms: int) -> None:
        """Forget a timer; nothing happens if there is none."""
        self._current.state.event_timers.discard(self.key, time_ms)

    def delete_processing_timer(self, time_ms: int) -> None:
        """Forget a timer; nothing happens if there is none."""
        self._current.state.processing_timers.discard(self.key, time_ms)

    def side_output(self, name: str, record: Mapping[str, Any]) -> None:
        """Put a record out beside the results.

        Raises:
            FunctionError: No side output of this name was declared.
        """
        if name not in self._side_outputs:
            known = ", ".join(self._side_outputs) or "none"
            msg = (
                f"side output {name!r} was not declared (declared: {known}): the record would go nowhere; "
                "pass side_outputs={...} to .process(...)"
            )
            raise FunctionError(msg)
        self._current.emissions.side_outputs.setdefault(name, []).append(self._current.result(record))


def _time(time_ms: int) -> int:
    if not isinstance(time_ms, int) or not MIN_TIMESTAMP_MS <= time_ms <= MAX_TIMESTAMP_MS:
        msg = (
            f"timer at {time_ms!r}: that is no time in 64-bit milliseconds and would never come; pass an int"
        )
        raise ElementError(msg)
    return time_ms
