"""Panes: the state of one window with its timers, and operations on it.

The operator decides when a window emits and whether a record is late.
"""

import copy
from typing import Any

from flowcore.windows.config import WindowConfig, WindowTime
from flowcore.windows.contents import Accumulating, ContentLogic
from flowcore.windows.functions import WindowContext
from flowcore.windows.state import KeyState, Lifetime, Pane, WindowResult, WindowState, WindowTimer
from flowcore.windows.window import Merge, TimeWindow, apply_merge

__all__ = ["OpenPane", "copy_key", "delete_if_empty", "delete_key", "merge_panes", "open_pane", "replace_key"]


class OpenPane:
    """A window with its state and the timers of all windows; the `TriggerContext` of its trigger."""

    __slots__ = ("_all", "_config", "key", "key_state", "pane", "window")

    def __init__(
        self, config: WindowConfig, state: WindowState, key: Any, key_state: KeyState, window: TimeWindow
    ) -> None:
        self._config = config
        self._all = state
        self.key = key
        self.key_state = key_state
        self.window = window
        self.pane = key_state.panes[key_state.windows[window]]

    @property
    def state(self) -> Any:
        return self.pane.trigger

    @state.setter
    def state(self, state: Any) -> None:
        self.pane.trigger = state

    @property
    def window_time(self) -> WindowTime:
        return self._config.time

    @property
    def watermark_ms(self) -> int:
        return self._all.watermark_ms

    @property
    def processing_time_ms(self) -> int:
        return self._all.processing_time_ms

    def register_event_timer(self, time_ms: int) -> None:
        self.pane.event_timers.add(time_ms)
        self._all.event_timers.add(self._timer(), time_ms)

    def register_processing_timer(self, time_ms: int) -> None:
        self.pane.processing_timers.add(time_ms)
        self._all.processing_timers.add(self._timer(), time_ms)

    def delete_event_timer(self, time_ms: int) -> None:
        self.pane.event_timers.discard(time_ms)
        self._all.event_timers.discard(self._timer(), time_ms)

    def delete_processing_timer(self, time_ms: int) -> None:
        self.pane.processing_timers.discard(time_ms)
        self._all.processing_timers.discard(self._timer(), time_ms)

    def register_end(self) -> None:
        """Register the timer that deletes the window."""
        end_ms = self._config.end_ms(self.window)
        if end_ms is not None:
            self._all.timers(self._config.time).add(self._timer(ends_window=True), end_ms, last=True)
        expires_ms, timers = self._expires_ms(), self._all.processing_timers
        # One timer serves all records of a key; when it is due, a later one may be necessary.
        if expires_ms is not None and not timers.times_of(self._timer(ends_window=True)):
            timers.add(self._timer(ends_window=True), expires_ms)

    def renew(self, timestamp_ms: int | None) -> None:
        """Begin the time to live anew, for a record that was added."""
        life = self.pane.life or Lifetime(self.processing_time_ms, self.processing_time_ms, None)
        self.pane.life = life.renew(self.processing_time_ms, timestamp_ms)

    def has_ended(self, time_ms: int) -> bool:
        """Whether the window ends at the timer of this time, unless its time to live has begun anew."""
        expires_ms = self._expires_ms()
        return expires_ms is None or expires_ms <= time_ms

    def delete_timers(self) -> None:
        """Delete all timers of the window, also the one at its end."""
        self.pane.event_timers.clear()
        self.pane.processing_timers.clear()
        for queue in filter(len, (self._all.event_timers, self._all.processing_timers)):
            queue.discard_all(self._timer())
            queue.discard_all(self._timer(ends_window=True))

    def fire(self, logic: ContentLogic, *, is_late: bool) -> list[WindowResult]:
        """Emit; a window whose records are all evicted emits nothing."""
        pane, evictor, then = self.pane, self._config.evictor, self._config.function.then
        if pane.content and evictor is not None and not evictor.after:
            pane.content = evictor.keep(pane.content)
        if not pane.content:
            return []
        pane.firings += 1
        context = self._context(is_late=is_late)
        values = logic.inputs(pane.content)
        if then is not None:
            values = list(then.process(context, values))
        if evictor is not None and evictor.after:
            pane.content = evictor.keep(pane.content)
        window = self.window
        if pane.life is not None and self._config.ttl_ms is not None:
            # A key that returns after its expiry has other record ids.
            window = TimeWindow(pane.life.began_ms, window.end_ms)
        return [WindowResult(self.key, value, window, pane.firings, is_late, pane.life) for value in values]

    def clear(self) -> None:
        """Call the function's ``clear`` and delete the window with its timers."""
        self.delete_timers()
        if self._config.function.then is not None:
            self._config.function.then.clear(self._context(is_late=False))
        self.delete()

    def delete(self) -> None:
        """Delete the window; a time to live is that of the key's state, too."""
        self.key_state.delete(self.window)
        if self._config.ttl_ms is not None:
            self.key_state.own = {}

    def _expires_ms(self) -> int | None:
        life = self.pane.life
        return None if self._config.ttl_ms is None or life is None else life.used_ms + self._config.ttl_ms

    def _context(self, *, is_late: bool) -> WindowContext:
        return WindowContext(
            key=self.key,
            window=self.window,
            watermark_ms=self.watermark_ms,
            processing_time_ms=self.processing_time_ms,
            firing=self.pane.firings,
            is_late=is_late,
            is_backlog=self._all.backlog,
            own=None if self._config.assigner.merging else self.pane.own,
            key_state=self.key_state.own,
        )

    def _timer(self, *, ends_window: bool = False) -> WindowTimer:
        return WindowTimer(self.key, self.window, ends_window)


