"""Checkpoint interval and batch size of a query, in backlog and out of it.

A backlog can be read again, so it needs fewer checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass

from flowcore.errors import ConfigurationError

__all__ = ["LEAST_RECORDS", "CheckpointInterval", "batch_records"]

LEAST_RECORDS = 10_000
"""A speed measured over very few records must not make very small batches."""


@dataclass(frozen=True, slots=True)
class CheckpointInterval:
    """Time between two checkpoints.

    Args:
        interval_ms: The interval, > 0.
        backlog_interval_ms: The interval while a source is in backlog, at least ``interval_ms``; 0 for no
            checkpoints in backlog, None for the same interval.

    Raises:
        ConfigurationError: ``interval_ms`` is not positive, or ``backlog_interval_ms`` is shorter.
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
                f"backlog_interval_ms={backlog_ms} is shorter than interval_ms={self.interval_ms}: the "
                f"backlog would cost more checkpoints than live records; pass backlog_interval_ms >= "
                f"{self.interval_ms}, or 0 for no checkpoints in backlog"
            )
            raise ConfigurationError(msg)

    def interval_ms_in(self, *, backlog: bool) -> int | None:
        """The interval in backlog or out of it; None if there are no checkpoints."""
        if backlog and self.backlog_interval_ms is not None:
            return self.backlog_interval_ms or None
        return self.interval_ms


def batch_records(interval: CheckpointInterval, per_second: float | None, most: int) -> int:
    """The number of records of a batch in backlog: what the query reads in one checkpoint interval.

    Each batch is a checkpoint, and a planned stop waits for its end.

    Args:
        per_second: Records that the query reads in a second, None if the speed is not known yet.
        most: The upper bound, which protects memory.

    >>> batch_records(CheckpointInterval(60_000), 15_000.0, 5_000_000)
    900000
    """
    interval_ms = interval.interval_ms_in(backlog=True)
    if interval_ms is None or not per_second:
        return most
    return min(most, max(round(per_second * interval_ms / 1000), LEAST_RECORDS))
