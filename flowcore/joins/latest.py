"""The join of a stream with the newest row of another one, as an operator on key groups.

Each left row is joined when it arrives, with the right row of its key that arrived last. Right rows of a call
are added before its left rows. No row is late. A right row is kept until a newer one of its key arrives, or
until its time to live is over in processing time. A newer row may delete its key: then there is no partner.

Left rows may wait until the right side is loaded: when the watermark of both sides reaches a time, when all
inputs are idle, or at the end of input. Then the left rows are emitted in the order of their arrival, with
their own timestamps. Until then no watermark is emitted, so that they are not late downstream.

Times are integer milliseconds since the epoch, UTC.

Source: Flink's processing-time temporal join (``TemporalProcessTimeJoinOperator``), and FLIP-579 for the
load.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flowcore.elements import (
    MAX_TIMESTAMP_MS,
    MIN_TIMESTAMP_MS,
    LatencyMarker,
    RecordAttributes,
    Watermark,
    WatermarkStatus,
)
from flowcore.joins.group import LEFT, RIGHT, JoinConfig, JoinGroup, NewRows, shift_times
from flowcore.keyed.content import read_expired_ms
from flowcore.keyed.key_index import Ints
from flowcore.keyed.operator import StepOutputs

__all__ = ["LatestJoin", "LatestJoinGroup"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LatestJoin(JoinConfig):
    """Configuration; ``how`` is ``"inner"`` or ``"left"``.

    Attributes:
        load: When the right side is loaded: the watermark of this time; ``"caught-up"`` for the time at which
            the query began; None for at once.
        ttl_ms: How long a right row is kept after its arrival, in processing time; None for ever.
        deleted: The column among those of ``right`` that is true where a row deletes its key; None if no row
            does.
    """

    load: Literal["caught-up"] | int | None
    ttl_ms: int | None
    deleted: str | None = None

    @property
    def partners(self) -> str:
        return "newest on arrival"  # load and time to live may change

    def last_partner_ms(self, side: int, times_ms: Ints) -> Ints:
        if side == LEFT or self.ttl_ms is None:
            return np.full(len(times_ms), MAX_TIMESTAMP_MS)
        return shift_times(times_ms, self.ttl_ms)

    def open(self) -> LatestJoinGroup:
        return LatestJoinGroup(self)


class LatestJoinGroup(JoinGroup[LatestJoin]):
    """A key group. The times of right rows are those of their arrival."""

    def __init__(self, config: LatestJoin) -> None:
        super().__init__(config)
        self._loaded = config.load is None
        self._began_ms: int | None = None
        self._processing_time_ms = MIN_TIMESTAMP_MS
        self._expired_ms = MIN_TIMESTAMP_MS
        """Right rows that came until then have expired, by the times to live so far."""
        self._held_ms = MIN_TIMESTAMP_MS
        self._backlog: bool | None = None

    @property
    def emits_control(self) -> bool:  # type: ignore[override]
        """Whether left rows wait, and with them the watermarks and statuses downstream of them."""
        return not self._loaded

    def advance_processing_time(self, processing_time_ms: int, out: StepOutputs) -> None:
        """Load the right side if an earlier ``load`` waited for more than this one does."""
        self._processing_time_ms = max(self._processing_time_ms, processing_time_ms)
        if self._config.ttl_ms is not None:
            self._expired_ms = max(self._expired_ms, self._processing_time_ms - self._config.ttl_ms)
        if self._began_ms is None:
            self._began_ms = processing_time_ms
        if self._is_loaded_at(self._held_ms):
            self._load_now(out)
        self._end_rows()

    def attributes(self, attributes: RecordAttributes, out: StepOutputs) -> None:  # noqa: ARG002 - as watermarks
        self._backlog = attributes.backlog

    def marker(self, marker: LatencyMarker, out: StepOutputs) -> None:
        """Emit a marker, unless left rows wait: their latency is how long the load takes."""
        if self._loaded:
            out.markers.append(marker)

    def advance_watermark(self, watermark_ms: int, out: StepOutputs) -> None:
        """Load the right side if this is the time for which the left rows wait."""
        if self._is_loaded_at(watermark_ms):
            self._load(out)
        elif not self._loaded:
            self._held_ms = watermark_ms

    def status(self, status: WatermarkStatus, out: StepOutputs) -> None:
        """Load the right side if no input has more rows."""
        if not self._loaded and status.idle:
            self._load_now(out)

    def header(self) -> Mapping[str, Any]:
        """When it began, the clock, what is loaded and has expired, and which rows delete their key."""
        return {
            **super().header(),
            "backlog": self._backlog,
            "began_ms": self._began_ms,
            "clock_ms": self._processing_time_ms,
            "deleted": self._config.deleted,
            "expired_ms": self._expired_ms,
            "held_ms": self._held_ms,
            "loaded": self._loaded,
            "ttl_ms": self._config.ttl_ms,
            # Left rows that wait may be of any time before the watermark that arrived.
            "watermark_delay_ms": 0 if self._loaded else MAX_TIMESTAMP_MS,
        }

    def restore(self, header: Mapping[str, Any], pieces: Iterator[bytes]) -> None:
        self._began_ms, self._processing_time_ms = header["began_ms"], header["clock_ms"]
        self._held_ms, self._loaded = header["held_ms"], header["loaded"]
        self._backlog = header["backlog"]
        super().restore(header, pieces)
        # That a row has expired is not in the pieces: it depends on the time to live of then, not of now.
        self._expired_ms = max(self._expired_ms, read_expired_ms(header))
        self._sides[RIGHT].forget(self._expired_ms)
        self._end_rows()

    def _times_of(self, rows: pa.RecordBatch) -> Ints:
        is_right = rows.column(self._config.side).to_numpy(zero_copy_only=False)
        return np.where(is_right, self._processing_time_ms, super()._times_of(rows))

    def _join(self, new: NewRows, out: StepOutputs) -> None:
        self._add(RIGHT, new, np.flatnonzero(new.is_right))
        left = np.flatnonzero(~new.is_right)
        if self._loaded:
            stored = self._stored_columns(new.rows.take(left), LEFT)
            self._emit_now(new.codes[left], new.times_ms[left], stored, out)
        else:
            self._add(LEFT, new, left)

    def _is_loaded_at(self, watermark_ms: int) -> bool:
        """Whether left rows wait, and this watermark ends that."""
        load = self._began_ms if self._config.load == "caught-up" else self._config.load
        return not self._loaded and (load is None or watermark_ms >= load)

    def _load_now(self, out: StepOutputs) -> None:
        """Load the right side, then emit the last watermark, which left rows have delayed."""
        self._load(out)
        if self._held_ms > MIN_TIMESTAMP_MS:
            out.control(Watermark(self._held_ms))

    def _load(self, out: StepOutputs) -> None:
        """Emit the left rows that waited."""
        self._loaded = True
        if self._backlog is not None:
            out.control(RecordAttributes(self._backlog))
        left = self._sides[LEFT]
        self._emit_now(left.codes, left.times_ms, left.rows, out)
        self._end_rows()

    def _emit_now(self, codes: Ints, times_ms: Ints, left: pa.RecordBatch, out: StepOutputs) -> None:
        """Emit left rows with their current partners."""
        right = self._sides[RIGHT]
        ends = np.full(len(codes), self._expired_ms + 1), np.full(len(codes), self._processing_time_ms)
        places, found = right.find(codes, *ends).newest()
        if found.any():
            found &= ~self._are_deleted()[places]
        if self._config.how == "inner":
            left, places, times_ms = left.filter(pa.array(found)), places[found], times_ms[found]
            found = found[found]
        self._emit_joined(left, places, found, times_ms, out)

    def _end_rows(self) -> None:
        """End the left rows that have left, and the right rows that are replaced or too old."""
        if self._loaded:
            self._sides[LEFT].end(MAX_TIMESTAMP_MS)
        right = self._sides[RIGHT]
        right.end(self._processing_time_ms)
        right.end_replaced()
        if self._config.deleted is not None and len(right):
            right.end_saved(self._are_deleted())
        self._remove_ended()

    def _are_deleted(self) -> npt.NDArray[np.bool_]:
        """Whether each right row deletes its key."""
        rows = self._sides[RIGHT].rows
        if self._config.deleted is None:
            return np.zeros(rows.num_rows, np.bool_)
        flags = rows.column(self._config.deleted).fill_null(fill_value=False)
        return np.asarray(flags.to_numpy(zero_copy_only=False), np.bool_)