def open_pane(
    config: WindowConfig, state: WindowState, key: Any, key_state: KeyState, window: TimeWindow
) -> OpenPane:
    """Open a window that does not merge."""
    state_window = key_state.windows.setdefault(window, window)
    if state_window not in key_state.panes:
        key_state.panes[state_window] = Pane()
    return OpenPane(config, state, key, key_state, window)


def merge_panes(
    config: WindowConfig, state: WindowState, key: Any, key_state: KeyState, merge: Merge
) -> OpenPane:
    """Open a window after merging the windows that it consists of."""
    key_state.replace_touched(merge.window)
    if not merge.merged:
        return open_pane(config, state, key, key_state, merge.window)
    for window in merge.merged:
        OpenPane(config, state, key, key_state, window).delete_timers()
    panes = [key_state.panes[merge.state], *(key_state.panes.pop(other) for other in merge.merged_states)]
    apply_merge(key_state.windows, merge)
    merged = panes[0]
    states = [pane.trigger for pane in panes]
    merged.content = config.content_logic.merge(pane.content for pane in panes)
    merged.firings = max(pane.firings for pane in panes)
    merged.trigger = None
    opened = OpenPane(config, state, key, key_state, merge.window)
    config.effective_trigger.on_merge(states, opened)
    return opened


def delete_if_empty(state: WindowState, key: Any, key_state: KeyState) -> None:
    """Delete a key without windows and function state."""
    if key_state.empty:
        del state.keys[key]


def delete_key(state: WindowState, key: Any, config: WindowConfig) -> None:
    """Delete a key and its timers, if it is there."""
    key_state = state.keys.pop(key, None)
    if key_state is not None:
        for window in key_state.windows:
            OpenPane(config, state, key, key_state, window).delete_timers()


def copy_key(key_state: KeyState, config: WindowConfig) -> KeyState:
    """Copy the state of a key, so that functions called for its next record do not change the copy.

    Both share stored records, which functions do not get.
    """
    folded = isinstance(config.content_logic, Accumulating)
    return KeyState(
        dict(key_state.windows),
        {
            window: Pane(
                content=copy.deepcopy(pane.content) if folded else list(pane.content),
                trigger=copy.deepcopy(pane.trigger),
                event_timers=set(pane.event_timers),
                processing_timers=set(pane.processing_timers),
                firings=pane.firings,
                own=copy.deepcopy(pane.own),
                life=pane.life,
            )
            for window, pane in key_state.panes.items()
        },
        copy.deepcopy(key_state.own),
    )


def replace_key(state: WindowState, key: Any, key_state: KeyState | None, config: WindowConfig) -> None:
    """Replace or delete the state of a key and its timers."""
    delete_key(state, key, config)
    if key_state is None:
        return
    state.keys[key] = key_state
    for window in key_state.windows:
        opened = OpenPane(config, state, key, key_state, window)
        for time_ms in tuple(opened.pane.event_timers):
            opened.register_event_timer(time_ms)
        for time_ms in tuple(opened.pane.processing_timers):
            opened.register_processing_timer(time_ms)
        if config.ttl_ms is not None and opened.pane.life is None:  # it was kept without one
            opened.renew(None)
        opened.register_end()
