"""Panes: one window in the hands of the operator, with its timers.

Nothing here decides when a window emits or whether a record is late.
"""

from __future__ import annotations

import copy
from typing import Any

from flowcore.windows.config import WindowConfig
from flowcore.windows.contents import Accumulating, ContentLogic
from flowcore.windows.functions import WindowContext, compute_outputs
from flowcore.windows.merging import Merge, apply_merge
from flowcore.windows.rows import WindowResult
from flowcore.windows.state import KeyState, Pane, WindowState, WindowTimer
from flowcore.windows.window import TimeWindow

__all__ = ["OpenPane", "copy_key", "forget_if_empty", "forget_key", "merge_panes", "open_pane", "put_key"]


class OpenPane:
    """A window, its state and the timers of all: what its trigger sees (a `TriggerContext`)."""

    __slots__ = ("_all", "key", "key_state", "pane", "window")

    def __init__(
        self, state: WindowState, key: Any, key_state: KeyState, window: TimeWindow, pane: Pane
    ) -> None:
        self._all = state
        self.key = key
        self.key_state = key_state
        self.window = window
        self.pane = pane

    @property
    def state(self) -> Any:
        """What the trigger keeps."""
        return self.pane.trigger

    @state.setter
    def state(self, kept: Any) -> None:
        self.pane.trigger = kept

    @property
    def watermark_ms(self) -> int:
        """How far event time has come."""
        return self._all.watermark_ms

    @property
    def clock_ms(self) -> int:
        """The clock."""
        return self._all.clock_ms

    def register_event_timer(self, time_ms: int) -> None:
        """Have the trigger asked once the watermark is there."""
        self.pane.event_timers.add(time_ms)
        self._all.event_timers.add(self._timer(), time_ms)

    def register_processing_timer(self, time_ms: int) -> None:
        """Have the trigger asked once the clock is there."""
        self.pane.processing_timers.add(time_ms)
        self._all.processing_timers.add(self._timer(), time_ms)

    def delete_event_timer(self, time_ms: int) -> None:
        """Forget a timer."""
        self.pane.event_timers.discard(time_ms)
        self._all.event_timers.discard(self._timer(), time_ms)

    def delete_processing_timer(self, time_ms: int) -> None:
        """Forget a timer."""
        self.pane.processing_timers.discard(time_ms)
        self._all.processing_timers.discard(self._timer(), time_ms)

    def await_end(self, config: WindowConfig) -> None:
        """Have the window forgotten in time."""
        end_ms = config.end_ms(self.window)
        if end_ms is not None:
            queue = self._all.event_timers if config.time == "event" else self._all.processing_timers
            queue.add(self._timer(ends_window=True), end_ms, last=True)

    def cancel_timers(self, config: WindowConfig) -> None:
        """Forget all timers of the window, its end among them."""
        for time_ms in tuple(self.pane.event_timers):
            self.delete_event_timer(time_ms)
        for time_ms in tuple(self.pane.processing_timers):
            self.delete_processing_timer(time_ms)
        end_ms = config.end_ms(self.window)
        if end_ms is not None:
            queue = self._all.event_timers if config.time == "event" else self._all.processing_timers
            queue.discard(self._timer(ends_window=True), end_ms)

    def fire(self, config: WindowConfig, logic: ContentLogic, *, is_late: bool) -> list[WindowResult]:
        """Emit; a window without records emits nothing, also when an evictor has left none."""
        pane, evictor = self.pane, config.evictor
        if pane.content and evictor is not None and not evictor.after:
            pane.content = evictor.keep(pane.content)
        if not pane.content:
            return []
        pane.firings += 1
        context = self.function_context(config, is_late=is_late)
        values = compute_outputs(config.function, logic.inputs(pane.content), context)
        if evictor is not None and evictor.after:
            pane.content = evictor.keep(pane.content)
        return [WindowResult(self.key, value, self.window, pane.firings, is_late) for value in values]

    def close(self, config: WindowConfig) -> None:
        """Forget the window, whether or not it has emitted."""
        self.cancel_timers(config)
        if config.function.then is not None:
            config.function.then.clear(self.function_context(config, is_late=False))
        self.forget()

    def forget(self) -> None:
        """Forget the window; nobody is asked."""
        del self.key_state.panes[self.key_state.windows.pop(self.window)]

    def function_context(self, config: WindowConfig, *, is_late: bool) -> WindowContext:
        """What a process function sees."""
        return WindowContext(
            key=self.key,
            window=self.window,
            watermark_ms=self.watermark_ms,
            clock_ms=self.clock_ms,
            firing=self.pane.firings,
            is_late=is_late,
            is_backlog=self._all.backlog,
            own=None if config.assigner.merging else self.pane.own,
            key_state=self.key_state.own,
        )

    def _timer(self, *, ends_window: bool = False) -> WindowTimer:
        return WindowTimer(self.key, self.window, ends_window)


