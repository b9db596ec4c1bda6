"""Triggers: when a window emits. Implement `Trigger` for one of your own.

A trigger is configuration and logic. What it remembers about a window is plain data (None, numbers, text,
lists and mappings of them) in that window's state, which it accesses through a context. Times are integer
milliseconds.

The state of a trigger with an interval is the next multiple of the interval at which to emit; the first
follows the window's first record. A time that jumps over several multiples emits once for each. The exception
is a window that never ends: at the maximum watermark it emits once, not for all multiples up to it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import timedelta
from enum import Enum
from typing import Any, ClassVar, Literal, Protocol

from flowcore.elements import MAX_TIMESTAMP_MS
from flowcore.errors import InvalidWindowError
from flowcore.windows.arguments import length_ms, require_number, require_object
from flowcore.windows.assigners import require_positive
from flowcore.windows.window import ALL_TIME, TimeWindow

__all__ = [
    "ContinuousEventTime",
    "ContinuousProcessingTime",
    "Count",
    "Delta",
    "EndOfStreamTrigger",
    "EventTimeTrigger",
    "Never",
    "ProcessingTimeTrigger",
    "Purging",
    "Trigger",
    "TriggerContext",
    "TriggerResult",
    "is_mergeable",
    "kind_of",
    "require_trigger",
]


class TriggerResult(Enum):
    """What a window does after a call of its trigger."""

    CONTINUE = "continue"
    FIRE = "fire"
    PURGE = "purge"
    FIRE_AND_PURGE = "fire-and-purge"

    @property
    def fires(self) -> bool:
        """The window emits."""
        return self in (TriggerResult.FIRE, TriggerResult.FIRE_AND_PURGE)

    @property
    def purges(self) -> bool:
        """The content of the window is cleared, after it was emitted."""
        return self in (TriggerResult.PURGE, TriggerResult.FIRE_AND_PURGE)


class TriggerContext(Protocol):
    """One window, its timers and the trigger's state for it."""

    state: Any
    """Plain data that the trigger keeps for this window; None at first."""

    @property
    def window(self) -> TimeWindow: ...

    @property
    def window_time(self) -> Literal["event", "processing"]:
        """The time of the window's start and end."""

    @property
    def watermark_ms(self) -> int: ...

    @property
    def processing_time_ms(self) -> int: ...

    def register_event_timer(self, time_ms: int) -> None:
        """Have `Trigger.on_event_time` called once the watermark reaches this time.

        A time that is registered twice fires once. A time that the watermark has already reached fires at the
        next watermark. The timers of a window are deleted with it.
        """

    def register_processing_timer(self, time_ms: int) -> None:
        """Have `Trigger.on_processing_time` called once processing time reaches this time."""

    def delete_event_timer(self, time_ms: int) -> None:
        """Delete a timer, if there is one."""

    def delete_processing_timer(self, time_ms: int) -> None:
        """Delete a timer, if there is one."""


class Trigger(Protocol):
    """Decides when a window emits, if it has content.

    ``mergeable`` ones work with windows that merge; without the attribute one is not and needs no `on_merge`.
    """

    @property
    def mergeable(self) -> bool: ...

    def on_element(self, value: Any, timestamp_ms: int | None, context: TriggerContext) -> TriggerResult:
        """Handle a record that was added to the window; its timestamp is None if it has none."""

    def on_event_time(self, time_ms: int, context: TriggerContext) -> TriggerResult:
        """Handle an event-time timer that is due."""

    def on_processing_time(self, time_ms: int, context: TriggerContext) -> TriggerResult:
        """Handle a processing-time timer that is due."""

    def on_merge(self, states: Sequence[Any], context: TriggerContext) -> None:
        """Merge the states of windows that became one, and register its timers.

        Args:
            states: The state of each window; their timers are deleted.
            context: The merged window; its state is None.
        """


def kind_of(trigger: object) -> str:
    """The type of a trigger, and of those inside it: triggers of one kind can read each other's state.

    >>> kind_of(Purging(Count(100)))
    'Purging(Count)'
    """
    values = (getattr(trigger, each.name) for each in fields(trigger)) if is_dataclass(trigger) else ()
    inside = ", ".join(kind_of(each) for each in values if hasattr(each, "on_element"))
    return f"{type(trigger).__name__}({inside})" if inside else type(trigger).__name__


def require_trigger(name: str, trigger: object) -> None:
    """Check that an argument is a trigger.

    Raises:
        InvalidWindowError: It is a class, or lacks a method of a trigger.
    """
    methods = ("on_element", "on_event_time", "on_processing_time")
    require_object(name, trigger, methods, "Count(100)")


def is_mergeable(trigger: Trigger) -> bool:
    """Whether a trigger continues when windows merge; one without the attribute does not."""
    return bool(getattr(trigger, "mergeable", False)) and callable(getattr(trigger, "on_merge", None))


