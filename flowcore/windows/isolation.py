"""Lenient: how do windows go on when a user's function in them fails?

What fails while a record is put into its windows (a fold, a merge, a trigger that is shown it) is undone
for all of them: the record was never there. A window that cannot emit keeps its records as they were, and
counts no emission; a trigger that empties it behind that has it emptied. A trigger that fails at its time is
not asked again for that time.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from flowcore.windows.config import WindowConfig
from flowcore.windows.operator import Asked, WindowOperator
from flowcore.windows.panes import OpenPane, copy_key, forget_if_empty, put_key
from flowcore.windows.rows import Emissions, KeyedRecord, WindowResult
from flowcore.windows.state import WindowState
from flowcore.windows.triggers import TriggerResult
from flowcore.windows.window import TimeWindow

__all__ = ["FailedRecord", "FailedWindow", "IsolatingWindowOperator"]


@dataclass(frozen=True, slots=True)
class FailedRecord:
    """A record that is in no window, and what was raised for it."""

    record: KeyedRecord
    error: Exception


@dataclass(frozen=True, slots=True)
class FailedWindow:
    """A window of which a function failed.

    Attributes:
        key: Its key.
        window: The window.
        firing: The how-many-th emission it would have been.
        values: What it holds: its records, or what they were folded into.
        error: What was raised.
    """

    key: Any
    window: TimeWindow
    firing: int
    values: tuple[Any, ...]
    error: Exception


class IsolatingWindowOperator(WindowOperator):
    """The window operator, where failures are taken back and noted; slower, and else the same.

    Args:
        config: What to do.
        require: Raises for results that nobody could take.

    Attributes:
        failed: In order.
    """

    def __init__(self, config: WindowConfig, require: Callable[[Sequence[WindowResult]], None]) -> None:
        super().__init__(config)
        self.failed: list[FailedRecord | FailedWindow] = []
        self._require = require

    def process(self, state: WindowState, records: Iterable[KeyedRecord]) -> Emissions:
        """Put records into their windows, those that can be."""
        seen = Emissions()
        for record in records:
            held = state.keys.get(record.key)
            before = None if held is None else copy_key(held, self.config)
            own = Emissions()
            try:
                self._add(state, record, self._windows_of(record, state.clock_ms), own)
            except Exception as error:  # noqa: BLE001 - a user's function may raise anything
                put_key(state, record.key, before, self.config)
                self.failed.append(FailedRecord(record, error))
            else:
                seen.extend(own)
        state.dropped_records += seen.dropped_records
        return seen

    def _ask(
        self, trigger: Asked, time_ms: int, state: WindowState, opened: OpenPane, seen: Emissions
    ) -> None:
        before = copy_key(opened.key_state, self.config)
        values = _values(opened)
        try:
            verdict = trigger(time_ms, opened)
        except Exception as error:  # noqa: BLE001
            put_key(state, opened.key, before, self.config)
            self._note(opened, values, error)
        else:
            self._obey(verdict, opened, seen, is_late=False)

    def _obey(self, verdict: TriggerResult, opened: OpenPane, seen: Emissions, *, is_late: bool) -> None:
        if not verdict.fires:
            super()._obey(verdict, opened, seen, is_late=is_late)
            return
        pane, key_state = opened.pane, opened.key_state
        kept = copy.deepcopy((pane.content, pane.own, key_state.own))
        firings, own = pane.firings, Emissions()
        try:
            super()._obey(verdict, opened, own, is_late=is_late)
            self._require(own.results)
        except Exception as error:  # noqa: BLE001
            pane.content, pane.own, key_state.own = kept
            pane.firings = firings
            self._note(opened, _values(opened), error)
            if verdict.purges:
                pane.content = []
        else:
            seen.results += own.results

    def _close(self, state: WindowState, opened: OpenPane) -> None:
        own, values = copy.deepcopy(opened.key_state.own), _values(opened)
        try:
            super()._close(state, opened)
        except Exception as error:  # noqa: BLE001
            opened.key_state.own = own
            self._note(opened, values, error)
            opened.forget()
            forget_if_empty(state, opened.key, opened.key_state)

    def _note(self, opened: OpenPane, values: tuple[Any, ...], error: Exception) -> None:
        firing = opened.pane.firings + 1
        self.failed.append(FailedWindow(opened.key, opened.window, firing, values, error))


def _values(opened: OpenPane) -> tuple[Any, ...]:
    return tuple(record.value for record in opened.pane.content)
