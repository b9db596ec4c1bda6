"""Triggers that emit at fixed intervals while a window is open, and at its end.

The state is the next multiple of the interval at which to emit; the first follows the window's first record.
A time that jumps over several multiples emits once for each. The exception is a window that never ends: at
the maximum watermark it emits once, not for all multiples up to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from flowcore.elements import MAX_TIMESTAMP_MS
from flowcore.windows.assigners import require_positive
from flowcore.windows.triggers.trigger import Never, TriggerContext, TriggerResult
from flowcore.windows.window import ALL_TIME

__all__ = ["ContinuousEventTime", "ContinuousProcessingTime"]

_Register = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class _Continuous(Never):
    interval_ms: int

    def __post_init__(self) -> None:
        require_positive("interval_ms", self.interval_ms)


@dataclass(frozen=True, slots=True)
class ContinuousEventTime(_Continuous):
    """Emits at each multiple of ``interval_ms`` that the watermark reaches, and at the window's end.

    After the end it emits immediately for each record, as `EventTimeTrigger` does.

    Raises:
        InvalidWindowError: The interval is not positive.
    """

    def on_element(self, value: Any, timestamp_ms: int | None, context: TriggerContext) -> TriggerResult:
        if context.window.last_ms <= context.watermark_ms:
            return TriggerResult.FIRE
        context.register_event_timer(context.window.last_ms)
        if context.state is None and timestamp_ms is not None:
            next_ms = _next_multiple(timestamp_ms, self.interval_ms)
            _schedule(next_ms, context, context.register_event_timer)
        return TriggerResult.CONTINUE

    def on_event_time(self, time_ms: int, context: TriggerContext) -> TriggerResult:
        register = context.register_event_timer
        return _on_timer(time_ms, context.watermark_ms, self.interval_ms, context, register)

    def on_merge(self, states: Sequence[Any], context: TriggerContext) -> None:
        if context.window.last_ms > context.watermark_ms:
            context.register_event_timer(context.window.last_ms)
        _schedule_earliest(states, context, context.register_event_timer)


@dataclass(frozen=True, slots=True)
class ContinuousProcessingTime(_Continuous):
    """Emits at each multiple of ``interval_ms`` that processing time reaches, and at the window's end.

    Raises:
        InvalidWindowError: The interval is not positive.
    """

    def on_element(self, value: Any, timestamp_ms: int | None, context: TriggerContext) -> TriggerResult:
        if context.window.last_ms <= context.clock_ms:
            return TriggerResult.FIRE
        context.register_processing_timer(context.window.last_ms)
        if context.state is None:
            next_ms = _next_multiple(context.clock_ms, self.interval_ms)
            _schedule(next_ms, context, context.register_processing_timer)
        return TriggerResult.CONTINUE

    def on_processing_time(self, time_ms: int, context: TriggerContext) -> TriggerResult:
        register = context.register_processing_timer
        return _on_timer(time_ms, context.clock_ms, self.interval_ms, context, register)

    def on_merge(self, states: Sequence[Any], context: TriggerContext) -> None:
        if context.window.last_ms > context.clock_ms:
            context.register_processing_timer(context.window.last_ms)
        _schedule_earliest(states, context, context.register_processing_timer)


def _on_timer(
    time_ms: int, now_ms: int, interval_ms: int, context: TriggerContext, register: _Register
) -> TriggerResult:
    if time_ms == context.window.last_ms:
        return TriggerResult.FIRE
    if time_ms != context.state or (now_ms == MAX_TIMESTAMP_MS and context.window == ALL_TIME):
        return TriggerResult.CONTINUE
    _schedule(time_ms + interval_ms, context, register)
    return TriggerResult.FIRE


def _schedule_earliest(states: Sequence[Any], context: TriggerContext, register: _Register) -> None:
    scheduled = [state for state in states if state is not None]
    if scheduled:
        _schedule(min(scheduled), context, register)


def _schedule(next_ms: int, context: TriggerContext, register: _Register) -> None:
    context.state = next_ms
    # A multiple after the window's end is registered only if the window grows.
    if next_ms <= context.window.last_ms:
        register(next_ms)


def _next_multiple(time_ms: int, interval_ms: int) -> int:
    return time_ms - time_ms % interval_ms + interval_ms