@dataclass(frozen=True, slots=True)
class Never:
    """Never emits; the default of windows that never end. Base class for triggers with other answers."""

    mergeable: ClassVar[bool] = True

    def on_element(self, value: Any, timestamp_ms: int | None, context: TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_event_time(self, time_ms: int, context: TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_processing_time(self, time_ms: int, context: TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_merge(self, states: Sequence[Any], context: TriggerContext) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Count(Never):
    """Emits at every ``count``-th record; its state is the number of records since the last emission.

    When windows merge, their numbers are added; only the next record can make the merged window emit.

    Raises:
        InvalidWindowError: The count is not a positive number.
    """

    count: int

    def __post_init__(self) -> None:
        require_number("count", self.count)
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
        if not self.delta(context.state[0], value) > self.threshold:  # not-a-number is not above it
            return TriggerResult.CONTINUE
        context.state = [value]
        return TriggerResult.FIRE


@dataclass(frozen=True, slots=True)
class Purging:
    """Emits when the trigger inside does, then clears the window's content; that trigger's state stays.

    Raises:
        InvalidWindowError: What is inside is not a trigger.
    """

    inside: Trigger

    def __post_init__(self) -> None:
        require_trigger("inside", self.inside)

    @property
    def mergeable(self) -> bool:
        return is_mergeable(self.inside)

    def on_element(self, value: Any, timestamp_ms: int | None, context: TriggerContext) -> TriggerResult:
        return _purge(self.inside.on_element(value, timestamp_ms, context))

    def on_event_time(self, time_ms: int, context: TriggerContext) -> TriggerResult:
        return _purge(self.inside.on_event_time(time_ms, context))

    def on_processing_time(self, time_ms: int, context: TriggerContext) -> TriggerResult:
        return _purge(self.inside.on_processing_time(time_ms, context))

    def on_merge(self, states: Sequence[Any], context: TriggerContext) -> None:
        self.inside.on_merge(states, context)


def _purge(result: TriggerResult) -> TriggerResult:
    return TriggerResult.FIRE_AND_PURGE if result.fires else result


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
        return context.watermark_ms if self.time == "event" else context.processing_time_ms

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


@dataclass(frozen=True, slots=True, init=False)
class _Continuous(_AtEnd):
    interval_ms: int

    def __init__(self, interval_ms: int | timedelta) -> None:
        object.__setattr__(self, "interval_ms", length_ms("interval_ms", interval_ms))
        require_positive("interval_ms", self.interval_ms)

    def on_element(self, value: Any, timestamp_ms: int | None, context: TriggerContext) -> TriggerResult:
        result = TriggerResult.CONTINUE
        if self._has_end(context):
            # A dataclass with slots has no super() without arguments.
            result = _AtEnd.on_element(self, value, timestamp_ms, context)
        first_ms = timestamp_ms if self.time == "event" else context.processing_time_ms
        if not result.fires and context.state is None and first_ms is not None:
            self._schedule(first_ms - first_ms % self.interval_ms + self.interval_ms, context)
        elif context.state is not None and not self._has_end(context):
            self._register(context, context.state)  # an earlier version did not, after the window's end
        return result

    def on_merge(self, states: Sequence[Any], context: TriggerContext) -> None:
        if self._has_end(context):
            _AtEnd.on_merge(self, states, context)
        scheduled = [state for state in states if state is not None]
        if scheduled:
            self._schedule(min(scheduled), context)

    def _on_timer(self, time_ms: int, context: TriggerContext) -> TriggerResult:
        has_end = self._has_end(context)
        if has_end and time_ms == context.window.last_ms:
            return TriggerResult.FIRE
        if time_ms != context.state:
            return TriggerResult.CONTINUE
        if self._now_ms(context) == MAX_TIMESTAMP_MS and (not has_end or context.window == ALL_TIME):
            # The timer at its end fires, if the window has one; there is no end to the multiples.
            return TriggerResult.CONTINUE if has_end else TriggerResult.FIRE
        self._schedule(time_ms + self.interval_ms, context)
        return TriggerResult.FIRE

    def _has_end(self, context: TriggerContext) -> bool:
        """Whether the window ends in the trigger's kind of time; the end of all time is that of both."""
        return self.time == context.window_time or context.window == ALL_TIME

    def _schedule(self, next_ms: int, context: TriggerContext) -> None:
        context.state = next_ms
        # A multiple after the window's end is registered only if the window grows.
        if next_ms <= context.window.last_ms or not self._has_end(context):
            self._register(context, next_ms)


@dataclass(frozen=True, slots=True, init=False)
class ContinuousEventTime(_Continuous):
    """Emits at each multiple of ``interval_ms`` that the watermark reaches, and at the window's end.

    After the end it emits immediately for each record, as `EventTimeTrigger` does.

    Args:
        interval_ms: Milliseconds, or a `timedelta`.

    Raises:
        InvalidWindowError: The interval is not positive.
    """


@dataclass(frozen=True, slots=True, init=False)
class ContinuousProcessingTime(_Continuous):
    """Emits at each multiple of ``interval_ms`` that processing time reaches, and at the window's end.

    Windows of event time have no end in processing time: they emit at multiples only. A record after the last
    multiple before the watermark removes the window is in no result, as in Flink.

    Args:
        interval_ms: Milliseconds, or a `timedelta`.

    Raises:
        InvalidWindowError: The interval is not positive.
    """

    time = "processing"
