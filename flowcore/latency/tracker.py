"""Latency of markers by source and sink.

Anybody may write markers to a topic, so their content is not trusted: the number of distinct sources is
limited, and all further sources are counted together as `OTHER`. Times are microseconds since the epoch.
"""

from __future__ import annotations

from flowcore.elements import LatencyMarkerEvent
from flowcore.latency.histogram import LatencyHistogram, LatencySummary, RecentHistogram, Unusable, latency_us

__all__ = ["MAX_SOURCES", "MAX_SUBTASKS", "OTHER", "LatencyTracker"]

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
