"""The contract of triggers, and the triggers without a condition of their own: `Never` and `Purging`.

A trigger is configuration and logic. What it remembers about a window is plain data (None, numbers, text,
lists and mappings of them) in that window's state, which it accesses through a context. Times are integer
milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Protocol

from flowcore.windows.window import TimeWindow

__all__ = ["Never", "Purging", "Trigger", "TriggerContext", "TriggerResult"]


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
    def watermark_ms(self) -> int: ...

    @property
    def clock_ms(self) -> int: ...

    def register_event_timer(self, time_ms: int) -> None:
        """Have `Trigger.on_event_time` called once the watermark reaches this time.

        A time that is registered twice fires once. A time that the watermark has already reached fires at the
        next watermark. The timers of a window are deleted with it.
        """
        ...

    def register_processing_timer(self, time_ms: int) -> None:
        """Have `Trigger.on_processing_time` called once processing time reaches this time."""
        ...

    def delete_event_timer(self, time_ms: int) -> None:
        """Delete a timer, if there is one."""
        ...

    def delete_processing_timer(self, time_ms: int) -> None:
        """Delete a timer, if there is one."""
        ...


class Trigger(Protocol):
    """Decides when a window emits; a window without content emits nothing.

    Attributes:
        mergeable: It works with windows that merge.
    """

    @property
    def mergeable(self) -> bool: ...

    def on_element(self, value: Any, timestamp_ms: int | None, context: TriggerContext) -> TriggerResult:
        """Handle a record that was added to the window; its timestamp is None if it has none."""
        ...

    def on_event_time(self, time_ms: int, context: TriggerContext) -> TriggerResult:
        """Handle an event-time timer that is due."""
        ...

    def on_processing_time(self, time_ms: int, context: TriggerContext) -> TriggerResult:
        """Handle a processing-time timer that is due."""
        ...

    def on_merge(self, states: Sequence[Any], context: TriggerContext) -> None:
        """Merge the states of windows that became one, and register its timers.

        Args:
            states: The state of each window; their timers are deleted.
            context: The merged window; its state is None.
        """
        ...


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
class Purging:
    """Emits when the trigger inside does, then clears the window's content; that trigger's state stays."""

    inside: Trigger

    @property
    def mergeable(self) -> bool:
        return self.inside.mergeable

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
