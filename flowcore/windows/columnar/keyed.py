"""Windows folded by column: which can be, and what are they configured with?

Tumbling and sliding windows and sessions of one gap, by event time, whose function is made of built-in
aggregates of numbers: the same results as `flowcore.windows.WindowOperator`, without a look at each record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from flowcore.keyed.output_columns import LATE, RESULTS, WINDOW_FIELDS
from flowcore.windows.assigners import SessionWindows, SlidingWindows, TumblingWindows
from flowcore.windows.built_in import BuiltIns
from flowcore.windows.columnar.accumulators import ColumnarAggregates
from flowcore.windows.columnar.pane_grid import PaneGrid
from flowcore.windows.columnar.session_group import SessionGroup
from flowcore.windows.columnar.sliding_group import SlidingGroup
from flowcore.windows.config import WindowConfig
from flowcore.windows.functions import WindowAggregate
from flowcore.windows.triggers import EventTimeTrigger

__all__ = ["ColumnarWindows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnarWindows:
    """Configuration of windows that are folded by column.

    Attributes:
        config: What the windows do; see `refusal`.
        keys: The key's columns; none for one key for all.
        timestamp: The column of the records' timestamps, a 64-bit integer.
        rows: The columns of records.
        late: Those of late records.
    """

    config: WindowConfig
    keys: tuple[str, ...]
    timestamp: str
    rows: pa.Schema
    late: tuple[str, ...] = ()

    @staticmethod
    def refusal(config: WindowConfig, types: Mapping[str, pa.DataType]) -> str | None:
        """Why windows cannot be folded by column, None if they can.

        Args:
            config: What they do.
            types: Of the columns that their aggregates read.
        """
        match config.assigner:
            case SlidingWindows(size_ms=size_ms, slide_ms=1) if size_ms > 1:
                return "they slide by 1 ms, so that at the ends of time their numbers do not fit 64 bits"
            case TumblingWindows() | SlidingWindows() | SessionWindows():
                pass
            case _:
                return f"{type(config.assigner).__name__} are neither aligned nor sessions of one gap"
        if config.time != "event":
            return "they follow the clock"
        if config.trigger not in (None, EventTimeTrigger()):
            return f"they have the trigger {config.trigger!r}"
        if config.evictor is not None:
            return f"they have the evictor {config.evictor!r}"
        match config.function:
            case WindowAggregate(function=BuiltIns(columns=columns), then=None):
                return ColumnarAggregates.refusal(columns, types)
            case _:
                return "their function is Python"

    @property
    def folding(self) -> ColumnarAggregates:
        """Their aggregates."""
        match self.config.function:
            case WindowAggregate(function=BuiltIns(columns=columns)):
                return ColumnarAggregates(columns, {field.name: field.type for field in self.rows})
            case _:
                msg = f"{self.config.function!r} cannot be folded by column: call ColumnarWindows.refusal"
                raise TypeError(msg)

    @property
    def layout(self) -> str:
        """Panes of another length, and other fields, cannot be gone on from."""
        fields = ", ".join(f"{field.name}:{field.dtype.__name__}" for field in self.folding.fields)
        what = "sessions"
        if isinstance(self.config.assigner, (TumblingWindows, SlidingWindows)):
            grid = PaneGrid.of(self.config.assigner)
            what = f"panes of {grid.pane_ms} ms at {grid.offset_ms % grid.pane_ms}"
        return f"{what} by {', '.join(self.keys)}: {fields}"

    @property
    def outputs(self) -> Mapping[str, pa.Schema]:
        """Results and late records."""
        keys = [(name, self.rows.field(name).type) for name in self.keys]
        results = [*keys, *self.folding.result_types().items(), *WINDOW_FIELDS]
        return {RESULTS: pa.schema(results), LATE: pa.schema([self.rows.field(name) for name in self.late])}

    def open(self) -> SlidingGroup | SessionGroup:
        """A key group without state."""
        match self.config.assigner:
            case TumblingWindows() | SlidingWindows() as assigner:
                return SlidingGroup(self, PaneGrid.of(assigner))
            case SessionWindows(gap_ms=gap_ms):
                return SessionGroup(self, gap_ms)
            case _:
                msg = f"{self.config.assigner!r} cannot be folded: call ColumnarWindows.refusal"
                raise TypeError(msg)
