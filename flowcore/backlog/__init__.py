"""Backlog: is what is read history or news, and what may be done less often while it is history?

`channels` says what several inputs say together, `inputs` what those of a query are; `checkpoints` says
when checkpoints are due. What a buffer does in backlog is told in `flowcore.flush`.

Pure: the clock is passed in. Times are integer milliseconds.
"""

from __future__ import annotations

from flowcore.backlog.checkpoints import CheckpointInterval

__all__ = ["CheckpointInterval"]
