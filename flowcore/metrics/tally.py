"""Totals and rates over the batches of one live query, and its lag by partition.

Pure: the input is Spark's report of a batch as JSON, and offsets as numbers.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Self

from flowcore.elements import MIN_TIMESTAMP_MS
from flowcore.metrics.progress import OperatorProgress, PartitionProgress
from flowcore.watermarks.merge import PartitionWatermark

__all__ = [
    "COUNTS", "Batch", "BusyOperators", "QueryTally", "Rate", "TopicOffsets", "partitions_of",
    "topic_offsets",
]  # fmt: skip

TopicOffsets = Mapping[str, Mapping[int, int]]
"""Offsets by topic and partition."""

COUNTS = ("late", "dropped", "repeated", "unidentified", "saved")
"""Counts of records by name; operators report each as the metric ``<name>_records``."""

WINDOW_MS = 10_000
"""Rates are averages over this time, or over the last batch if that took longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Spark's report of one committed batch.

    Attributes:
        counts: By `COUNTS`: late records that were emitted as a side output, and those that were dropped;
            records that deduplication dropped, and those without id that it passed; results that later ones
            of their key replaced before a flush.
        buffered: Results in flush buffers after the batch; None if the query has no buffer.
        buffered_since_ms: When the oldest buffered result arrived; None if there is none.
        state_rows: Rows of state after the batch; None if there is no state, or its store does not count.
        state_bytes: Bytes of state after the batch; None if there is no state, or it reports no size.
        watermark_ms: The operators' watermark; None if they have none.
        offsets: First offsets of the next batch.
    """

    number: int
    start_ms: int
    length_ms: int
    records: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    buffered: int | None = None
    buffered_since_ms: int | None = None
    state_rows: int | None = None
    state_bytes: int | None = None
    watermark_ms: int | None = None
    offsets: TopicOffsets = field(default_factory=dict)

    @property
    def end_ms(self) -> int:
        """When it was committed."""
        return self.start_ms + self.length_ms

    @classmethod
    def all_of(cls, reports: Iterable[Mapping[str, Any]]) -> list[Self]:
        """Convert the ``StreamingQueryProgress`` of all batches that ran.

        At the start and every ten seconds, a trigger without input reports under the number of the next
        batch.
        """
        return [cls.of(report) for report in reports if "addBatch" in report["durationMs"]]

    @classmethod
    def of(cls, report: Mapping[str, Any]) -> Self:
        """Convert the JSON of a ``StreamingQueryProgress``.

        Flowcore's own operators report observed metrics: those of `COUNTS`, ``buffered_records``,
        ``buffered_since_ms``, ``state_bytes`` and ``watermark_ms``, which is null if they had no part in the
        batch.
        """
        states, sources = report.get("stateOperators") or (), report["sources"]
        # Those of files are flowcore's own, of `flowcore.spark.checkpoint.backlog_status`, and histories.
        files = (
            source
            for source in sources
            if "logOffset" in (source["endOffset"] or ()) and ".history" not in source.get("description", "")
        )
        backlog_rows = sum(source["numInputRows"] for source in files)
        rows = (row for row in (report.get("observedMetrics") or {}).values() if row)
        observed = [row for row in rows if row.get("watermark_ms") is not None]
        event_time = min(
            (row["watermark_ms"] for row in observed),
            default=_time_ms(report.get("eventTime", {}).get("watermark")) or MIN_TIMESTAMP_MS,
        )  # Spark's own starts at the epoch
        own_bytes = _observed("state_bytes", observed) or [
            int(state["memoryUsedBytes"]) + int(state.get("customMetrics", {}).get("rocksdbSstFileSize", 0))
            for state in states
        ]
        counts = {name: sum(_observed(f"{name}_records", observed)) for name in COUNTS}
        counts["dropped"] += sum(state["numRowsDroppedByWatermark"] for state in states)
        return cls(
            number=report["batchId"],
            start_ms=_time_ms(report["timestamp"]) or 0,
            length_ms=report["batchDuration"],
            records=report["numInputRows"] - backlog_rows,
            counts=counts,
            buffered=sum(buffered) if (buffered := _observed("buffered_records", observed)) else None,
            buffered_since_ms=min(_observed("buffered_since_ms", observed), default=None),
            # A store that does not count reports 0.
            state_rows=sum(state["numRowsTotal"] for state in states) or None,
            state_bytes=sum(own_bytes) if own_bytes else None,
            watermark_ms=event_time if event_time > MIN_TIMESTAMP_MS else None,
            offsets=topic_offsets(source["endOffset"] for source in sources),
        )


def _observed(name: str, observed: Iterable[Mapping[str, Any]]) -> list[int]:
    return [row[name] for row in observed if row.get(name) is not None]


class Rate:
    """Growth of a count per second, over the last `WINDOW_MS`."""

    def __init__(self) -> None:
        self._seen: deque[tuple[int, int]] = deque()

    def take(self, now_ms: int, count: int) -> float | None:
        """Add the current count; None until there is an earlier one to compare it with.

        After the clock was set back, the counts of before are of a time to come, and are forgotten.
        """
        if self._seen and now_ms < self._seen[-1][0]:
            self._seen.clear()
        while len(self._seen) > 1 and self._seen[1][0] <= now_ms - WINDOW_MS:
            self._seen.popleft()
        self._seen.append((now_ms, count))
        then_ms, before = self._seen[0]
        return (count - before) * 1000 / (now_ms - then_ms) if now_ms > then_ms else None


class BusyOperators:
    """How busy operators were from one committed batch to a later one.

    The times of a batch arrive when its tasks end, so that only times between two commits say how busy an
    operator was: over the last `WINDOW_MS`, or from the last batch but one to the last if that took longer.

    Args:
        names: The operators; others are not counted.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = tuple(names)
        self._commits: deque[tuple[int, int, Mapping[str, int]]] = deque()
        """When a number of batches was first seen, and the times until then."""

    def take(
        self, now_ms: int, batches: int, busy_ns: Mapping[str, int], *, running: bool
    ) -> tuple[OperatorProgress, ...]:
        """Add the current sums.

        Args:
            batches: Committed until now.
            running: Whether a batch runs. If none does for as long as the shares are of, they are 0.
        """
        busy_ms = {name: busy_ns.get(name, 0) // 1_000_000 for name in self._names}
        commits = self._commits
        if commits and now_ms < commits[-1][0]:  # the clock was set back
            commits.clear()
        if not commits or batches > commits[-1][1]:
            commits.append((now_ms, batches, busy_ms))
            while len(commits) > 2 and commits[1][0] <= now_ms - WINDOW_MS:  # noqa: PLR2004 - two give a share
                commits.popleft()
        (first_ms, _, before), (last_ms, _, after) = commits[0], commits[-1]
        length_ms = last_ms - first_ms
        shares: Mapping[str, float] = {}
        if not running and now_ms - last_ms > max(length_ms, WINDOW_MS):
            shares = dict.fromkeys(self._names, 0.0)
        elif length_ms:
            shares = {name: (after[name] - before[name]) / length_ms for name in self._names}
        return tuple(
            OperatorProgress(name=name, busy_ms=each_ms, busy_share=shares.get(name))
            for name, each_ms in busy_ms.items()
        )


class QueryTally:
    """Sums the batches of one query.

    Args:
        offsets: Offsets that were committed before that.
        by_offsets: Count what a batch has passed, as it need not read its records.
    """

    def __init__(
        self, started_ms: int, offsets: TopicOffsets | None = None, *, by_offsets: bool = False
    ) -> None:
        self._by_offsets = by_offsets
        self.batches = self.rows_in = 0
        self.counts: dict[str, Any] = dict.fromkeys(COUNTS, 0)
        self.buffered: int | None = None
        self.buffered_since_ms: int | None = None
        self.state_bytes: int | None = None
        self.watermark_ms: int | None = None
        self.last: Batch | None = None
        self.offsets: TopicOffsets = offsets or {}
        self._started_ms = started_ms
        self._recent: list[Batch] = []

    def take(self, batches: Iterable[Batch]) -> None:
        """Add batches in their order; batches that were added before are skipped."""
        for each in batches:
            if self.last is not None and each.number <= self.last.number:
                continue
            batch = each
            if self._by_offsets:
                batch = replace(each, records=_passed(self.offsets, each.offsets))
            self.batches += 1
            self.rows_in += batch.records
            for name, count in batch.counts.items():
                self.counts[name] += count
            if batch.buffered is not None:
                self.buffered, self.buffered_since_ms = batch.buffered, batch.buffered_since_ms
            if batch.state_bytes is not None:
                self.state_bytes = batch.state_bytes
            if batch.watermark_ms is not None:
                self.watermark_ms = batch.watermark_ms
            self.offsets = {**self.offsets, **batch.offsets}
            if self.last is not None and batch.end_ms < self.last.end_ms:  # the clock was set back
                self._recent.clear()
            self.last = batch
            self._forget_but_near(batch.end_ms)
            self._recent.append(batch)

    def rows_per_second(self, now_ms: int, *, busy: bool) -> float | None:
        """Records read a second in the last batches; None before the first one.

        Args:
            busy: Whether a batch runs; then the rate of an older batch is still valid.
        """
        self._forget_but_near(now_ms)
        if self._recent:
            took_ms = self._recent[-1].end_ms - self._recent[0].start_ms
            return _per_second(self._recent, max(took_ms, min(WINDOW_MS, now_ms - self._started_ms)))
        if self.last is None:
            return None
        return _per_second([self.last], self.last.length_ms) if busy else 0.0

    def _forget_but_near(self, now_ms: int) -> None:
        self._recent = [batch for batch in self._recent if abs(now_ms - batch.end_ms) < WINDOW_MS]


def partitions_of(
    topics: Iterable[str],
    offsets: TopicOffsets,
    ends: TopicOffsets,
    watermarks: Mapping[str, Mapping[int, PartitionWatermark]],
) -> tuple[PartitionProgress, ...]:
    """Progress in each partition of a query's topics, from the committed offsets and the topics' ends."""
    found = []
    for topic in topics:
        at, end, times = offsets.get(topic, {}), ends.get(topic, {}), watermarks.get(topic, {})
        for number in sorted({*at, *end, *times}):
            offset, last, watermark = at.get(number), end.get(number), times.get(number)
            known = watermark is not None and watermark.watermark_ms > MIN_TIMESTAMP_MS
            found.append(
                PartitionProgress(
                    topic=topic,
                    partition=number,
                    offset=offset,
                    end=last,
                    # The end may have been read before the batch was committed.
                    lag=max(last - offset, 0) if last is not None and offset is not None else None,
                    watermark_ms=watermark.watermark_ms if watermark and known else None,
                    idle=watermark.idle if watermark else None,
                )
            )
    return tuple(found)


def _passed(before: TopicOffsets, after: TopicOffsets) -> int:
    """The number of offsets between two; a partition that was not known begins with 0."""
    return sum(
        offset - before.get(topic, {}).get(partition, 0)
        for topic, offsets in after.items()
        for partition, offset in offsets.items()
    )


def _per_second(batches: Iterable[Batch], length_ms: int) -> float:
    return sum(batch.records for batch in batches) * 1000 / max(length_ms, 1)


def _time_ms(text: str | None) -> int | None:
    return None if text is None else int(datetime.fromisoformat(text).timestamp() * 1000)


def topic_offsets(reports: Iterable[Any]) -> dict[str, dict[int, int]]:
    """The offsets by topic and partition in Spark's JSON of sources; other kinds of sources are skipped."""
    found: dict[str, dict[int, int]] = {}
    for source in reports:
        for topic, partitions in source.items() if isinstance(source, Mapping) else ():
            if isinstance(partitions, Mapping):
                found[topic] = {int(number): offset for number, offset in partitions.items()}
    return found
