"""The grid of aligned windows: which panes is time cut into, and which windows are made of them?

Tumbling and sliding windows are unions of *panes*, whose length is the greatest that divides both size and
slide. Panes and windows are numbered; numbers fit 64 bits, while the bounds of windows at the ends of 64-bit
time do not, and are cut off there (`flowcore.windows.window`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

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
        size_ms: Length of a window.
        slide_ms: Distance between two.
        offset_ms: Where one begins, 0 or more and less than the slide.
    """

    size_ms: int
    slide_ms: int
    offset_ms: int

    @classmethod
    def of(cls, assigner: TumblingWindows | SlidingWindows) -> PaneGrid:
        """The grid of some windows."""
        slide_ms = assigner.slide_ms if isinstance(assigner, SlidingWindows) else assigner.size_ms
        return cls(assigner.size_ms, slide_ms, assigner.offset_ms % slide_ms)

    @property
    def pane_ms(self) -> int:
        """Length of a pane."""
        return math.gcd(self.size_ms, self.slide_ms)

    def panes(self, times_ms: Ints) -> Ints:
        """The pane of each time."""
        # Without a subtraction that leaves 64 bits.
        pane_ms = self.pane_ms
        return times_ms // pane_ms - (times_ms % pane_ms < self.offset_ms % pane_ms)

    def windows_of(self, pane: int) -> tuple[int, int]:
        """The first and the last window that a pane is in."""
        rest = pane - self._first_pane
        return (rest - self._panes_in_window) // self._panes_in_slide + 1, rest // self._panes_in_slide

    def panes_of(self, window: int) -> range:
        """The panes of a window."""
        first = self._first_pane + self._panes_in_slide * window
        return range(first, first + self._panes_in_window)

    def complete_by(self, time_ms: int) -> int:
        """The last window whose last millisecond has come."""
        if time_ms == MAX_TIMESTAMP_MS:
            return EVERY_WINDOW
        return (time_ms - self.size_ms + 1 - self.offset_ms) // self.slide_ms

    def panes_within(self, window: int) -> int:
        """The pane below which all are in no window after this one."""
        return self._first_pane + self._panes_in_slide * (window + 1)

    def panes_reaching(self, window: int) -> int:
        """The pane below which all are in this window or in an earlier one."""
        return self._first_pane + self._panes_in_slide * window + self._panes_in_window

    def window(self, number: int) -> TimeWindow:
        """A window by its number."""
        start_ms = self.offset_ms + self.slide_ms * number
        return TimeWindow.within_time(start_ms, start_ms + self.size_ms)

    def below(self, panes: Ints, bound: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Which panes have a number below one that may be beyond 64 bits."""
        found: np.ndarray[tuple[int], np.dtype[np.bool_]] = panes < bound
        return found

    @property
    def _first_pane(self) -> int:
        return self.offset_ms // self.pane_ms

    @property
    def _panes_in_slide(self) -> int:
        return self.slide_ms // self.pane_ms

    @property
    def _panes_in_window(self) -> int:
        return self.size_ms // self.pane_ms
