"""Batches: how many records may a batch have while a query catches up?

Each batch is a checkpoint, and a planned stop waits for its end. So it has what the query reads in the
interval of checkpoints in backlog, as far as its speed is known, and never more than memory shall hold.
"""

from __future__ import annotations

from flowcore.backlog.checkpoints import CheckpointInterval

__all__ = ["LEAST_RECORDS", "batch_records"]

LEAST_RECORDS = 10_000
"""A speed that was measured over next to nothing must not make batches of next to nothing."""


def batch_records(interval: CheckpointInterval, per_second: float | None, most: int) -> int:
    """Records of a batch in backlog.

    Args:
        interval: Of checkpoints.
        per_second: Records that the query reads a second, None if it is not known yet.
        most: As many as a batch may have in any case.

    >>> batch_records(CheckpointInterval(60_000), 15_000.0, 5_000_000)
    900000
    """
    interval_ms = interval.interval_ms_in(backlog=True)
    if interval_ms is None or not per_second:
        return most
    return min(most, max(round(per_second * interval_ms / 1000), LEAST_RECORDS))
