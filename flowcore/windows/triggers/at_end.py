"""Triggers that emit at the end of a window, by event time or processing time, or at the end of the input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flowcore.elements import MAX_TIMESTAMP_MS
from flowcore.windows.triggers.trigger import Never, TriggerContext, TriggerResult

__all__ = ["EndOfStreamTrigger", "EventTimeTrigger", "ProcessingTimeTrigger"]


@dataclass(frozen=True, slots=True)
class EventTimeTrigger(Never):
    """Emits when the watermark reaches the window's last millisecond, then immediately for each record."""

    def on_element(self, value: Any, timestamp_ms: int | None, context: TriggerContext) -> TriggerResult:
        if context.window.last_ms <= context.watermark_ms:
            return TriggerResult.FIRE
        context.register_event_timer(context.window.last_ms)
        return TriggerResult.CONTINUE

    def on_event_time(self, time_ms: int, context: TriggerContext) -> TriggerResult:
        return TriggerResult.FIRE if time_ms == context.window.last_ms else TriggerResult.CONTINUE

    def on_merge(self, states: Sequence[Any], context: TriggerContext) -> None:
        # A merged window that is already complete emits for the record that merged it.
        if context.window.last_ms > context.watermark_ms:
            context.register_event_timer(context.window.last_ms)


@dataclass(frozen=True, slots=True)
class ProcessingTimeTrigger(Never):
    """Emits when processing time reaches the window's last millisecond, then immediately for each record."""

    def on_element(self, value: Any, timestamp_ms: int | None, context: TriggerContext) -> TriggerResult:
        if context.window.last_ms <= context.clock_ms:
            return TriggerResult.FIRE
        context.register_processing_timer(context.window.last_ms)
        return TriggerResult.CONTINUE

    def on_processing_time(self, time_ms: int, context: TriggerContext) -> TriggerResult:
        return TriggerResult.FIRE if time_ms == context.window.last_ms else TriggerResult.CONTINUE

    def on_merge(self, states: Sequence[Any], context: TriggerContext) -> None:
        if context.window.last_ms > context.clock_ms:
            context.register_processing_timer(context.window.last_ms)


@dataclass(frozen=True, slots=True)
class EndOfStreamTrigger(Never):
    """Emits once, at the maximum watermark."""

    def on_element(self, value: Any, timestamp_ms: int | None, context: TriggerContext) -> TriggerResult:
        context.register_event_timer(MAX_TIMESTAMP_MS)
        return TriggerResult.CONTINUE

    def on_event_time(self, time_ms: int, context: TriggerContext) -> TriggerResult:
        return TriggerResult.FIRE if time_ms == MAX_TIMESTAMP_MS else TriggerResult.CONTINUE

    def on_merge(self, states: Sequence[Any], context: TriggerContext) -> None:
        context.register_event_timer(MAX_TIMESTAMP_MS)
