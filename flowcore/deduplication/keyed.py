"""Deduplication, as an operator on key groups: of equal keys that are close in time, the first record passes.

A record *repeats* an earlier record that has passed, if both have the same key and timestamps less than
``within_ms`` apart. Repeats are dropped, and other records pass unchanged at once. In processing time, the
timestamp of a record is the time of its batch.

Passed keys are remembered in *buckets*: by timestamp, and by the watermark at their arrival if that is later,
both in steps of ``within_ms``. A record can only repeat one whose timestamp is in the same step or a
neighbouring one. A bucket is forgotten as a whole, when the watermark is ``within_ms`` past its end. So a key
is remembered until the watermark has advanced by one to two times ``within_ms``, however late its record was.

Times are integer milliseconds since the epoch, UTC.

Source: Spark's ``dropDuplicatesWithinWatermark`` guarantees the same for records that are not late, and drops
late ones. Flink's FLIP-614 (``DEDUPLICATE_KEEP_FIRST`` without ``on_time``) emits the first record at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flowcore.elements import MIN_TIMESTAMP_MS
from flowcore.keyed import segments
from flowcore.keyed.columns import concat_batches, take_rows, timestamps_of
from flowcore.keyed.key_index import Ints, factorize_keys, to_python_keys
from flowcore.keyed.operator import KeyGroup, KeyGroupOperator, StepOutputs
from flowcore.keyed.output_columns import RESULTS

__all__ = ["Deduplication", "DeduplicationGroup"]

_ROWS_AT_ONCE = 1 << 13
"""Repeats within one call are found in rounds over all its rows, so that their number is limited."""
_ROWS_PER_PIECE = 1 << 16
_TIME, _ARRIVAL = "time_ms", "arrival_ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deduplication(KeyGroupOperator):
    """Configuration.

    Attributes:
        keys: The key's columns. Null equals null.
        within_ms: How far apart the timestamps of repeats are at most, exclusive, > 0. None for any distance.
        time: ``"event"``: the timestamps of records, and watermarks; ``"processing"``: processing time.
        timestamp: The column of the records' timestamps, a 64-bit integer.
        passed: The columns of a record that passes.
        pass_null_keys: Records without key pass and are counted, instead of repeating each other. The key
            has one column then.
    """

    keys: tuple[str, ...]
    within_ms: int | None
    time: Literal["event", "processing"]
    timestamp: str
    rows: pa.Schema
    passed: tuple[str, ...]
    pass_null_keys: bool = False
    memory_factor: ClassVar[int] = 4

    @property
    def layout(self) -> str:
        """The state layout. ``within_ms`` may change: it counts for what is remembered from then on."""
        types = ", ".join(str(self.rows.field(name).type) for name in self.keys)
        return f"seen by {', '.join(self.keys)}: {types} at {self.time} time"

    @property
    def outputs(self) -> Mapping[str, pa.Schema]:
        return {RESULTS: pa.schema([self.rows.field(name) for name in self.passed])}

    def open(self) -> DeduplicationGroup:
        return DeduplicationGroup(self)


@dataclass(slots=True)
class _Bucket:
    """Remembered keys.

    Attributes:
        times_ms: The timestamp of each key's record, of several the last.
        earliest_ms: Of a key with several, the first. A shorter length has let them pass.
        rows: The keys' columns, their timestamps, and the later of timestamp and watermark at their arrival.
        unsaved: The rows that no delta contains yet.
    """

    times_ms: dict[Any, int] = field(default_factory=dict)
    earliest_ms: dict[Any, int] = field(default_factory=dict)
    rows: list[pa.RecordBatch] = field(default_factory=list)
    unsaved: list[pa.RecordBatch] = field(default_factory=list)

    def merge(self, keys: Iterable[Any], times_ms: Iterable[int]) -> None:
        """Add keys that it may have, at other times."""
        for key, time_ms in zip(keys, times_ms, strict=True):
            last_ms = self.times_ms.setdefault(key, time_ms)
            if last_ms != time_ms:
                self.times_ms[key] = max(last_ms, time_ms)
                self.earliest_ms[key] = min(last_ms, time_ms, self.earliest_ms.get(key, time_ms))


class DeduplicationGroup(KeyGroup):
    """A key group."""

    def __init__(self, config: Deduplication) -> None:
        self._config = config
        self._now_ms = MIN_TIMESTAMP_MS
        """The watermark, or processing time."""
        self._buckets: dict[int, dict[int, _Bucket]] = {}
        """By the step of their timestamps, and that of their arrival."""

    def advance_processing_time(self, processing_time_ms: int, out: StepOutputs) -> None:  # noqa: ARG002 - emits nothing
        if self._config.time == "processing":
            self._advance(processing_time_ms)

    def rows(self, rows: pa.RecordBatch, out: StepOutputs) -> None:
        """Emit the records that repeat none, in order of arrival."""
        for start in range(0, rows.num_rows, _ROWS_AT_ONCE):
            part = rows.slice(start, _ROWS_AT_ONCE)
            passed = self._select(part, out)
            out.count("repeated_records", part.num_rows - int(passed.sum()))
            if not passed.all():
                part = part.filter(pa.array(passed))
            out.rows(RESULTS, part.select(list(self._config.passed)))

    def advance_watermark(self, watermark_ms: int, out: StepOutputs) -> None:  # noqa: ARG002
        if self._config.time == "event":
            self._advance(watermark_ms)

    def header(self) -> Mapping[str, Any]:
        """The watermark or processing time and, for readers of the state, how long keys are remembered."""
        return {"now_ms": self._now_ms, "within_ms": self._config.within_ms}

    def delta(self) -> bytes | None:
        """The keys since the last delta that are still remembered."""
        parts = [batch for bucket in self._all() for batch in bucket.unsaved]
        self._mark_saved()
        return segments.encode({"seen": concat_batches(parts)}) if parts else None

    def snapshot(self) -> Iterator[bytes]:
        self._mark_saved()
        for bucket in self._all():
            bucket.rows = [concat_batches(bucket.rows)]
            for start in range(0, bucket.rows[0].num_rows, _ROWS_PER_PIECE):
                yield segments.encode({"seen": bucket.rows[0].slice(start, _ROWS_PER_PIECE)})

    def restore(self, header: Mapping[str, Any], pieces: Iterator[bytes]) -> None:
        for piece in pieces:
            for _, rows in segments.decode(piece):
                self._remember(to_python_keys(rows.columns[:-2], rows.num_rows), rows, restored=True)
        self._mark_saved()
        self._advance(header["now_ms"])

    def _all(self) -> Iterator[_Bucket]:
        for buckets in self._buckets.values():
            yield from buckets.values()

    def _mark_saved(self) -> None:
        for bucket in self._all():
            bucket.unsaved = []

    def _advance(self, now_ms: int) -> None:
        """Forget the buckets that have ended."""
        self._now_ms = max(self._now_ms, now_ms)
        within_ms = self._config.within_ms
        if within_ms is None:
            return
        for number, buckets in [*self._buckets.items()]:
            for arrival in [each for each in buckets if (each + 2) * within_ms <= self._now_ms]:
                del buckets[arrival]
            if not buckets:
                del self._buckets[number]

    def _select(self, rows: pa.RecordBatch, out: StepOutputs) -> npt.NDArray[np.bool_]:
        """Which records pass; they are remembered."""
        columns = [rows.column(name) for name in self._config.keys]
        times_ms, keys = self._times_of(rows), factorize_keys(columns, rows.num_rows)
        values = to_python_keys(take_rows(columns, keys.first), len(keys.first))
        passed = np.zeros(rows.num_rows, np.bool_)
        if self._config.pass_null_keys:
            passed = columns[0].is_null().to_numpy(zero_copy_only=False)
            out.count("unidentified_records", int(passed.sum()))
        (waiting,) = np.nonzero(~passed)
        near_ms = np.empty(len(values), np.int64)
        while len(waiting):  # the first record of each key decides about those near it
            chosen = waiting[np.sort(np.unique(keys.codes[waiting], return_index=True)[1])]
            codes = keys.codes[chosen]
            repeats, near_ms[codes] = self._find([values[code] for code in codes.tolist()], times_ms[chosen])
            fresh = chosen[~repeats]
            passed[fresh] = True
            if len(fresh):
                new = [values[code] for code in keys.codes[fresh].tolist()]
                self._remember(new, self._to_rows(take_rows(columns, fresh), times_ms[fresh]))
            waiting = waiting[~self._are_near(times_ms[waiting], near_ms[keys.codes[waiting]])]
        return passed

    def _find(self, keys: Sequence[Any], times_ms: Ints) -> tuple[npt.NDArray[np.bool_], Ints]:
        """Which distinct keys repeat remembered keys; their timestamps, or those of the remembered keys."""
        found, near_ms = np.zeros(len(keys), np.bool_), times_ms.copy()
        reach = 0 if self._config.within_ms is None else 1
        for number, places in _groups(self._steps(times_ms)):
            mine = [keys[place] for place in places.tolist()]
            for neighbour in range(number - reach, number + reach + 1):
                for times in self._times_in(neighbour):
                    known = np.fromiter(map(times.__contains__, mine), np.bool_, len(mine))
                    hits = places[known]
                    then_ms = np.array([times[keys[place]] for place in hits.tolist()], np.int64)
                    near = self._are_near(times_ms[hits], then_ms)
                    found[hits[near]], near_ms[hits[near]] = True, then_ms[near]
        return found, near_ms

    def _times_in(self, number: int) -> Iterator[Mapping[Any, int]]:
        """The times of remembered keys in a step: of a key, the last ones and the first ones."""
        for bucket in self._buckets.get(number, {}).values():
            yield bucket.times_ms
            if bucket.earliest_ms:
                yield bucket.earliest_ms

    def _to_rows(self, keys: Sequence[pa.Array[Any]], times_ms: Ints) -> pa.RecordBatch:
        """Keys as they are stored: with their timestamps, and the later of timestamp and watermark."""
        columns = {f"key{place}": column for place, column in enumerate(keys)}
        arrivals_ms = np.maximum(times_ms, self._now_ms)
        return pa.record_batch({**columns, _TIME: pa.array(times_ms), _ARRIVAL: pa.array(arrivals_ms)})

    def _remember(self, keys: Sequence[Any], rows: pa.RecordBatch, *, restored: bool = False) -> None:
        """Remember keys as they are stored; those of one step are different, unless they are restored."""
        times_ms = rows.column(_TIME).to_numpy()
        arrivals = self._steps(rows.column(_ARRIVAL).to_numpy())
        for number, places in _groups(self._steps(times_ms)):
            for arrival, some in _groups(arrivals[places]):
                chosen = places[some]
                bucket = self._buckets.setdefault(number, {}).setdefault(arrival, _Bucket())
                mine = [keys[place] for place in chosen.tolist()]
                if restored:
                    bucket.merge(mine, times_ms[chosen].tolist())
                else:
                    bucket.times_ms.update(zip(mine, times_ms[chosen].tolist(), strict=True))
                batch = rows if len(chosen) == rows.num_rows else rows.take(chosen)
                bucket.rows.append(batch)
                bucket.unsaved.append(batch)

    def _steps(self, times_ms: Ints) -> Ints:
        """The steps of ``within_ms`` that times are in; the same step for all times without a limit."""
        within_ms = self._config.within_ms
        return np.zeros_like(times_ms) if within_ms is None else times_ms // within_ms

    def _are_near(self, times_ms: Ints, others_ms: Ints) -> npt.NDArray[np.bool_]:
        """Which times are less than ``within_ms`` away from others."""
        if self._config.within_ms is None:
            return np.ones(len(times_ms), np.bool_)
        # The difference of two signed numbers always fits an unsigned one.
        later, earlier = np.maximum(times_ms, others_ms), np.minimum(times_ms, others_ms)
        near: npt.NDArray[np.bool_] = later.view(np.uint64) - earlier.view(np.uint64) < self._config.within_ms
        return near

    def _times_of(self, rows: pa.RecordBatch) -> Ints:
        """The records' timestamps.

        Raises:
            NoTimestampError: A record has none.
        """
        if self._config.time == "processing":
            return np.full(rows.num_rows, self._now_ms)
        unknown = f"it is not known what it repeats within {self._config.within_ms} ms"
        return timestamps_of(rows, self._config.timestamp, self._config.keys, unknown)


def _groups(numbers: Ints) -> Iterator[tuple[int, Ints]]:
    """The places of each number."""
    order = np.argsort(numbers, kind="stable")
    for places in np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1):
        yield int(numbers[places[0]]), places
