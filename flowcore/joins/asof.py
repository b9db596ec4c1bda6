"""The as-of join of two streams, as an operator on key groups.

The partner of a left row is the right row with an equal key and the latest timestamp that is not later than
the left one, and at most ``tolerance_ms`` earlier; of equal timestamps, the last to arrive. The watermark is
the combined watermark of both sides; a row up to it is late. So a left row is decided when the watermark
reaches its timestamp, since no later right row can change the answer. Then it is emitted, with its own
timestamp, and removed.

Of the right rows up to the watermark, the newest of each key is kept, until the watermark is ``tolerance_ms``
past it. Later ones wait for the watermark.

Times are integer milliseconds since the epoch, UTC.

Source: Flink's event-time temporal join (``TemporalRowTimeJoinOperator``), and the tolerance of
``pandas.merge_asof``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from flowcore.elements import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from flowcore.joins.group import LEFT, RIGHT, JoinConfig, JoinGroup, NewRows, shift_times
from flowcore.keyed.key_index import Ints
from flowcore.keyed.operator import StepOutputs

__all__ = ["AsOfJoin", "AsOfJoinGroup"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AsOfJoin(JoinConfig):
    """Configuration; ``how`` is ``"inner"`` or ``"left"``.

    Attributes:
        tolerance_ms: How much earlier than the left row a right row is at most, 0 or more; None for any time.
    """

    tolerance_ms: int | None = None

    @property
    def partners(self) -> str:
        within = "any time" if self.tolerance_ms is None else f"{self.tolerance_ms} ms"
        return f"newest within {within}"

    def last_partner_ms(self, side: int, times_ms: Ints) -> Ints:
        if side == LEFT:
            return times_ms
        if self.tolerance_ms is None:
            return np.full(len(times_ms), MAX_TIMESTAMP_MS)
        return shift_times(times_ms, self.tolerance_ms)

    def first_partner_ms(self, times_ms: Ints) -> Ints:
        """The first timestamp of a partner of left rows with these timestamps."""
        if self.tolerance_ms is None:
            return np.full(len(times_ms), MIN_TIMESTAMP_MS)
        return shift_times(times_ms, -self.tolerance_ms)

    def open(self) -> AsOfJoinGroup:
        return AsOfJoinGroup(self)


class AsOfJoinGroup(JoinGroup[AsOfJoin]):
    """A key group."""

    def advance_watermark(self, watermark_ms: int, out: StepOutputs) -> None:
        """Emit the left rows that are decided, and remove them and the right rows that nothing can match."""
        self._watermark_ms = watermark_ms
        left, right = self._sides
        decided = left.end(watermark_ms)
        if len(decided):
            times_ms = left.times_ms[decided]
            first_ms = self._config.first_partner_ms(times_ms)
            places, found = right.find(left.codes[decided], first_ms, times_ms).newest()
            if self._config.how == "inner":
                decided, places, times_ms = decided[found], places[found], times_ms[found]
                found = found[found]
            self._emit_joined(left.rows.take(decided), places, found, times_ms, out)
        right.end(watermark_ms)
        self._remove_ended()

    def header(self) -> Mapping[str, Any]:
        """The watermark, the next id and, for readers of the state, how long right rows are kept."""
        return {**super().header(), "tolerance_ms": self._config.tolerance_ms}

    def _remove_ended(self) -> None:
        self._sides[RIGHT].end_replaced()
        super()._remove_ended()

    def _join(self, new: NewRows, out: StepOutputs) -> None:  # noqa: ARG002 - the watermark decides
        for side, chosen in ((LEFT, ~new.is_right), (RIGHT, new.is_right)):
            self._add(side, new, np.flatnonzero(chosen))
