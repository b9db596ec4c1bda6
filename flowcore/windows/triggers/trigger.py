"""Triggers: when does a window emit, and when is its content emptied?

A trigger is configuration and logic; what it has to remember about one window is kept in that window's
state, as plain data (None, numbers, text, lists and mappings of them), and reached through a context.
Whoever writes one of their own implements `Trigger`. Times are integer milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, Protocol

from flowcore.windows.window import TimeWindow

__all__ = ["Trigger", "TriggerContext", "TriggerResult"]


class TriggerResult(Enum):
    """What happens to a window now."""

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
        """The window's content is emptied, after it was emitted."""
        return self in (TriggerResult.PURGE, TriggerResult.FIRE_AND_PURGE)


class TriggerContext(Protocol):
    """What a trigger sees of one window, and what it may ask for."""

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

        Asking twice for the same time is asking once. A time that the watermark has reached already
        is due when the watermark advances next. Timers of a window end with it.
        """
        ...

    def register_processing_timer(self, time_ms: int) -> None:
        """Have `Trigger.on_processing_time` called once the clock reaches this time."""
        ...

    def delete_event_timer(self, time_ms: int) -> None:
        """Forget a timer; nothing happens if there is none."""
        ...

    def delete_processing_timer(self, time_ms: int) -> None:
        """Forget a timer; nothing happens if there is none."""
        ...


class Trigger(Protocol):
    """When a window emits.

    A window without content emits nothing, whatever its trigger says.

    Attributes:
        mergeable: It can be used with windows that merge.
    """

    @property
    def mergeable(self) -> bool: ...

    def on_element(self, value: Any, timestamp_ms: int | None, context: TriggerContext) -> TriggerResult:
        """A record was put into the window; its timestamp is None if it has none."""
        ...

    def on_event_time(self, time_ms: int, context: TriggerContext) -> TriggerResult:
        """A timer of event time is due."""
        ...

    def on_processing_time(self, time_ms: int, context: TriggerContext) -> TriggerResult:
        """A timer of the clock is due."""
        ...

    def on_merge(self, states: Sequence[Any], context: TriggerContext) -> None:
        """Windows became this one: put their states together, and register its timers anew.

        Args:
            states: What was kept for each of them. Their timers are gone.
            context: The merged window; its state is None.
        """
        ...
