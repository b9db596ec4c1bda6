"""A trigger that emits when values have moved far enough."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from flowcore.windows.triggers.silent import Never
from flowcore.windows.triggers.trigger import TriggerContext, TriggerResult

__all__ = ["Delta"]


@dataclass(frozen=True, slots=True)
class Delta(Never):
    """Emits when a record is further than a threshold from the one that emitted last.

    Its state is that record's value, which therefore has to be plain data. The first record of a window
    is what later ones are compared with. Windows that merge cannot have it: it could not be told which of
    their values to go on with.

    Args:
        threshold: Emits above it, not at it.
        delta: How far the second value is from the first.
    """

    mergeable: ClassVar[bool] = False

    threshold: float
    delta: Callable[[Any, Any], float]

    def on_element(self, value: Any, timestamp_ms: int | None, context: TriggerContext) -> TriggerResult:  # noqa: ARG002 - a trigger's signature
        """Compare."""
        if context.state is None:
            context.state = [value]  # a list, so that a value of None is one too
            return TriggerResult.CONTINUE
        if self.delta(context.state[0], value) <= self.threshold:
            return TriggerResult.CONTINUE
        context.state = [value]
        return TriggerResult.FIRE