def open_pane(state: WindowState, key: Any, key_state: KeyState, window: TimeWindow) -> OpenPane:
    """A window that does not merge now, with what is kept of it."""
    state_window = key_state.windows.setdefault(window, window)
    pane = key_state.panes.get(state_window)
    if pane is None:
        pane = key_state.panes[state_window] = Pane()
    return OpenPane(state, key, key_state, window, pane)


def merge_panes(
    state: WindowState, key: Any, key_state: KeyState, merge: Merge, config: WindowConfig
) -> OpenPane:
    """A window that may have been made of others, with what was kept of them."""
    if not merge.merged:
        return open_pane(state, key, key_state, merge.window)
    for window in merge.merged:
        part = key_state.panes[key_state.windows[window]]
        OpenPane(state, key, key_state, window, part).cancel_timers(config)
    panes = [key_state.panes[merge.state], *(key_state.panes.pop(other) for other in merge.merged_states)]
    apply_merge(key_state.windows, merge)
    merged = panes[0]
    kept = [pane.trigger for pane in panes]
    merged.content = config.content_logic.merge(pane.content for pane in panes)
    merged.firings = max(pane.firings for pane in panes)
    merged.trigger = None
    opened = OpenPane(state, key, key_state, merge.window, merged)
    config.effective_trigger.on_merge(kept, opened)
    return opened


def forget_if_empty(state: WindowState, key: Any, key_state: KeyState) -> None:
    """Take a key out of a state of which nothing is kept."""
    if key_state.empty:
        del state.keys[key]


def forget_key(state: WindowState, key: Any, config: WindowConfig) -> None:
    """Take a key out of a state, with its timers; nothing happens if it is not there."""
    key_state = state.keys.pop(key, None)
    if key_state is not None:
        for window, state_window in key_state.windows.items():
            pane = key_state.panes[state_window]
            OpenPane(state, key, key_state, window, pane).cancel_timers(config)


def copy_key(key_state: KeyState, config: WindowConfig) -> KeyState:
    """A copy of a key that no function which is given the key's next record can change.

    Records that are kept as they came are in both.
    """
    folded = isinstance(config.content_logic, Accumulating)
    return KeyState(
        key_state.arrivals,
        dict(key_state.windows),
        {
            window: Pane(
                content=copy.deepcopy(pane.content) if folded else list(pane.content),
                trigger=copy.deepcopy(pane.trigger),
                event_timers=set(pane.event_timers),
                processing_timers=set(pane.processing_timers),
                firings=pane.firings,
                own=copy.deepcopy(pane.own),
            )
            for window, pane in key_state.panes.items()
        },
        copy.deepcopy(key_state.own),
    )


def put_key(state: WindowState, key: Any, key_state: KeyState | None, config: WindowConfig) -> None:
    """Let a key be this, or nothing; its timers too."""
    forget_key(state, key, config)
    if key_state is None:
        return
    state.keys[key] = key_state
    for window, state_window in key_state.windows.items():
        pane = key_state.panes[state_window]
        opened = OpenPane(state, key, key_state, window, pane)
        for time_ms in tuple(pane.event_timers):
            opened.register_event_timer(time_ms)
        for time_ms in tuple(pane.processing_timers):
            opened.register_processing_timer(time_ms)
        opened.await_end(config)
