"""End-to-end latency of records, measured by latency markers beside the records, by source and sink.

Histograms are HDR histograms with a resolution of one microsecond below two milliseconds and of 0.1 % above.
Anybody may write markers to a topic, so their content is not trusted: the number of distinct sources is
limited, and all further sources are counted together as `OTHER`. Markers with an impossible latency are
counted apart, since the clocks of sender and receiver may differ. Times are microseconds since the epoch,
except for a marker's own, which is in whole milliseconds.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum

from hdrh.histogram import HdrHistogram

from flowcore.elements import LatencyMarkerEvent

__all__ = [
    "LONGEST_US",
    "MAX_SOURCES",
    "MAX_SUBTASKS",
    "OTHER",
    "PLAUSIBLE_US",
    "RECENT_S",
    "SKEW_TOLERANCE_US",
    "LatencyHistogram",
    "LatencySummary",
    "LatencyTracker",
    "RecentHistogram",
    "Unusable",
    "latency_us",
    "recent_since_us",
]

SKEW_TOLERANCE_US = 5_000
"""How long before its own time a marker may be received: the usual clock difference within a network."""

LONGEST_US = 3_600_000_000
"""One hour; a longer latency is counted as this."""

PLAUSIBLE_US = 24 * 3_600_000_000
"""One day: a marker that is further off was not written by a marker source."""

RECENT_S = 60
_SLICE_US = 10_000_000
_SLICES = RECENT_S * 1_000_000 // _SLICE_US
_DIGITS = 3
_PERCENTILES = (50.0, 90.0, 99.0)
_COUNTER_BYTES = 8
_SLICE_COUNTER_BYTES = 4  # half the memory, and enough for 4e9 markers in ten seconds


class Unusable(Enum):
    """Why a marker has no latency."""

    SKEWED = "received before it was marked"
    IMPLAUSIBLE = "marked more than a day before or after it was received"


def latency_us(marked_ms: int, received_us: int) -> int | Unusable:
    """The latency of a marker, not limited to `LONGEST_US`, or why it has none.

    >>> latency_us(marked_ms=1_000, received_us=1_002_500)
    2500
    >>> latency_us(marked_ms=1_000, received_us=998_000)
    0
    >>> latency_us(marked_ms=1_000, received_us=994_000)
    <Unusable.SKEWED: 'received before it was marked'>
    """
    taken_us = received_us - marked_ms * 1_000
    if abs(taken_us) > PLAUSIBLE_US:
        return Unusable.IMPLAUSIBLE
    if taken_us < -SKEW_TOLERANCE_US:
        return Unusable.SKEWED
    return max(taken_us, 0)


@dataclass(frozen=True, slots=True)
class LatencySummary:
    """The latency from one source to one sink.

    Percentiles are exact to 0.1 %, and None if no marker was counted.

    Args:
        source: Operator id in the markers, such as ``auctions/bids``.
        sink: Name of the operator that wrote the records beside the markers.
        skewed: Uncounted markers that were received before they were marked: two clocks differ.
        implausible: Uncounted markers more than a day off.
        saturated: Markers over one hour, counted as one hour.
        subtasks: Source partitions since the start.
    """

    source: str
    sink: str
    count: int
    p50_ms: float | None
    p90_ms: float | None
    p99_ms: float | None
    max_ms: float | None
    skewed: int = 0
    implausible: int = 0
    saturated: int = 0
    subtasks: int = 0


class LatencyHistogram:
    """A histogram of latencies, and counts of unusable markers."""

    __slots__ = ("_counts", "_implausible", "_longest_us", "_saturated", "_skewed")

    def __init__(self, counter_bytes: int = _COUNTER_BYTES) -> None:
        self._counts = HdrHistogram(1, LONGEST_US, _DIGITS, word_size=counter_bytes)
        self._longest_us = 0
        self._saturated = 0
        self._skewed = 0
        self._implausible = 0

    def record(self, latency: int | Unusable) -> None:
        if latency is Unusable.SKEWED:
            self._skewed += 1
        elif latency is Unusable.IMPLAUSIBLE:
            self._implausible += 1
        else:
            self._saturated += latency > LONGEST_US
            latency_us = min(latency, LONGEST_US)
            self._longest_us = max(self._longest_us, latency_us)
            self._counts.record_value(latency_us)

    def add(self, other: LatencyHistogram) -> None:
        self._counts.add(other._counts)
        self._longest_us = max(self._longest_us, other._longest_us)
        self._saturated += other._saturated
        self._skewed += other._skewed
        self._implausible += other._implausible

    def summary(self, source: str, sink: str, subtasks: int) -> LatencySummary:
        """The percentiles and counts."""
        count = self._counts.total_count
        # A bucket is represented by its upper end, which may lie above all values in it.
        found = self._counts.get_percentile_to_value_dict(_PERCENTILES)
        p50, p90, p99 = (
            min(found[percentile], self._longest_us) / 1_000 if count else None for percentile in _PERCENTILES
        )
        return LatencySummary(
            source, sink, count, p50, p90, p99,
            max_ms=self._longest_us / 1_000 if count else None,
            skewed=self._skewed,
            implausible=self._implausible,
            saturated=self._saturated,
            subtasks=subtasks,
        )  # fmt: skip


def recent_since_us(now_us: int) -> int:
    """Start of the period of a `RecentHistogram`: `RECENT_S` to `RECENT_S` + 10 seconds ago."""
    return (now_us // _SLICE_US - _SLICES) * _SLICE_US


class RecentHistogram:
    """Latencies since `recent_since_us`, as a queue of histograms for ten seconds each."""

    __slots__ = ("_slices",)

    def __init__(self) -> None:
        self._slices: deque[tuple[int, LatencyHistogram]] = deque()

    def record(self, latency: int | Unusable, received_us: int) -> None:
        number = received_us // _SLICE_US
        # Slices in the future were counted before the clock was set back.
        while self._slices and self._slices[-1][0] > number:
            self._slices.pop()
        if not self._slices or self._slices[-1][0] < number:
            self._slices.append((number, LatencyHistogram(_SLICE_COUNTER_BYTES)))
        self._forget(received_us)
        self._slices[-1][1].record(latency)

    def at(self, now_us: int) -> LatencyHistogram:
        """All latencies of the period that ends now."""
        number = now_us // _SLICE_US
        self._forget(now_us)
        found = LatencyHistogram(_SLICE_COUNTER_BYTES)  # histograms of the same size are added in C
        for slice_number, counts in self._slices:
            if slice_number <= number:
                found.add(counts)
        return found

    def _forget(self, now_us: int) -> None:
        while self._slices and self._slices[0][0] * _SLICE_US < recent_since_us(now_us):
            self._slices.popleft()


MAX_SOURCES = 32
"""Distinct sources of a sink; each takes up to a megabyte."""

MAX_SUBTASKS = 4096
"""Distinct pairs of source and subtask of a sink."""

OTHER = "other"
"""Name under which all further sources are counted."""


class LatencyTracker:
    """Latency of each source and sink, in total and for the last minute.

    >>> tracker = LatencyTracker()
    >>> tracker.record(LatencyMarkerEvent(1_000, "flow/bids", 0), "enriched", received_us=1_002_500)
    >>> [(found.source, found.sink, found.count, found.p50_ms) for found in tracker.total()]
    [('flow/bids', 'enriched', 1, 2.5)]
    """

    def __init__(self) -> None:
        self._sinks: dict[str, _Sources] = {}

    def record(self, event: LatencyMarkerEvent, sink: str, received_us: int) -> None:
        """Count a marker that a sink received, by this machine's clock, whatever the marker's content."""
        self._sinks.setdefault(sink, _Sources()).record(event, received_us)

    def total(self) -> tuple[LatencySummary, ...]:
        """The latency since the start, by source and sink."""
        return tuple(source.total.summary(name, sink, source.subtasks) for sink, name, source in self._all())

    def recent(self, now_us: int) -> tuple[LatencySummary, ...]:
        """The latency in the last minute, by source and sink; a silent source has count 0."""
        return tuple(
            source.recent.at(now_us).summary(name, sink, source.subtasks)
            for sink, name, source in self._all()
        )

    def _all(self) -> list[tuple[str, str, _Source]]:
        return [
            (sink, name, source)
            for sink, sources in sorted(self._sinks.items())
            for name, source in sources.named()
        ]


class _Source:
    __slots__ = ("recent", "subtasks", "total")

    def __init__(self) -> None:
        self.total = LatencyHistogram()
        self.recent = RecentHistogram()
        self.subtasks = 0


class _Sources:
    """The sources of one sink."""

    def __init__(self) -> None:
        self._sources: dict[str, _Source] = {}
        self._subtasks: set[tuple[str, int]] = set()
        self._other: _Source | None = None

    def named(self) -> list[tuple[str, _Source]]:
        found = sorted(self._sources.items())
        return found if self._other is None else [*found, (OTHER, self._other)]

    def record(self, event: LatencyMarkerEvent, received_us: int) -> None:
        latency = latency_us(event.marked_ms, received_us)
        source = self._source(event.operator_id, event.subtask, latency)
        source.total.record(latency)
        source.recent.record(latency, received_us)

    def _source(self, operator_id: str, subtask: int, latency: int | Unusable) -> _Source:
        known = self._sources.get(operator_id)
        if known is not None and (operator_id, subtask) in self._subtasks:
            return known
        is_full = len(self._subtasks) >= MAX_SUBTASKS or (known is None and len(self._sources) >= MAX_SOURCES)
        # A marker that no marker source has written must not use up the place of a real source.
        if is_full or latency is Unusable.IMPLAUSIBLE or operator_id == OTHER:
            self._other = self._other or _Source()
            return self._other
        self._subtasks.add((operator_id, subtask))
        source = known or self._sources.setdefault(operator_id, _Source())
        source.subtasks += 1
        return source
