"""The window operator: from records, watermarks and the clock to what windows emit.

Logic only: state is passed in and changed, what comes out is returned. It does not know where records
come from, where state is kept or who merges watermarks.

A record is refused before anything has changed. It counts in all its windows that are not late; if it
counted in none and is late itself, it leaves through the side output or is counted as dropped. Sessions
are merged first and judged late afterwards, so a late one leaves no trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from flowcore.elements import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from flowcore.errors import ElementError, NoTimestampError
from flowcore.windows.config import WindowConfig
from flowcore.windows.contents import StoredRecord
from flowcore.windows.merging import plan_merge
from flowcore.windows.panes import OpenPane, forget_if_empty, merge_panes, open_pane
from flowcore.windows.rows import Emissions, KeyedRecord
from flowcore.windows.state import KeyState, WindowState, WindowTimer
from flowcore.windows.triggers import TriggerResult
from flowcore.windows.window import TimeWindow

__all__ = ["Asked", "WindowOperator"]

Asked = Callable[[int, OpenPane], TriggerResult]
"""What a trigger is asked by, at a time."""


class WindowOperator:
    """What is done with records, watermarks and the clock.

    Args:
        config: What to do.
    """

    def __init__(self, config: WindowConfig) -> None:
        self.config = config
        self._trigger = config.effective_trigger
        self._logic = config.content_logic

    def process(self, state: WindowState, records: Iterable[KeyedRecord]) -> Emissions:
        """Put records into their windows.

        Raises:
            NoTimestampError: One has none, and needs one; nothing has changed.
            ElementError: A timestamp is outside of 64-bit time; nothing has changed.
            InvalidWindowError: The gap of a session is negative; nothing has changed.
        """
        assigned = [(record, self._windows_of(record, state.clock_ms)) for record in records]
        seen = Emissions()
        for record, windows in assigned:
            self._add(state, record, windows, seen)
        state.dropped_records += seen.dropped_records
        return seen

    def advance_watermark(self, state: WindowState, watermark_ms: int) -> Emissions:
        """Let event time come this far; a watermark that is not above the current one is ignored."""
        seen = Emissions()
        if watermark_ms <= state.watermark_ms:
            return seen
        state.watermark_ms = watermark_ms
        while (due := state.event_timers.next_due(watermark_ms)) is not None:
            timer, time_ms = due
            opened = self._due(state, timer)
            if timer.ends_window:
                self._close(state, opened)
                continue
            opened.pane.event_timers.discard(time_ms)
            self._ask(self._trigger.on_event_time, time_ms, state, opened, seen)
        return seen

    def end_of_input(self, state: WindowState) -> Emissions:
        """No record will follow: the maximum watermark."""
        return self.advance_watermark(state, MAX_TIMESTAMP_MS)

    def advance_clock(self, state: WindowState, clock_ms: int) -> Emissions:
        """Let the clock move to this time."""
        seen = Emissions()
        state.clock_ms = clock_ms
        while (due := state.processing_timers.next_due(clock_ms)) is not None:
            timer, time_ms = due
            opened = self._due(state, timer)
            if timer.ends_window:
                self._close(state, opened)
                continue
            opened.pane.processing_timers.discard(time_ms)
            self._ask(self._trigger.on_processing_time, time_ms, state, opened, seen)
        return seen

    def _windows_of(self, record: KeyedRecord, clock_ms: int) -> Sequence[TimeWindow]:
        time_ms = clock_ms if self.config.time == "processing" else record.timestamp_ms
        if time_ms is None:
            if self.config.assigner.bounded:
                msg = (
                    f"the record {record.value!r} of key {record.key!r} has no timestamp: it belongs to no "
                    "window of event time; set event_time on its source, or use windows of processing time"
                )
                raise NoTimestampError(msg)
            time_ms = MIN_TIMESTAMP_MS
        if not MIN_TIMESTAMP_MS <= time_ms <= MAX_TIMESTAMP_MS:
            msg = f"timestamp_ms={time_ms} is out of range: no window can hold it; pass 64-bit milliseconds"
            raise ElementError(msg)
        return self.config.assigner.assign(time_ms, record.key, record.value)

    def _add(
        self, state: WindowState, record: KeyedRecord, windows: Sequence[TimeWindow], seen: Emissions
    ) -> None:
        key_state = state.keys.get(record.key)
        if key_state is None:
            key_state = state.keys[record.key] = KeyState()
        held = StoredRecord(key_state.arrivals, record.timestamp_ms, record.value)
        counted = False
        for window in windows:
            opened = self._open(state, record.key, key_state, window)
            if opened is None:
                continue
            counted = True
            self._logic.add(opened.pane.content, held)
            opened.await_end(self.config)
            verdict = self._trigger.on_element(record.value, record.timestamp_ms, opened)
            self._obey(verdict, opened, seen, is_late=self._is_complete(state, opened.window))
        if counted:
            key_state.arrivals += 1
            return
        forget_if_empty(state, record.key, key_state)
        if self._is_late(state, record.timestamp_ms):
            if self.config.late == "side-output":
                seen.late.append(record)
            else:
                seen.dropped_records += 1

    def _open(self, state: WindowState, key: Any, key_state: KeyState, window: TimeWindow) -> OpenPane | None:
        """The window as it is after merging, None if that is late."""
        if not self.config.assigner.merging:
            return None if self._has_ended(state, window) else open_pane(state, key, key_state, window)
        merge = plan_merge(key_state.windows, window)
        if self._has_ended(state, merge.window):
            return None
        return merge_panes(state, key, key_state, merge, self.config)

    def _ask(
        self,
        trigger: Asked,
        time_ms: int,
        state: WindowState,
        opened: OpenPane,
        seen: Emissions,
    ) -> None:
        self._obey(trigger(time_ms, opened), opened, seen, is_late=False)

    def _obey(self, verdict: TriggerResult, opened: OpenPane, seen: Emissions, *, is_late: bool) -> None:
        if verdict.fires:
            seen.results += opened.fire(self.config, self._logic, is_late=is_late)
        if verdict.purges:
            opened.pane.content = []

    def _due(self, state: WindowState, timer: WindowTimer) -> OpenPane:
        return open_pane(state, timer.key, state.keys[timer.key], timer.window)

    def _close(self, state: WindowState, opened: OpenPane) -> None:
        opened.close(self.config)
        forget_if_empty(state, opened.key, opened.key_state)

    def _has_ended(self, state: WindowState, window: TimeWindow) -> bool:
        if not self.config.has_lateness:
            return False
        return self.config.after_lateness_ms(window.last_ms) <= state.watermark_ms

    def _is_complete(self, state: WindowState, window: TimeWindow) -> bool:
        return self.config.has_lateness and window.last_ms <= state.watermark_ms

    def _is_late(self, state: WindowState, timestamp_ms: int | None) -> bool:
        if not self.config.has_lateness or timestamp_ms is None:
            return False
        return self.config.after_lateness_ms(timestamp_ms) <= state.watermark_ms
