"""Log lines about a live run: one for each query every minute, and one at once for each event."""

from __future__ import annotations

import logging

from flowcore.metrics.health import show_count
from flowcore.metrics.progress import FlowProgress

__all__ = ["LogListener", "describe_events"]

_INTERVAL_MS = 60_000
_log = logging.getLogger(__name__)


class LogListener:
    """Logs a line for each query once a minute, and all events at once."""

    def __init__(self) -> None:
        self._before: FlowProgress | None = None
        self._written_ms: int | None = None

    def progressed(self, progress: FlowProgress) -> None:
        """Log what is due."""
        for line in describe_events(self._before, progress):
            _log.warning("%s", line)
        self._before = progress
        is_last = progress.state != "running"
        if is_last or self._written_ms is None or progress.time_ms - self._written_ms >= _INTERVAL_MS:
            self._written_ms = progress.time_ms
            for query in progress.queries:
                _log.info(
                    "%s/%s %s: %s/s in, %s/s out, lag %s, late %s, dropped %s, dead letters %s%s",
                    progress.flow,
                    query.name,
                    query.mode,
                    show_count(query.rows_per_second),
                    show_count(query.rows_out_per_second),
                    show_count(query.lag),
                    f"{query.late:,}",
                    f"{query.dropped:,}",
                    f"{query.dead_letters:,}",
                    ", catching up" if query.backlog else "",
                )


def describe_events(before: FlowProgress | None, now: FlowProgress) -> list[str]:
    """Events since the previous progress: dead letters, dropped records, switches of queries."""
    found = []
    known = {query.name: query for query in before.queries} if before else {}
    for query in now.queries:
        then = known.get(query.name)
        where = f"query {query.name!r} of flow {now.flow!r}"
        if letters := query.dead_letters - (then.dead_letters if then else 0):
            found.append(f"{where}: {letters:,} messages went to dead-letter topics")
        if dropped := query.dropped - (then.dropped if then else 0):
            found.append(f"{where}: {dropped:,} records came too late and were dropped")
    seen = set(before.switches) if before else set()
    for switch in now.switches:
        if switch not in seen and (before or switch.time_ms >= now.time_ms):
            how = f"is in {switch.after} mode as before"
            if switch.before != switch.after:
                how = f"went from {switch.before} to {switch.after}"
            reason = switch.reason or "no reason given"
            found.append(f"query {switch.query!r} of flow {now.flow!r} {how}: {reason}")
    return found
