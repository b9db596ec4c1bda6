"""Backlog: is what is read history or news, and what may be done less often while it is history?

`thresholds` says when one source is in backlog, `channels` what several inputs say together, `inputs` what
those of a query are; `checkpoints` says when checkpoints are due, `batches` how large batches are in backlog.
What a buffer does in backlog is told in `flowcore.flush`.

Pure: the clock is passed in. Times are integer milliseconds.
"""

from __future__ import annotations

from flowcore.backlog.checkpoints import CheckpointInterval
from flowcore.backlog.thresholds import Thresholds

__all__ = ["CheckpointInterval", "Thresholds"]
