"""The log: a line about a live run now and then, and at once when something has happened."""

from __future__ import annotations

import logging

from flowcore.metrics.health import query_lines
from flowcore.metrics.progress import FlowProgress, Switch

__all__ = ["LogListener", "news"]

_EVERY_MS = 60_000
_log = logging.getLogger(__name__)


class LogListener:
    """Writes a line for each query once a minute, and what is new at each look."""

    def __init__(self) -> None:
        self._before: FlowProgress | None = None
        self._written_ms: int | None = None

    def progressed(self, progress: FlowProgress) -> None:
        """Write what is due."""
        for line in news(self._before, progress):
            _log.warning("%s", line)
        self._before = progress
        is_last = progress.state != "running"
        if is_last or self._written_ms is None or progress.time_ms - self._written_ms >= _EVERY_MS:
            self._written_ms = progress.time_ms
            for line in query_lines(progress):
                _log.info("%s", line)


def news(before: FlowProgress | None, now: FlowProgress) -> list[str]:
    """What somebody may want to look into: records lost to the stream since the look before, switches.

    Args:
        before: None at the first look.
        now: The run now.
    """
    found = []
    known = {query.name: query for query in before.queries} if before else {}
    for query in now.queries:
        then = known.get(query.name)
        where = f"query {query.name!r} of flow {now.flow!r}"
        if letters := query.dead_letters - (then.dead_letters if then else 0):
            found.append(f"{where}: {letters:,} messages went to dead-letter topics")
        if dropped := query.dropped - (then.dropped if then else 0):
            found.append(f"{where}: {dropped:,} records came too late and were dropped")
    told = set(before.switches) if before else set()
    found += [
        f"query {switch.query!r} of flow {now.flow!r} {_way(switch)}: {switch.reason or 'no reason given'}"
        for switch in now.switches
        if switch not in told and (before or switch.time_ms >= now.time_ms)
    ]
    return found


def _way(switch: Switch) -> str:
    if switch.before == switch.after:
        return f"is in {switch.after} mode as before"
    return f"went from {switch.before} to {switch.after}"
