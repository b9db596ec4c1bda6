"""Tally: what do the batches of one live query add up to, and how far is it behind its topics?

Pure: it takes what Spark tells of a batch as JSON, and offsets as numbers; it asks nobody.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Self

from flowcore.elements import MIN_TIMESTAMP_MS
from flowcore.metrics.progress import PartitionProgress
from flowcore.watermarks.merge import PartitionWatermark

__all__ = ["Batch", "QueryTally", "Rate", "TopicOffsets", "partitions_of"]

TopicOffsets = Mapping[str, Mapping[int, int]]
"""By topic and partition."""

WINDOW_MS = 10_000
"""Rates are those of this time, or of the last batch where that took longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What Spark tells of one committed batch.

    Attributes:
        number: Its id.
        start_ms: When it began.
        length_ms: How long it took.
        records: Read in it.
        late: Came too late in it, and were put out as a stream of their own.
        dropped: Came too late in it, and were dropped.
        saved: Results that left no more, since later ones of their keys had come before a flush.
        held: In flush buffers after it; None where the query has none.
        held_since_ms: When the oldest of these came; None where there is none.
        state_rows: After it; None where the query has no state, or its store does not count.
        state_bytes: After it; None where the query has no state, or does not tell.
        watermark_ms: Of its operators; None where they have none.
        offsets: First offsets that the next batch reads.
    """

    number: int
    start_ms: int
    length_ms: int
    records: int = 0
    late: int = 0
    dropped: int = 0
    saved: int = 0
    held: int | None = None
    held_since_ms: int | None = None
    state_rows: int | None = None
    state_bytes: int | None = None
    watermark_ms: int | None = None
    offsets: TopicOffsets = field(default_factory=dict)

    @property
    def end_ms(self) -> int:
        """When it was committed."""
        return self.start_ms + self.length_ms

    @classmethod
    def run_of(cls, told: Iterable[Mapping[str, Any]]) -> list[Self]:
        """Those of some ``StreamingQueryProgress`` that ran.

        At the start and every ten seconds a trigger that found nothing to read tells of the batch to come,
        under its number.
        """
        return [cls.of(one) for one in told if "addBatch" in one["durationMs"]]

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Self:
        """From the JSON of a ``StreamingQueryProgress``.

        Operators of flowcore's own tell by what they observe: ``late_records``, ``dropped_records``,
        ``saved_records``, ``held_records``, ``held_since_ms``, ``state_bytes`` and ``watermark_ms``, which is
        null where they had no part in the batch.
        """
        states = told.get("stateOperators") or ()
        rows = (row for row in (told.get("observedMetrics") or {}).values() if row)
        observed = [row for row in rows if row.get("watermark_ms") is not None]
        event_time = min(
            (row["watermark_ms"] for row in observed),
            default=_time_ms(told.get("eventTime", {}).get("watermark")) or MIN_TIMESTAMP_MS,
        )  # Spark's begins at the epoch
        own_bytes = _of("state_bytes", observed)
        return cls(
            number=told["batchId"],
            start_ms=_time_ms(told["timestamp"]) or 0,
            length_ms=told["batchDuration"],
            records=told["numInputRows"] - _of_files(told["sources"]),
            late=sum(row.get("late_records") or 0 for row in observed),
            dropped=sum(state["numRowsDroppedByWatermark"] for state in states)
            + sum(row.get("dropped_records") or 0 for row in observed),
            saved=sum(row.get("saved_records") or 0 for row in observed),
            held=sum(held) if (held := _of("held_records", observed)) else None,
            held_since_ms=min(_of("held_since_ms", observed), default=None),
            # A store that does not count says 0.
            state_rows=sum(state["numRowsTotal"] for state in states) or None,
            state_bytes=sum(own_bytes or map(_bytes, states)) if own_bytes or states else None,
            watermark_ms=event_time if event_time > MIN_TIMESTAMP_MS else None,
            offsets=_offsets(source["endOffset"] for source in told["sources"]),
        )


def _of(name: str, observed: Iterable[Mapping[str, Any]]) -> list[int]:
    return [row[name] for row in observed if row.get(name) is not None]


class Rate:
    """How much a count grows a second, over the last `WINDOW_MS`."""

    def __init__(self) -> None:
        self._seen: deque[tuple[int, int]] = deque()

    def take(self, now_ms: int, count: int) -> float | None:
        """Take what is counted now; None until there is something to compare it with."""
        while len(self._seen) > 1 and self._seen[1][0] <= now_ms - WINDOW_MS:
            self._seen.popleft()
        self._seen.append((now_ms, count))
        then_ms, before = self._seen[0]
        return (count - before) * 1000 / (now_ms - then_ms) if now_ms > then_ms else None


class QueryTally:
    """Adds up the batches of one query.

    Args:
        started_ms: When it was started.
        offsets: Committed before that.
    """

    def __init__(self, started_ms: int, offsets: TopicOffsets | None = None) -> None:
        self.batches = self.rows_in = self.late = self.dropped = self.saved = 0
        self.held: int | None = None
        self.held_since_ms: int | None = None
        self.state_bytes: int | None = None
        self.watermark_ms: int | None = None
        self.last: Batch | None = None
        self.offsets: TopicOffsets = offsets or {}
        self._started_ms = started_ms
        self._recent: list[Batch] = []

    def take(self, batches: Iterable[Batch]) -> None:
        """Take batches, in their order; those that were taken before are left out."""
        for batch in batches:
            if self.last is not None and batch.number <= self.last.number:
                continue
            self.batches += 1
            self.rows_in += batch.records
            self.late += batch.late
            self.dropped += batch.dropped
            self.saved += batch.saved
            if batch.held is not None:
                self.held, self.held_since_ms = batch.held, batch.held_since_ms
            if batch.state_bytes is not None:
                self.state_bytes = batch.state_bytes
            if batch.watermark_ms is not None:
                self.watermark_ms = batch.watermark_ms
            self.offsets = {**self.offsets, **batch.offsets}
            self.last = batch
            self._recent.append(batch)

    def rows_per_second(self, now_ms: int, *, busy: bool) -> float | None:
        """Records read a second in the last batches; None before the first one.

        Args:
            now_ms: The time.
            busy: A batch is under way, so that an older one still says something.
        """
        self._recent = [batch for batch in self._recent if batch.end_ms > now_ms - WINDOW_MS]
        if self._recent:
            took_ms = self._recent[-1].end_ms - self._recent[0].start_ms
            return _a_second(self._recent, max(took_ms, min(WINDOW_MS, now_ms - self._started_ms)))
        if self.last is None:
            return None
        return _a_second([self.last], self.last.length_ms) if busy else 0.0


def partitions_of(
    topics: Iterable[str],
    offsets: TopicOffsets,
    ends: TopicOffsets,
    standings: Mapping[str, Mapping[int, PartitionWatermark]],
) -> tuple[PartitionProgress, ...]:
    """How far a query is in each partition of its sources' topics.

    Args:
        topics: The topics.
        offsets: What the query has committed.
        ends: Where the topics end.
        standings: What is known of event time.
    """
    found = []
    for topic in topics:
        at, end, times = offsets.get(topic, {}), ends.get(topic, {}), standings.get(topic, {})
        for number in sorted({*at, *end, *times}):
            offset, last, standing = at.get(number), end.get(number), times.get(number)
            known = standing is not None and standing.watermark_ms > MIN_TIMESTAMP_MS
            found.append(
                PartitionProgress(
                    topic=topic,
                    partition=number,
                    offset=offset,
                    end=last,
                    # The broker was asked before or after the batch was committed.
                    lag=max(last - offset, 0) if last is not None and offset is not None else None,
                    watermark_ms=standing.watermark_ms if standing and known else None,
                    idle=standing.idle if standing else None,
                )
            )
    return tuple(found)


def _a_second(batches: Iterable[Batch], length_ms: int) -> float:
    return sum(batch.records for batch in batches) * 1000 / max(length_ms, 1)


def _time_ms(text: str | None) -> int | None:
    return None if text is None else int(datetime.fromisoformat(text).timestamp() * 1000)


def _bytes(state: Mapping[str, Any]) -> int:
    files = int(state.get("customMetrics", {}).get("rocksdbSstFileSize", 0))
    return int(state["memoryUsedBytes"]) + files


def _of_files(sources: Iterable[Mapping[str, Any]]) -> int:
    """Rows that came from no topic: flowcore's own, of `flowcore.spark.checkpoint.backlog_status`."""
    return sum(source["numInputRows"] for source in sources if "logOffset" in (source["endOffset"] or ()))


def _offsets(told: Iterable[Any]) -> TopicOffsets:
    found: dict[str, dict[int, int]] = {}
    for source in told:
        for topic, partitions in source.items() if isinstance(source, Mapping) else ():
            if isinstance(partitions, Mapping):
                found[topic] = {int(number): offset for number, offset in partitions.items()}
    return found
