"""Panes of tumbling and sliding windows.

Such a window is a union of *panes*, whose length is the greatest that divides both size and slide. Panes and
windows have numbers, which fit 64 bits. The bounds of windows at the ends of 64-bit time do not fit; they are
cut off (`flowcore.windows.window`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from flowcore.elements import MAX_TIMESTAMP_MS
from flowcore.keyed.key_index import Ints
from flowcore.windows.assigners import SlidingWindows, TumblingWindows
from flowcore.windows.window import TimeWindow

__all__ = ["EVERY_WINDOW", "PaneGrid"]

EVERY_WINDOW = 1 << 80
"""A number above those of all windows."""


@dataclass(frozen=True, slots=True)
class PaneGrid:
    """Panes and windows by number.

    Args:
        offset_ms: The start of a window, at least 0 and less than the slide.
    """

    size_ms: int
    slide_ms: int
    offset_ms: int

    @classmethod
    def from_assigner(cls, assigner: TumblingWindows | SlidingWindows) -> PaneGrid:
        slide_ms = assigner.slide_ms if isinstance(assigner, SlidingWindows) else assigner.size_ms
        return cls(assigner.size_ms, slide_ms, assigner.offset_ms % slide_ms)

    @property
    def pane_ms(self) -> int:
        return math.gcd(self.size_ms, self.slide_ms)

    def panes_at(self, times_ms: Ints) -> Ints:
        # No subtraction that could overflow 64 bits.
        pane_ms = self.pane_ms
        return times_ms // pane_ms - (times_ms % pane_ms < self.offset_ms % pane_ms)

    def windows_of(self, pane: int) -> tuple[int, int]:
        """Return the first and the last window that contain a pane."""
        rest = pane - self._first_pane
        return (rest - self._panes_in_window) // self._panes_in_slide + 1, rest // self._panes_in_slide

    def panes_of(self, window: int) -> range:
        first = self._first_pane + self._panes_in_slide * window
        return range(first, first + self._panes_in_window)

    def last_complete(self, time_ms: int) -> int:
        """Return the last window whose last millisecond is not after a time."""
        if time_ms == MAX_TIMESTAMP_MS:
            return EVERY_WINDOW
        return (time_ms - self.size_ms + 1 - self.offset_ms) // self.slide_ms

    def first_pane_after(self, window: int) -> int:
        """Return the first pane of the next window; the panes before it are in no later window."""
        return self.panes_of(window + 1).start

    def window(self, number: int) -> TimeWindow:
        start_ms = self.offset_ms + self.slide_ms * number
        return TimeWindow.within_time(start_ms, start_ms + self.size_ms)

    @property
    def _first_pane(self) -> int:
        return self.offset_ms // self.pane_ms

    @property
    def _panes_in_slide(self) -> int:
        return self.slide_ms // self.pane_ms

    @property
    def _panes_in_window(self) -> int:
        return self.size_ms // self.pane_ms
