"""Backlog: whether the records being read are backlog or live, and what changes while they are backlog.

- `thresholds`: the lags at which one source enters and leaves backlog;
- `inputs`: the combined backlog status of several channels, and of all inputs of a query;
- `checkpoints`: checkpoint interval and batch size in backlog.

`flowcore.flush` holds the rules of flush buffers in backlog. Pure: the clock is passed in. Times are integer
milliseconds.
"""

from __future__ import annotations

from flowcore.backlog.checkpoints import CheckpointInterval
from flowcore.backlog.thresholds import Thresholds

__all__ = ["CheckpointInterval", "Thresholds"]
