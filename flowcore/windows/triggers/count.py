"""A trigger that emits at every so many records of a window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flowcore.errors import InvalidWindowError
from flowcore.windows.triggers.silent import Never
from flowcore.windows.triggers.trigger import TriggerContext, TriggerResult

__all__ = ["Count"]


@dataclass(frozen=True, slots=True)
class Count(Never):
    """Emits at every ``count``-th record; its state is the number of records since.

    Where windows merge, their numbers are added up; only the next record can make the sum emit.

    Raises:
        InvalidWindowError: The count is not positive.
    """

    count: int

    def __post_init__(self) -> None:
        if self.count < 1:
            msg = f"count={self.count} is not positive: a window could emit without a record; pass count >= 1"
            raise InvalidWindowError(msg)

    def on_element(self, value: Any, timestamp_ms: int | None, context: TriggerContext) -> TriggerResult:  # noqa: ARG002 - a trigger's signature
        """Count it."""
        seen = (context.state or 0) + 1
        context.state = seen if seen < self.count else 0
        return TriggerResult.CONTINUE if seen < self.count else TriggerResult.FIRE

    def on_merge(self, states: Sequence[Any], context: TriggerContext) -> None:
        """Add up."""
        context.state = sum(state or 0 for state in states)
