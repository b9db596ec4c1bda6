"""How are the latencies of one source and sink counted, since the start and of late?

`LatencyHistogram` counts in an HDR histogram: one microsecond apart below two milliseconds, 0.1 % apart
above. `RecentHistogram` is a row of them, each for some seconds. The time is passed in, in microseconds
since the epoch.
"""

from __future__ import annotations

from collections import deque

from hdrh.histogram import HdrHistogram

from flowcore.latency.guard import LONGEST_US, Unusable
from flowcore.latency.summary import LatencySummary

__all__ = ["RECENT_S", "LatencyHistogram", "RecentHistogram", "recent_since_us"]

RECENT_S = 60
_SLICE_US = 10_000_000
_SLICES = RECENT_S * 1_000_000 // _SLICE_US
_DIGITS = 3
_PERCENTILES = (50.0, 90.0, 99.0)
_COUNTER_BYTES = 8
_SLICE_COUNTER_BYTES = 4  # half the memory, and four thousand million markers in ten seconds


def recent_since_us(now_us: int) -> int:
    """From when on `RecentHistogram` counts: `RECENT_S` seconds ago, or up to ten seconds before that."""
    return (now_us // _SLICE_US - _SLICES) * _SLICE_US


class LatencyHistogram:
    """Latencies, and what was left out of them."""

    __slots__ = ("_counts", "_implausible", "_longest_us", "_saturated", "_skewed")

    def __init__(self, counter_bytes: int = _COUNTER_BYTES) -> None:
        self._counts = HdrHistogram(1, LONGEST_US, _DIGITS, word_size=counter_bytes)
        self._longest_us = 0
        self._saturated = 0
        self._skewed = 0
        self._implausible = 0

    def record(self, latency: int | Unusable) -> None:
        """Count one marker."""
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
        """Count what the other has counted."""
        self._counts.add(other._counts)
        self._longest_us = max(self._longest_us, other._longest_us)
        self._saturated += other._saturated
        self._skewed += other._skewed
        self._implausible += other._implausible

    def summary(self, source: str, sink: str, subtasks: int) -> LatencySummary:
        """What it has counted."""
        count = self._counts.total_count
        # A bucket is shown by its upper end, which may lie above everything that is in it.
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


class RecentHistogram:
    """Latencies of the last `RECENT_S` seconds, and of up to ten seconds before them."""

    __slots__ = ("_slices",)

    def __init__(self) -> None:
        self._slices: deque[tuple[int, LatencyHistogram]] = deque()

    def record(self, latency: int | Unusable, received_us: int) -> None:
        """Count one marker."""
        number = received_us // _SLICE_US
        # What lies after now was counted before the clock was set back.
        while self._slices and self._slices[-1][0] > number:
            self._slices.pop()
        if not self._slices or self._slices[-1][0] < number:
            self._slices.append((number, LatencyHistogram(_SLICE_COUNTER_BYTES)))
        self._forget(received_us)
        self._slices[-1][1].record(latency)

    def at(self, now_us: int) -> LatencyHistogram:
        """Everything of the window that ends now."""
        number = now_us // _SLICE_US
        self._forget(now_us)
        found = LatencyHistogram(_SLICE_COUNTER_BYTES)  # of one size, they are added in C
        for slice_number, counts in self._slices:
            if slice_number <= number:
                found.add(counts)
        return found

    def _forget(self, now_us: int) -> None:
        while self._slices and self._slices[0][0] * _SLICE_US < recent_since_us(now_us):
            self._slices.popleft()
