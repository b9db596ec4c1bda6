"""Triggers that depend on the records of a window: their number or their values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from flowcore.errors import InvalidWindowError
from flowcore.windows.triggers.trigger import Never, TriggerContext, TriggerResult

__all__ = ["Count", "Delta"]


@dataclass(frozen=True, slots=True)
class Count(Never):
    """Emits at every ``count``-th record; its state is the number of records since the last emission.

    When windows merge, their numbers are added; only the next record can make the merged window emit.

    Raises:
        InvalidWindowError: The count is not positive.
    """

    count: int

    def __post_init__(self) -> None:
        if self.count < 1:
            msg = f"count={self.count} is not positive: a window could emit without a record; pass count >= 1"
            raise InvalidWindowError(msg)

    def on_element(self, value: Any, timestamp_ms: int | None, context: TriggerContext) -> TriggerResult:
        seen = (context.state or 0) + 1
        context.state = seen if seen < self.count else 0
        return TriggerResult.CONTINUE if seen < self.count else TriggerResult.FIRE

    def on_merge(self, states: Sequence[Any], context: TriggerContext) -> None:
        context.state = sum(state or 0 for state in states)


@dataclass(frozen=True, slots=True)
class Delta(Never):
    """Emits when a record differs by more than a threshold from the record that emitted last.

    The first record of a window is the first one to compare with. The state is the value to compare with,
    which must be plain data. It does not work with windows that merge, since they would have several such
    values.

    Args:
        threshold: A difference above it emits; a difference equal to it does not.
        delta: The difference of the second value from the first.
    """

    mergeable: ClassVar[bool] = False

    threshold: float
    delta: Callable[[Any, Any], float]

    def on_element(self, value: Any, timestamp_ms: int | None, context: TriggerContext) -> TriggerResult:
        if context.state is None:
            context.state = [value]  # a list, so that None can be a value
            return TriggerResult.CONTINUE
        if self.delta(context.state[0], value) <= self.threshold:
            return TriggerResult.CONTINUE
        context.state = [value]
        return TriggerResult.FIRE
