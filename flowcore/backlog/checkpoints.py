"""Checkpoints: when is the next one due, while sources go in and out of backlog?

A checkpoint lets a query go on where it was; history can be read again, so it needs fewer. One source in
backlog is enough for the longer interval. A switch may bring the next checkpoint forward, and never puts it
off.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from flowcore.errors import ConfigurationError

__all__ = ["CheckpointInterval", "Schedule", "due", "start", "switch"]


@dataclass(frozen=True, slots=True)
class CheckpointInterval:
    """How far checkpoints are apart.

    Args:
        interval_ms: The interval, > 0.
        backlog_interval_ms: The interval while a source is in backlog, not shorter than the other; 0 for
            no checkpoints then, None for the same interval.

    Raises:
        ConfigurationError: The interval is not positive, or that of backlog is shorter.
    """

    interval_ms: int
    backlog_interval_ms: int | None = None

    def __post_init__(self) -> None:
        if self.interval_ms < 1:
            msg = (
                f"interval_ms={self.interval_ms} is not positive: checkpoints would never end; "
                f"pass interval_ms > 0"
            )
            raise ConfigurationError(msg)
        backlog_ms = self.backlog_interval_ms
        if backlog_ms is not None and backlog_ms != 0 and backlog_ms < self.interval_ms:
            msg = (
                f"backlog_interval_ms={backlog_ms} is shorter than interval_ms={self.interval_ms}: history "
                f"would cost more checkpoints than news; pass backlog_interval_ms >= {self.interval_ms}, or "
                f"0 for none in backlog"
            )
            raise ConfigurationError(msg)

    def interval_ms_in(self, *, backlog: bool) -> int | None:
        """The interval in backlog or out of it; None if there are no checkpoints."""
        if backlog and self.backlog_interval_ms is not None:
            return self.backlog_interval_ms or None
        return self.interval_ms


@dataclass(frozen=True, slots=True)
class Schedule:
    """The state.

    Attributes:
        next_ms: When the next checkpoint is due, None if none is.
        in_backlog: The sources that are in backlog.
    """

    next_ms: int | None
    in_backlog: frozenset[str] = frozenset()


def start(config: CheckpointInterval, now_ms: int = 0, in_backlog: Iterable[str] = ()) -> Schedule:
    """The first checkpoint is due one interval from now: that of backlog, if a source begins in it."""
    sources = frozenset(in_backlog)
    interval_ms = config.interval_ms_in(backlog=bool(sources))
    return Schedule(None if interval_ms is None else now_ms + interval_ms, sources)


def switch(
    config: CheckpointInterval, schedule: Schedule, source: str, now_ms: int, *, backlog: bool
) -> Schedule:
    """A source says whether it is in backlog; one that has ended is not.

    >>> config = CheckpointInterval(10, backlog_interval_ms=60)
    >>> switch(config, start(config, in_backlog=["bids"]), "bids", 20, backlog=False).next_ms
    30
    """
    others = schedule.in_backlog - {source}
    after = replace(schedule, in_backlog=others | {source} if backlog else others)
    interval_ms = config.interval_ms_in(backlog=bool(after.in_backlog))
    if interval_ms is None or (after.next_ms is not None and after.next_ms <= now_ms + interval_ms):
        return after
    return replace(after, next_ms=now_ms + interval_ms)


def due(config: CheckpointInterval, schedule: Schedule, now_ms: int) -> tuple[Schedule, tuple[int, ...]]:
    """Look at the clock: the schedule after it, and the times that checkpoints were due at, in order."""
    times: list[int] = []
    interval_ms = config.interval_ms_in(backlog=bool(schedule.in_backlog))
    next_ms = schedule.next_ms
    while next_ms is not None and next_ms <= now_ms:
        times.append(next_ms)
        next_ms = None if interval_ms is None else next_ms + interval_ms
    return replace(schedule, next_ms=next_ms), tuple(times)
