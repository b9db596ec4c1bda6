"""Which sources do markers come from, and how long did they take to each sink?

What markers say is not trusted: anybody may write to a topic. So the sources that are kept apart are
bounded, and the rest are counted together as `OTHER`. Times are microseconds since the epoch.
"""

from __future__ import annotations

from flowcore.elements import LatencyMarkerEvent
from flowcore.latency.guard import Unusable, latency_us
from flowcore.latency.histogram import LatencyHistogram, RecentHistogram
from flowcore.latency.summary import LatencySummary

__all__ = ["MAX_SOURCES", "MAX_SUBTASKS", "OTHER", "LatencyTracker"]

MAX_SOURCES = 32
"""Sources of one sink that are kept apart; each takes up to a megabyte."""

MAX_SUBTASKS = 4096
"""Pairs of source and subtask of one sink that are told apart."""

OTHER = "other"
"""The source under which the rest is counted."""


class LatencyTracker:
    """Latency of each source and sink, since the start and of late.

    >>> tracker = LatencyTracker()
    >>> tracker.record(LatencyMarkerEvent(1_000, "flow/bids", 0), "enriched", received_us=1_002_500)
    >>> [(found.source, found.sink, found.count, found.p50_ms) for found in tracker.total()]
    [('flow/bids', 'enriched', 1, 2.5)]
    """

    def __init__(self) -> None:
        self._sinks: dict[str, _Sources] = {}

    def record(self, event: LatencyMarkerEvent, sink: str, received_us: int) -> None:
        """Count one marker that has reached a sink, whatever is in it.

        Args:
            event: What was received.
            sink: Name of the operator that wrote it.
            received_us: When, by the wall clock of this machine.
        """
        self._sinks.setdefault(sink, _Sources()).record(event, received_us)

    def total(self) -> tuple[LatencySummary, ...]:
        """What was counted since the start, by source and sink."""
        return tuple(
            source.total.summary(name, sink, source.subtasks)
            for sink, sources in sorted(self._sinks.items())
            for name, source in sources.named()
        )

    def recent(self, now_us: int) -> tuple[LatencySummary, ...]:
        """What was counted in the last minute, by source and sink; a source that is silent has count 0."""
        return tuple(
            source.recent.at(now_us).summary(name, sink, source.subtasks)
            for sink, sources in sorted(self._sinks.items())
            for name, source in sources.named()
        )


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
        # A mark that no marker source has made takes no place from one that has.
        if is_full or latency is Unusable.IMPLAUSIBLE or operator_id == OTHER:
            self._other = self._other or _Source()
            return self._other
        self._subtasks.add((operator_id, subtask))
        source = known or self._sources.setdefault(operator_id, _Source())
        source.subtasks += 1
        return source
