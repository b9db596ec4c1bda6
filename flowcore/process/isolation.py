"""Isolates failing calls of a process function: the call is rolled back, and processing continues.

States, timers and outputs are as they were before the call; the timer that caused the call is used up. If a
batch fails, its halves are tried, down to the records that fail on their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from flowcore.errors import NoTimestampError
from flowcore.process.current import ProcessEmissions
from flowcore.process.operator import ProcessOperator
from flowcore.process.state import ProcessState, Undo

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FailedCall", "IsolatedCalls"]


@dataclass(frozen=True, slots=True)
class FailedCall:
    """A call that failed and was rolled back.

    Attributes:
        timestamp_ms: The time of the record or timer, None if it has none.
        origin: The number of the record in the step, from 0; None for a timer.
    """

    key: Any
    timestamp_ms: int | None
    origin: int | None
    error: Exception


class IsolatedCalls:
    """A context in which failing calls of an operator are rolled back and recorded.

    Args:
        require: Raises for outputs that do not fit the declared columns.

    Attributes:
        failed: The failed calls, in order.
    """

    def __init__(self, operator: ProcessOperator, require: Callable[[ProcessEmissions], None]) -> None:
        self.failed: list[FailedCall] = []
        self._operator = operator
        self._require = require

    def __enter__(self) -> Self:
        self._operator.call = self._call
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._operator.call = self._operator.call_function

    def batches(
        self,
        state: ProcessState,
        keys: Sequence[Any],
        timestamps_ms: Sequence[int | None],
        batch: pa.RecordBatch,
        first: int = 0,
    ) -> Iterator[tuple[int, int, ProcessEmissions]]:
        """The outputs of a function of batches for a batch, or its parts: ``(start, end, emissions)``."""
        current, count = self._operator.current, batch.num_rows
        current.undo = undo = Undo(state)
        try:
            emissions = self._operator.process_batch(state, keys, timestamps_ms, batch)
            self._require(emissions)
        except Exception as error:  # noqa: BLE001 - a user's function may raise anything
            self._raise_if_general(error)
            undo.roll_back()
            current.undo = None
            if count == 1:
                self.failed.append(FailedCall(keys[0], timestamps_ms[0], first, error))
                return
            for start, end in ((0, count // 2), (count // 2, count)):
                part = batch.slice(start, end - start)
                yield from self.batches(state, keys[start:end], timestamps_ms[start:end], part, first + start)
            return
        current.undo = None
        yield first, first + count, emissions

    def _raise_if_general(self, error: Exception) -> None:
        """Raise an error that no record caused: the function asks for timestamps, and none has one."""
        if isinstance(error, NoTimestampError) and self._operator.config.no_timestamps is not None:
            raise error

    def _call(self, function: Callable[..., Any], argument: Any) -> None:
        current = self._operator.current
        before, own, key = current.emissions, ProcessEmissions(), current.key
        current.emissions = own
        current.undo = undo = Undo(current.state)
        undo.save_timers(key)
        try:
            self._operator.call_function(function, argument)
            self._require(own)
        except Exception as error:  # noqa: BLE001 - a user's function may raise anything
            self._raise_if_general(error)
            undo.roll_back()
            self.failed.append(FailedCall(key, current.timestamp_ms, current.origin, error))
        else:
            before.extend(own)
        finally:
            current.emissions, current.undo = before, None
