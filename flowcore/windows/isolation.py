"""Failure isolation of windows: a failing call of a user function is rolled back, and processing continues.

- A record whose fold, merge or trigger fails is removed from all its windows.
- A window that cannot emit keeps its records and its number of firings. If its trigger purges, it is purged.
- A trigger that fails at a timer is not called again for that time.
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from flowcore.windows.config import WindowConfig
from flowcore.windows.operator import TimerHandler, WindowOperator
from flowcore.windows.panes import OpenPane, copy_key, delete_if_empty, replace_key
from flowcore.windows.state import Emissions, KeyedRecord, WindowResult, WindowState
from flowcore.windows.triggers import TriggerResult
from flowcore.windows.window import TimeWindow

__all__ = ["FailedRecord", "FailedWindow", "IsolatingWindowOperator"]


@dataclass(frozen=True, slots=True)
class FailedRecord:
    """A record for which a function raised an error."""

    record: KeyedRecord
    error: Exception


@dataclass(frozen=True, slots=True)
class FailedWindow:
    """A window for which a function raised an error.

    Attributes:
        firing: 1-based number of the firing that failed.
        values: Its records, or the value that they were folded into.
    """

    key: Any
    window: TimeWindow
    firing: int
    values: tuple[Any, ...]
    error: Exception


class IsolatingWindowOperator(WindowOperator):
    """The window operator with failure isolation, which makes it slower.

    Args:
        require: Raises an error for results that cannot be emitted.

    Attributes:
        failed: The failures, in order.
    """

    def __init__(self, config: WindowConfig, require: Callable[[Sequence[WindowResult]], object]) -> None:
        super().__init__(config)
        self.failed: list[FailedRecord | FailedWindow] = []
        self._require = require

    def process(self, state: WindowState, records: Iterable[KeyedRecord]) -> Emissions:
        """Add the records to their windows, except those that fail."""
        seen = Emissions()
        for record in records:
            present = state.keys.get(record.key)
            before = None if present is None else copy_key(present, self.config)
            own = Emissions()
            try:
                self._add(state, record, self._assign(record, state.processing_time_ms), own)
            except Exception as error:  # noqa: BLE001 - a user's function may raise anything
                replace_key(state, record.key, before, self.config)
                self.failed.append(FailedRecord(record, error))
            else:
                seen.extend(own)
        state.dropped_records += seen.dropped_records
        return seen

    def _handle_timer(
        self, handler: TimerHandler, time_ms: int, state: WindowState, opened: OpenPane, seen: Emissions
    ) -> None:
        before, values = copy_key(opened.key_state, self.config), _values(opened)
        try:
            result = handler(time_ms, opened)
        except Exception as error:  # noqa: BLE001
            replace_key(state, opened.key, before, self.config)
            self._record_failure(opened, values, error)
        else:
            self._apply(result, opened, seen, is_late=False)

    def _apply(self, result: TriggerResult, opened: OpenPane, seen: Emissions, *, is_late: bool) -> None:
        if not result.fires:
            super()._apply(result, opened, seen, is_late=is_late)
            return
        pane, key_state = opened.pane, opened.key_state
        before = copy.deepcopy((pane.content, pane.own, key_state.own))
        firings, own = pane.firings, Emissions()
        try:
            super()._apply(result, opened, own, is_late=is_late)
            self._require(own.results)
        except Exception as error:  # noqa: BLE001
            pane.content, pane.own, key_state.own = before
            pane.firings = firings
            self._record_failure(opened, _values(opened), error)
            if result.purges:
                pane.content = []
        else:
            seen.results += own.results

    def _delete(self, state: WindowState, opened: OpenPane) -> None:
        own, values = copy.deepcopy(opened.key_state.own), _values(opened)
        try:
            super()._delete(state, opened)
        except Exception as error:  # noqa: BLE001
            opened.key_state.own = own
            self._record_failure(opened, values, error)
            opened.delete()
            delete_if_empty(state, opened.key, opened.key_state)

    def _record_failure(self, opened: OpenPane, values: tuple[Any, ...], error: Exception) -> None:
        firing = opened.pane.firings + 1
        self.failed.append(FailedWindow(opened.key, opened.window, firing, values, error))


def _values(opened: OpenPane) -> tuple[Any, ...]:
    return tuple(record.value for record in opened.pane.content)
