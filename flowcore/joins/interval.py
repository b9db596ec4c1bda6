"""The interval join of two streams, as an operator on key groups.

A left and a right row are partners if their keys are equal, and the right timestamp is at most ``before_ms``
before the left one and at most ``after_ms`` after it.

A left row can have partners until the watermark reaches its timestamp plus ``after_ms``, a right row until
its timestamp plus ``before_ms``. Then it is removed. If it had no partner, and the join keeps unmatched rows
of its side, it is emitted at that moment, with nulls instead of a partner. Rows without key are emitted at
once.

An allowed lateness delays all of this: a row is late, and a row is removed, when the watermark less the
lateness reaches the time that is said above. So a row that is behind the watermark by less than the lateness
finds all of its partners, each pair is emitted once, and an unmatched row is final when it is emitted.

The timestamp of a pair is the later one of both rows, and an unmatched row has its own timestamp. So that
none of them is late downstream, the emitted watermark is `IntervalJoin.watermark_delay_ms` older than the one
that arrives.

In processing time, the timestamp of a row is the time of its batch, and processing time takes the place of
the watermark: an interval of the same length in both directions is the time to live of a regular join. No row
is late then, and pairs have no timestamp. An unmatched row is emitted in the step in which it arrives, and
deleted when its first partner arrives. Removing a row from state changes nothing that was emitted.

Times are integer milliseconds since the epoch, UTC.

Source: Flink's interval join (``IntervalJoinOperator``), the watermark delay of ``RowTimeIntervalJoin``,
which contains its allowed lateness, and its regular join (``StreamingJoinOperator``), which removes rows a
time to live after they were written. Kafka Streams' outer joins emit unmatched rows after the grace period.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from flowcore.elements import MIN_TIMESTAMP_MS
from flowcore.joins.group import LEFT, RIGHT, JoinConfig, JoinGroup, NewRows, shift_times
from flowcore.keyed.key_index import Ints
from flowcore.keyed.operator import StepOutputs
from flowcore.watermarks.merge import delay_watermark

__all__ = ["IntervalJoin", "IntervalJoinGroup"]


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalJoin(JoinConfig):
    """Configuration.

    Attributes:
        time: ``"event"``: the timestamps of rows, and watermarks; ``"processing"``: processing time. Then
            timestamps are not read.
        before_ms: How much earlier than the left row a right row is at most, 0 or more.
        after_ms: How much later than the left row a right row is at most, 0 or more.
        allowed_lateness_ms: In event time, how far behind the watermark a row may be that is not late yet: a
            row is late if it is as far behind, or farther. 0 or more.
    """

    before_ms: int
    after_ms: int
    allowed_lateness_ms: int = 0
    time: Literal["event", "processing"] = "event"

    @property
    def partners(self) -> str:
        # A time to live may change: it counts from then on, for all rows that have not expired.
        return f"{self.before_ms} to {self.after_ms} ms" if self.time == "event" else "in processing time"

    @property
    def watermark_delay_ms(self) -> int:
        """How much older than the watermark an emitted row may be: a late pair, or an unmatched row."""
        if self.retracts:
            return 0
        left, right = self.keeps_unmatched
        return self.allowed_lateness_ms + max(self.after_ms * left, self.before_ms * right)

    @property
    def retracts(self) -> bool:
        return self.time == "processing" and any(self.keeps_unmatched)

    def partners_ms(self, side: int, times_ms: Ints) -> tuple[Ints, Ints]:
        """The first and the last timestamp of the partners that rows of a side may have."""
        earlier_ms, later_ms = self.before_ms, self.after_ms
        if side == RIGHT:
            earlier_ms, later_ms = later_ms, earlier_ms
        return shift_times(times_ms, -earlier_ms), shift_times(times_ms, later_ms)

    def last_partner_ms(self, side: int, times_ms: Ints) -> Ints:
        return self.partners_ms(side, times_ms)[1]

    def open(self) -> IntervalJoinGroup:
        return IntervalJoinGroup(self)


class IntervalJoinGroup(JoinGroup[IntervalJoin]):
    """A key group."""

    def __init__(self, config: IntervalJoin) -> None:
        super().__init__(config)
        self._first_new = (0, 0)
        """The places of the first rows of this step, by side."""
        self._expired_ms = MIN_TIMESTAMP_MS
        """In processing time: rows that came until then have expired, by the times to live so far."""
        self._delay_ms = config.watermark_delay_ms
        """How much older than the last watermark the emitted one was, by the allowed lateness of then."""

    def advance_processing_time(self, processing_time_ms: int, out: StepOutputs) -> None:
        if self._config.time == "processing":
            # More rows of this time can still arrive; a clock that was set back waits.
            self._advance(max(processing_time_ms - 1, self._watermark_ms), out)
            self._expired_ms = max(self._expired_ms, self._watermark_ms - self._config.after_ms)

    def advance_watermark(self, watermark_ms: int, out: StepOutputs) -> None:
        if self._config.time == "event":
            self._delay_ms = self._config.watermark_delay_ms
            # A lateness that became longer brings no rows back that were removed by the shorter one.
            late_ms = delay_watermark(watermark_ms, self._config.allowed_lateness_ms)
            self._advance(max(late_ms, self._watermark_ms), out)

    def _advance(self, watermark_ms: int, out: StepOutputs) -> None:
        """Emit the unmatched rows that can have no partner any more, and remove the rows that have ended."""
        self._watermark_ms = watermark_ms
        for number, side in enumerate(self._sides):
            places = side.end(watermark_ms)
            if self._keeps[number] and len(places) and not self._config.retracts:
                self._emit_alone(number, side.rows.take(places), side.times_ms[places], out)
        self._remove_ended()

    def header(self) -> Mapping[str, Any]:
        """How far time has advanced, the next id, what has expired and, for readers, how long rows are kept.

        ``watermark_ms`` is the watermark less the allowed lateness: the time up to which rows are late.
        """
        expired = {"expired_ms": self._expired_ms} if self._config.time == "processing" else {}
        return {
            **super().header(),
            **expired,
            "before_ms": self._config.before_ms,
            "after_ms": self._config.after_ms,
            "watermark_delay_ms": self._delay_ms,
        }

    def restore(self, header: Mapping[str, Any], pieces: Iterator[bytes]) -> None:
        super().restore(header, pieces)
        self._delay_ms = header["watermark_delay_ms"]
        if self._config.time == "processing":
            # An earlier version did not write it.
            expired_ms = header.get("expired_ms", header["watermark_ms"] - header["after_ms"])
            self._expired_ms = max(self._expired_ms, expired_ms)
            for side in self._sides:
                side.forget(self._expired_ms)

    def _times_of(self, rows: pa.RecordBatch) -> Ints:
        if self._config.time == "processing":
            return np.full(rows.num_rows, self._watermark_ms + 1)
        return super()._times_of(rows)

    def _timestamps(self, times_ms: Ints) -> pa.Array[Any]:
        if self._config.time == "processing":
            return pa.nulls(len(times_ms), pa.int64())
        return super()._timestamps(times_ms)

    def _join(self, new: NewRows, out: StepOutputs) -> None:
        """Emit the pairs of new rows with stored rows and with each other."""
        left, right = self._sides
        codes, times_ms = new.codes, new.times_ms
        new_left, new_right = (np.flatnonzero(mine) for mine in (~new.is_right, new.is_right))
        first_left, first_right = self._first_new = len(left), len(right)
        self._add(RIGHT, new, new_right)
        found_right = right.find(codes[new_left], *self._config.partners_ms(LEFT, times_ms[new_left]))
        found_left = left.find(codes[new_right], *self._config.partners_ms(RIGHT, times_ms[new_right]))
        self._add(LEFT, new, new_left)
        for probing, places in found_right.pairs():
            self._emit_pairs(first_left + probing, places, out)
        for probing, places in found_left.pairs():
            self._emit_pairs(places, first_right + probing, out)
        if self._config.retracts:
            for side in (LEFT, RIGHT):
                self._emit_unmatched(side, out)

    def _emit_pairs(self, left_places: Ints, right_places: Ints, out: StepOutputs) -> None:
        left, right = self._sides
        if self._config.how == "semi":
            new = left.match(left_places)
            if len(new):
                self._emit_alone(LEFT, left.rows.take(new), left.times_ms[new], out)
            return
        for side, places in ((LEFT, left_places), (RIGHT, right_places)):
            if self._keeps[side]:
                self._match(side, places, out)
        if self._config.how == "anti":
            return
        taken = [left.rows.take(left_places), right.rows.take(right_places)]
        times_ms = np.maximum(left.times_ms[left_places], right.times_ms[right_places])
        self._emit(taken[LEFT], taken[RIGHT], times_ms, out)

    def _match(self, number: int, places: Ints, out: StepOutputs) -> None:
        """Mark rows as matched; delete the rows of earlier steps that were emitted as unmatched."""
        side = self._sides[number]
        new = side.match(places)
        new = new[new < self._first_new[number]]
        if self._config.retracts and len(new):
            self._emit_alone(number, side.rows.take(new), side.times_ms[new], out, deleted=True)

    def _emit_unmatched(self, number: int, out: StepOutputs) -> None:
        """Emit the rows of this step that have no partner."""
        side = self._sides[number]
        places = side.unmatched(self._first_new[number])
        if self._keeps[number] and len(places):
            self._emit_alone(number, side.rows.take(places), side.times_ms[places], out)
