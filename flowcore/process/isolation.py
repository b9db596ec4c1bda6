"""SupportsFailureIsolation: how do keyed processes go on when a call of the function fails?

The call is undone: states, timers and outputs are as they were before it. A timer that it was for is used
up. Of a batch that fails the halves are tried, down to the records that fail by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from flowcore.process.operator import ProcessOperator
from flowcore.process.results import ProcessEmissions
from flowcore.process.state import ProcessState
from flowcore.process.undo import Undo

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FailedCall", "IsolatedCalls"]


@dataclass(frozen=True, slots=True)
class FailedCall:
    """A call that failed, of which nothing is left.

    Attributes:
        key: The key.
        timestamp_ms: Of the record or timer, None if it has none.
        origin: Which of the records of the step it was for, from 0; None for a timer.
        error: What was raised.
    """

    key: Any
    timestamp_ms: int | None
    origin: int | None
    error: Exception


class IsolatedCalls:
    """A context in which an operator's failing calls are undone and noted.

    Args:
        operator: The operator.
        require: Raises for outputs that nobody could take.

    Attributes:
        failed: In order.
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
        self._operator.call = self._operator.called

    def batches(
        self,
        state: ProcessState,
        keys: Sequence[Any],
        timestamps_ms: Sequence[int | None],
        batch: pa.RecordBatch,
        first: int = 0,
    ) -> Iterator[tuple[int, int, ProcessEmissions]]:
        """What a function of batches puts out for a batch or parts of it: ``(start, end, emissions)``."""
        current, count = self._operator.current, batch.num_rows
        current.undo = undo = Undo(state)
        try:
            seen = self._operator.process_batch(state, keys, timestamps_ms, batch)
            self._require(seen)
        except Exception as error:  # noqa: BLE001 - a user's function may raise anything
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
        yield first, first + count, seen

    def _call(self, function: Callable[..., Any], argument: Any) -> None:
        current = self._operator.current
        seen, own, key = current.emissions, ProcessEmissions(), current.key
        current.emissions = own
        current.undo = undo = Undo(current.state)
        undo.key(key)
        try:
            self._operator.called(function, argument)
            self._require(own)
        except Exception as error:  # noqa: BLE001
            undo.roll_back()
            self.failed.append(FailedCall(key, current.timestamp_ms, current.origin, error))
        else:
            seen.add(own)
        finally:
            current.emissions, current.undo = seen, None
