"""Triggers that emit at the end of a window, at intervals while it is open, or at the end of the input.

The state of a trigger with an interval is the next multiple of the interval at which to emit; the first
follows the window's first record. A time that jumps over several multiples emits once for each. The exception
is a window that never ends: at the maximum watermark it emits once, not for all multiples up to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from flowcore.elements import MAX_TIMESTAMP_MS
from flowcore.windows.assigners import require_positive
from flowcore.windows.triggers.trigger import Never, TriggerContext, TriggerResult
from flowcore.windows.window import ALL_TIME


@dataclass(frozen=True, slots=True)
class _AtEnd(Never):
    """Emits when a kind of time reaches the window's last millisecond, then immediately for each record."""

    time: ClassVar[Literal["event", "processing"]] = "event"

    def on_element(self, value: Any, timestamp_ms: int | None, context: TriggerContext) -> TriggerResult:
        if context.window.last_ms <= self._now_ms(context):
            return TriggerResult.FIRE
        self._register(context, context.window.last_ms)
        return TriggerResult.CONTINUE

    def on_event_time(self, time_ms: int, context: TriggerContext) -> TriggerResult:
        return self._on_timer(time_ms, context) if self.time == "event" else TriggerResult.CONTINUE

    def on_processing_time(self, time_ms: int, context: TriggerContext) -> TriggerResult:
        return self._on_timer(time_ms, context) if self.time == "processing" else TriggerResult.CONTINUE

    def on_merge(self, states: Sequence[Any], context: TriggerContext) -> None:
        # A merged window that is already complete emits for the record that merged it.
        if context.window.last_ms > self._now_ms(context):
            self._register(context, context.window.last_ms)

    def _on_timer(self, time_ms: int, context: TriggerContext) -> TriggerResult:
        return TriggerResult.FIRE if time_ms == context.window.last_ms else TriggerResult.CONTINUE

    def _now_ms(self, context: TriggerContext) -> int:
        return context.watermark_ms if self.time == "event" else context.clock_ms

    def _register(self, context: TriggerContext, time_ms: int) -> None:
        if self.time == "event":
            context.register_event_timer(time_ms)
        else:
            context.register_processing_timer(time_ms)


@dataclass(frozen=True, slots=True)
class EventTimeTrigger(_AtEnd):
    """Emits when the watermark reaches the window's last millisecond, then immediately for each record."""


@dataclass(frozen=True, slots=True)
class ProcessingTimeTrigger(_AtEnd):
    """Emits when processing time reaches the window's last millisecond, then immediately for each record."""

    time = "processing"


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


@dataclass(frozen=True, slots=True)
class _Continuous(_AtEnd):
    interval_ms: int

    def __post_init__(self) -> None:
        require_positive("interval_ms", self.interval_ms)

    def on_element(self, value: Any, timestamp_ms: int | None, context: TriggerContext) -> TriggerResult:
        # A dataclass with slots has no super() without arguments.
        result = _AtEnd.on_element(self, value, timestamp_ms, context)
        first_ms = timestamp_ms if self.time == "event" else context.clock_ms
        if not result.fires and context.state is None and first_ms is not None:
            self._schedule(first_ms - first_ms % self.interval_ms + self.interval_ms, context)
        return result

    def on_merge(self, states: Sequence[Any], context: TriggerContext) -> None:
        _AtEnd.on_merge(self, states, context)
        scheduled = [state for state in states if state is not None]
        if scheduled:
            self._schedule(min(scheduled), context)

    def _on_timer(self, time_ms: int, context: TriggerContext) -> TriggerResult:
        if time_ms == context.window.last_ms:
            return TriggerResult.FIRE
        at_end_of_time = self._now_ms(context) == MAX_TIMESTAMP_MS and context.window == ALL_TIME
        if time_ms != context.state or at_end_of_time:
            return TriggerResult.CONTINUE
        self._schedule(time_ms + self.interval_ms, context)
        return TriggerResult.FIRE

    def _schedule(self, next_ms: int, context: TriggerContext) -> None:
        context.state = next_ms
        # A multiple after the window's end is registered only if the window grows.
        if next_ms <= context.window.last_ms:
            self._register(context, next_ms)


@dataclass(frozen=True, slots=True)
class ContinuousEventTime(_Continuous):
    """Emits at each multiple of ``interval_ms`` that the watermark reaches, and at the window's end.

    After the end it emits immediately for each record, as `EventTimeTrigger` does.

    Raises:
        InvalidWindowError: The interval is not positive.
    """


@dataclass(frozen=True, slots=True)
class ContinuousProcessingTime(_Continuous):
    """Emits at each multiple of ``interval_ms`` that processing time reaches, and at the window's end.

    Raises:
        InvalidWindowError: The interval is not positive.
    """

    time = "processing"
