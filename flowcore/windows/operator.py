"""The window operator: from records, watermarks and processing time to the outputs of windows.

It is logic only: it gets the state, changes it, and returns the outputs.

A record is refused before anything has changed. It is added to all its windows that are not late. If there is
none and the record itself is late, it goes to the side output or is counted as dropped. Sessions are merged
before lateness is decided, so a late session changes nothing.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from flowcore.elements import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from flowcore.errors import ElementError, NoTimestampError
from flowcore.windows.config import WindowConfig, WindowTime
from flowcore.windows.contents import StoredRecord
from flowcore.windows.panes import OpenPane, delete_if_empty, merge_panes, open_pane
from flowcore.windows.state import Emissions, KeyedRecord, KeyState, WindowState
from flowcore.windows.triggers import TriggerResult
from flowcore.windows.window import TimeWindow, plan_merge

__all__ = ["TimerHandler", "WindowOperator"]

TimerHandler = Callable[[int, OpenPane], TriggerResult]
"""The method of a trigger that handles a timer."""


class WindowOperator:
    """Assigns records to windows, calls triggers, and emits."""

    def __init__(self, config: WindowConfig) -> None:
        self.config = config
        self._trigger = config.effective_trigger
        self._logic = config.content_logic

    def process(self, state: WindowState, records: Iterable[KeyedRecord]) -> Emissions:
        """Add records to their windows.

        Raises:
            NoTimestampError: A record that needs a timestamp has none; nothing has changed.
            ElementError: A timestamp is outside of 64-bit time; nothing has changed.
            InvalidWindowError: The gap of a session is negative; nothing has changed.
        """
        assigned = [(record, self._assign(record, state.processing_time_ms)) for record in records]
        seen = Emissions()
        for record, windows in assigned:
            self._add(state, record, windows, seen)
        state.dropped_records += seen.dropped_records
        return seen

    def advance_watermark(self, state: WindowState, watermark_ms: int) -> Emissions:
        """Advance event time; a watermark that is not above the current one is ignored."""
        if watermark_ms <= state.watermark_ms:
            return Emissions()
        state.watermark_ms = watermark_ms
        return self._run_timers(state, "event", watermark_ms)

    def advance_processing_time(self, state: WindowState, processing_time_ms: int) -> Emissions:
        """Advance processing time.

        A clock that goes back does not take processing time back: a window that has closed would be opened
        and fired again with the same record ids.
        """
        state.processing_time_ms = max(state.processing_time_ms, processing_time_ms)
        return self._run_timers(state, "processing", state.processing_time_ms)

    def ended_ms(self, state: WindowState) -> int:
        """Return the time up to which windows have ended, and records are late.

        A longer allowed lateness does not change that: such a window would begin anew, with record ids that
        it has used.
        """
        return max(state.ended_ms, self.config.ended_ms(state.watermark_ms))

    def _run_timers(self, state: WindowState, time: WindowTime, now_ms: int) -> Emissions:
        seen, queue, is_event_time = Emissions(), state.timers(time), time == "event"
        handler = self._trigger.on_event_time if is_event_time else self._trigger.on_processing_time
        while (due := queue.next_due(now_ms)) is not None:
            timer, time_ms = due
            opened = open_pane(self.config, state, timer.key, state.keys[timer.key], timer.window)
            if timer.ends_window and not opened.has_ended(time_ms):
                opened.register_end()
            elif timer.ends_window:
                self._delete(state, opened)
            else:
                pane = opened.pane
                (pane.event_timers if is_event_time else pane.processing_timers).discard(time_ms)
                self._handle_timer(handler, time_ms, state, opened, seen)
        return seen

    def _assign(self, record: KeyedRecord, processing_time_ms: int) -> Sequence[TimeWindow]:
        time_ms = processing_time_ms if self.config.time == "processing" else record.timestamp_ms
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
        stored = StoredRecord(record.timestamp_ms, record.value)
        added = False
        for window in windows:
            opened = self._open(state, record.key, key_state, window)
            if opened is None:
                continue
            added = True
            self._logic.add(opened.pane.content, stored)
            if self.config.ttl_ms is not None or self.config.newest_timestamp:
                opened.renew(record.timestamp_ms)
            opened.register_end()
            result = self._trigger.on_element(record.value, record.timestamp_ms, opened)
            complete = self.config.has_lateness and opened.window.last_ms <= state.watermark_ms
            self._apply(result, opened, seen, is_late=complete)
        if added:
            return
        delete_if_empty(state, record.key, key_state)
        if record.timestamp_ms is not None and self._is_late(state, record.timestamp_ms):
            if self.config.late == "side-output":
                seen.late.append(record)
            else:
                seen.dropped_records += 1

    def _open(self, state: WindowState, key: Any, key_state: KeyState, window: TimeWindow) -> OpenPane | None:
        """Open the window that contains this window after merging; None if the merged window is late."""
        if not self.config.assigner.merging:
            late = self._is_late(state, window.last_ms)
            return None if late else open_pane(self.config, state, key, key_state, window)
        ended_ms = self.ended_ms(state) if self.config.has_lateness else MIN_TIMESTAMP_MS - 1
        merge = plan_merge(key_state.touched(window, ended_ms), window)
        if self._is_late(state, merge.window.last_ms):
            return None
        return merge_panes(self.config, state, key, key_state, merge)

    def _handle_timer(
        self, handler: TimerHandler, time_ms: int, state: WindowState, opened: OpenPane, seen: Emissions
    ) -> None:
        self._apply(handler(time_ms, opened), opened, seen, is_late=False)

    def _apply(self, result: TriggerResult, opened: OpenPane, seen: Emissions, *, is_late: bool) -> None:
        if result.fires:
            seen.results += opened.fire(self._logic, is_late=is_late)
        if result.purges:
            opened.pane.content = []

    def _delete(self, state: WindowState, opened: OpenPane) -> None:
        opened.clear()
        delete_if_empty(state, opened.key, opened.key_state)

    def _is_late(self, state: WindowState, time_ms: int) -> bool:
        return self.config.has_lateness and time_ms <= self.ended_ms(state)
