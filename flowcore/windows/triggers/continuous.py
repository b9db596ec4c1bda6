"""Triggers that emit at fixed intervals while a window is open, and at its end.

The state is the next multiple of the interval at which to emit; the first is that after the window's
first record. A watermark (or clock) that jumps over several emits once for each. Only a window that
never ends does not count out all the intervals up to the maximum watermark: it emits once, at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from flowcore.elements import MAX_TIMESTAMP_MS
from flowcore.windows.assigners import require_positive
from flowcore.windows.triggers.silent import Never
from flowcore.windows.triggers.trigger import TriggerContext, TriggerResult
from flowcore.windows.window import ALL_TIME, TimeWindow

__all__ = ["ContinuousEventTime", "ContinuousProcessingTime"]


@dataclass(frozen=True, slots=True)
class ContinuousEventTime(Never):
    """Emits at each multiple of ``interval_ms`` that the watermark reaches, and at the window's end.

    After that it emits at once for each record, as `EventTime` does.

    Raises:
        InvalidWindowError: The interval is not positive.
    """

    interval_ms: int

    def __post_init__(self) -> None:
        require_positive("interval_ms", self.interval_ms)

    def on_element(self, value: Any, timestamp_ms: int | None, context: TriggerContext) -> TriggerResult:  # noqa: ARG002 - a trigger's signature
        """The first record sets the intervals going."""
        if context.window.last_ms <= context.watermark_ms:
            return TriggerResult.FIRE
        context.register_event_timer(context.window.last_ms)
        if context.state is None and timestamp_ms is not None:
            _wait_for(_multiple_after(timestamp_ms, self.interval_ms), context, context.register_event_timer)
        return TriggerResult.CONTINUE

    def on_event_time(self, time_ms: int, context: TriggerContext) -> TriggerResult:
        """An interval or the window has ended."""
        return _at(time_ms, context.watermark_ms, self.interval_ms, context, context.register_event_timer)

    def on_merge(self, states: Sequence[Any], context: TriggerContext) -> None:
        """Go on at the earliest of the multiples."""
        if context.window.last_ms > context.watermark_ms:
            context.register_event_timer(context.window.last_ms)
        _go_on(states, context, context.register_event_timer)


@dataclass(frozen=True, slots=True)
class ContinuousProcessingTime(Never):
    """Emits at each multiple of ``interval_ms`` that the clock reaches, and when it reaches the window's end.

    Raises:
        InvalidWindowError: The interval is not positive.
    """

    interval_ms: int

    def __post_init__(self) -> None:
        require_positive("interval_ms", self.interval_ms)

    def on_element(self, value: Any, timestamp_ms: int | None, context: TriggerContext) -> TriggerResult:  # noqa: ARG002 - a trigger's signature
        """The first record sets the intervals going."""
        if context.window.last_ms <= context.clock_ms:
            return TriggerResult.FIRE
        context.register_processing_timer(context.window.last_ms)
        if context.state is None:
            next_ms = _multiple_after(context.clock_ms, self.interval_ms)
            _wait_for(next_ms, context, context.register_processing_timer)
        return TriggerResult.CONTINUE

    def on_processing_time(self, time_ms: int, context: TriggerContext) -> TriggerResult:
        """An interval or the window has ended."""
        return _at(time_ms, context.clock_ms, self.interval_ms, context, context.register_processing_timer)

    def on_merge(self, states: Sequence[Any], context: TriggerContext) -> None:
        """Go on at the earliest of the multiples."""
        if context.window.last_ms > context.clock_ms:
            context.register_processing_timer(context.window.last_ms)
        _go_on(states, context, context.register_processing_timer)


_Register = Callable[[int], None]


def _at(
    time_ms: int, now_ms: int, interval_ms: int, context: TriggerContext, register: _Register
) -> TriggerResult:
    if time_ms == context.window.last_ms:
        return TriggerResult.FIRE
    if time_ms != context.state or _all_at_once(now_ms, context.window):
        return TriggerResult.CONTINUE
    _wait_for(time_ms + interval_ms, context, register)
    return TriggerResult.FIRE


def _go_on(states: Sequence[Any], context: TriggerContext, register: _Register) -> None:
    waiting = [state for state in states if state is not None]
    if waiting:
        _wait_for(min(waiting), context, register)


def _wait_for(next_ms: int, context: TriggerContext, register: _Register) -> None:
    context.state = next_ms
    # Beyond the end there is nothing to emit, unless the window grows: then it is registered again.
    if next_ms <= context.window.last_ms:
        register(next_ms)


def _multiple_after(time_ms: int, interval_ms: int) -> int:
    return time_ms - time_ms % interval_ms + interval_ms


def _all_at_once(now_ms: int, window: TimeWindow) -> bool:
    return now_ms == MAX_TIMESTAMP_MS and window == ALL_TIME
