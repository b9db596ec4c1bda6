"""A trigger around another: each emission empties the window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flowcore.windows.triggers.trigger import Trigger, TriggerContext, TriggerResult

__all__ = ["Purging"]


@dataclass(frozen=True, slots=True)
class Purging:
    """Emits when the trigger inside does, and then empties the window; what that trigger knows stays."""

    inside: Trigger

    @property
    def mergeable(self) -> bool:
        """As the trigger inside."""
        return self.inside.mergeable

    def on_element(self, value: Any, timestamp_ms: int | None, context: TriggerContext) -> TriggerResult:
        """As the trigger inside."""
        return _purged(self.inside.on_element(value, timestamp_ms, context))

    def on_event_time(self, time_ms: int, context: TriggerContext) -> TriggerResult:
        """As the trigger inside."""
        return _purged(self.inside.on_event_time(time_ms, context))

    def on_processing_time(self, time_ms: int, context: TriggerContext) -> TriggerResult:
        """As the trigger inside."""
        return _purged(self.inside.on_processing_time(time_ms, context))

    def on_merge(self, states: Sequence[Any], context: TriggerContext) -> None:
        """As the trigger inside."""
        self.inside.on_merge(states, context)


def _purged(verdict: TriggerResult) -> TriggerResult:
    return TriggerResult.FIRE_AND_PURGE if verdict.fires else verdict
