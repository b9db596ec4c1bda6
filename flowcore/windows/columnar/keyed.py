"""Columnar windows, as an operator on key groups.

They are tumbling windows, sliding windows and sessions of one gap, by event time, and running aggregates, all
with built-in aggregates of numbers. Their results are those of `flowcore.windows.WindowOperator`, computed
without a loop over records.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from flowcore.windows.assigners import GlobalWindows, SessionWindows, SlidingWindows, TumblingWindows
from flowcore.windows.built_in import BuiltIns
from flowcore.windows.columnar.accumulators import ColumnarAggregates
from flowcore.windows.columnar.group import ColumnarConfig
from flowcore.windows.columnar.pane_grid import PaneGrid
from flowcore.windows.columnar.running_group import RunningGroup
from flowcore.windows.columnar.session_group import SessionGroup
from flowcore.windows.columnar.sliding_group import SlidingGroup
from flowcore.windows.config import WindowConfig
from flowcore.windows.functions import WindowAggregate
from flowcore.windows.triggers import Count, EventTimeTrigger

__all__ = ["ColumnarWindows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnarWindows(ColumnarConfig):
    """The operator; see `refusal` for the windows that it supports."""

    memory_factor: ClassVar[int] = 4

    @staticmethod
    def refusal(config: WindowConfig, types: Mapping[str, pa.DataType], *, latest_only: bool) -> str | None:
        """Return why windows are not supported, None if they are.

        Args:
            latest_only: Of the results of a window that the same records cause, only the last one leaves.
        """
        is_running = latest_only and type(config.assigner) is GlobalWindows and config.trigger == Count(1)
        assigner = config.assigner
        # One that is derived from them assigns as it likes.
        fixed = type(assigner) in {TumblingWindows, SlidingWindows, SessionWindows}
        if not fixed and not is_running:
            return f"{type(assigner).__name__} are not tumbling, sliding or sessions of one gap"
        if isinstance(assigner, SlidingWindows) and assigner.slide_ms == 1 and assigner.size_ms > 1:
            return "they slide by 1 ms, so that at the ends of time their numbers do not fit 64 bits"
        if config.time != "event":
            return "they are windows of processing time"
        if not is_running and config.trigger not in (None, EventTimeTrigger()):
            return f"they have the trigger {config.trigger!r}"
        if config.evictor is not None:
            return f"they have the evictor {config.evictor!r}"
        match config.function:
            case WindowAggregate(function=BuiltIns(columns=columns), then=None):
                return ColumnarAggregates.refusal(columns, types)
            case _:
                return "their function is Python"

    @property
    def layout(self) -> str:
        """The name of the state layout: the length of panes, and the accumulators."""
        columns = ", ".join(f"{each.name}:{each.dtype.__name__}" for each in self.aggregates.accumulators)
        match self.config.assigner:
            case TumblingWindows() | SlidingWindows() as assigner:
                grid = PaneGrid.from_assigner(assigner)
                what = f"panes of {grid.pane_ms} ms at {grid.offset_ms % grid.pane_ms}"
            case SessionWindows():
                what = "sessions"
            case _:
                what = "running"
        return f"{what} by {', '.join(self.keys)}: {columns}"

    def open(self) -> SlidingGroup | SessionGroup | RunningGroup:
        match self.config.assigner:
            case TumblingWindows() | SlidingWindows() as assigner:
                return SlidingGroup(self, PaneGrid.from_assigner(assigner))
            case SessionWindows(gap_ms=gap_ms):
                return SessionGroup(self, gap_ms)
            case GlobalWindows():
                return RunningGroup(self)
            case _:
                msg = f"{self.config.assigner!r} cannot be computed by column: call ColumnarWindows.refusal"
                raise TypeError(msg)
