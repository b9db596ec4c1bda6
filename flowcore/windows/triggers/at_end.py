"""Triggers that emit at a window's end, by the watermark or by the clock, and at the end of the stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flowcore.elements import MAX_TIMESTAMP_MS
from flowcore.windows.triggers.silent import Never
from flowcore.windows.triggers.trigger import TriggerContext, TriggerResult

__all__ = ["EndOfStreamTrigger", "EventTimeTrigger", "ProcessingTimeTrigger"]


@dataclass(frozen=True, slots=True)
class EventTimeTrigger(Never):
    """Emits when the watermark reaches the last millisecond, and at once for each record after that."""

    def on_element(self, value: Any, timestamp_ms: int | None, context: TriggerContext) -> TriggerResult:  # noqa: ARG002 - a trigger's signature
        """Emit at once if the window is complete."""
        if context.window.last_ms <= context.watermark_ms:
            return TriggerResult.FIRE
        context.register_event_timer(context.window.last_ms)
        return TriggerResult.CONTINUE

    def on_event_time(self, time_ms: int, context: TriggerContext) -> TriggerResult:
        """The window is complete."""
        return TriggerResult.FIRE if time_ms == context.window.last_ms else TriggerResult.CONTINUE

    def on_merge(self, states: Sequence[Any], context: TriggerContext) -> None:  # noqa: ARG002
        """Wait for the new end, unless the record that made it come about will emit at once."""
        if context.window.last_ms > context.watermark_ms:
            context.register_event_timer(context.window.last_ms)


@dataclass(frozen=True, slots=True)
class ProcessingTimeTrigger(Never):
    """Emits when the clock reaches the last millisecond, and at once for each record after that."""

    def on_element(self, value: Any, timestamp_ms: int | None, context: TriggerContext) -> TriggerResult:  # noqa: ARG002 - a trigger's signature
        """Emit at once if the window is complete."""
        if context.window.last_ms <= context.clock_ms:
            return TriggerResult.FIRE
        context.register_processing_timer(context.window.last_ms)
        return TriggerResult.CONTINUE

    def on_processing_time(self, time_ms: int, context: TriggerContext) -> TriggerResult:
        """The window is complete."""
        return TriggerResult.FIRE if time_ms == context.window.last_ms else TriggerResult.CONTINUE

    def on_merge(self, states: Sequence[Any], context: TriggerContext) -> None:  # noqa: ARG002
        """Wait for the new end, unless the record that made it come about will emit at once."""
        if context.window.last_ms > context.clock_ms:
            context.register_processing_timer(context.window.last_ms)


@dataclass(frozen=True, slots=True)
class EndOfStreamTrigger(Never):
    """Emits once, when the input has ended."""

    def on_element(self, value: Any, timestamp_ms: int | None, context: TriggerContext) -> TriggerResult:  # noqa: ARG002 - a trigger's signature
        """Wait for the maximum watermark."""
        context.register_event_timer(MAX_TIMESTAMP_MS)
        return TriggerResult.CONTINUE

    def on_event_time(self, time_ms: int, context: TriggerContext) -> TriggerResult:  # noqa: ARG002
        """The input has ended."""
        return TriggerResult.FIRE if time_ms == MAX_TIMESTAMP_MS else TriggerResult.CONTINUE

    def on_merge(self, states: Sequence[Any], context: TriggerContext) -> None:  # noqa: ARG002
        """Wait on."""
        context.register_event_timer(MAX_TIMESTAMP_MS)
