"""The bad records of a source as a running query has counted them, for the query that writes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from pyspark.sql.streaming.query import StreamingQuery

from flowcore.api.operators import Read
from flowcore.metrics.tally import topic_offsets
from flowcore.spark.checkpoint.offset_log import batch_range, committed_offsets
from flowcore.spark.topics.reports import bad_observation, batches_after

__all__ = ["CleanRange", "CountedBadRecords"]


class _Counting(Protocol):
    @property
    def running(self) -> StreamingQuery | None:
        """Spark's query of the last start."""

    @property
    def mode(self) -> str:
        """The mode of the last start."""

    @property
    def active(self) -> bool:
        """Whether the query runs, or is about to be restarted."""


class CountedBadRecords:
    """Follows the reports of a query that counts the bad records of a source.

    Args:
        checkpoint: The checkpoint of the counting query.
        counting: Returns the counting query, None before its start.
    """

    def __init__(self, source: Read, checkpoint: Path, counting: Callable[[], _Counting | None]) -> None:
        self._name = bad_observation(source)
        self._topic = source.topic.name if source.topic else ""
        self._checkpoint = checkpoint
        self._counting = counting
        self._running: StreamingQuery | None = None
        self._last = -1
        self._clean = CleanRange()

    def judge(self, begin: Mapping[int, int], end: Mapping[int, int]) -> bool | None:
        """Whether no record in a range of offsets is bad; None while the query may still report on the range.

        A query in real-time mode reports when its batch ends, which takes minutes: its report is not awaited.
        """
        counting = self._counting()
        if counting is None:
            return False
        may_report = counting.active and counting.mode != "realtime"
        if counting.running is not None:
            self._take(counting.running)
        clean = self._clean.judge(begin, end)
        return None if clean is None and may_report else bool(clean)

    def _take(self, running: StreamingQuery) -> None:
        if running is not self._running:  # Spark reports nothing of what earlier starts have committed
            self._clean.skip(committed_offsets(self._checkpoint).get(self._topic, {}))
            self._running = running
        for report in batches_after(self._last, running):
            if "addBatch" not in report["durationMs"]:
                continue  # a trigger without input, under the number of the next batch
            self._last = report["batchId"]
            counted = (report.get("observedMetrics") or {}).get(self._name)
            ends = topic_offsets(source["endOffset"] for source in report["sources"])
            begins = topic_offsets(source["startOffset"] for source in report["sources"])
            if self._topic not in begins:
                begins[self._topic] = batch_range(self._checkpoint, self._last, self._topic)[0]
            unknown = 1 if counted is None else counted["bad"]
            self._clean.add(begins[self._topic], ends.get(self._topic, {}), unknown)


class CleanRange:
    """The latest offsets of a topic without a bad record; offsets are by partition.

    A partition that was not in the batch before begins with offset 0.
    """

    def __init__(self) -> None:
        self._begin: dict[int, int] = {}
        self._end: dict[int, int] = {}

    def add(self, begin: Mapping[int, int], end: Mapping[int, int], bad: int) -> None:
        """Add a batch with its number of bad records. After a gap, nothing is known of what was before."""
        begins = {partition: begin.get(partition, 0) for partition in end}
        if bad:
            self._begin = dict(end)
        elif all(self._end.get(partition, at) == at for partition, at in begins.items()):
            self._begin = {**begins, **self._begin}
        else:
            self._begin = begins
        self._end = dict(end)

    def skip(self, at: Mapping[int, int]) -> None:
        """Skip to the offsets up to which batches were committed, if not all of them were reported."""
        if any(self._end.get(partition, -1) < offset for partition, offset in at.items()):
            self._begin, self._end = dict(at), dict(at)

    def judge(self, begin: Mapping[int, int], end: Mapping[int, int]) -> bool | None:
        """Whether no record in a range is bad; False if that is not known, None if it is not known yet."""
        read = {partition: at for partition, at in end.items() if begin.get(partition, 0) < at}
        if any(self._end.get(partition, -1) < at for partition, at in read.items()):
            return None
        return all(self._begin[partition] <= begin.get(partition, 0) for partition in read)
