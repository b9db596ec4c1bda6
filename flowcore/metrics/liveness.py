"""Liveness: does the run still live that a history tells of?"""

from __future__ import annotations

import os
import socket

from flowcore.metrics.health import show_seconds
from flowcore.metrics.progress import FlowProgress

__all__ = ["what_is_wrong"]

_MISSED = 3
_SLACK_S = 30.0  # a machine that is busy, a broker that does not answer


def what_is_wrong(last: FlowProgress, now_ms: int) -> str | None:
    """Why a flow does not run, or may not, in words; None if it does.

    A look that is overdue is an end: the process is gone, or the machine, or it hangs.

    Args:
        last: The last look at the run.
        now_ms: The time, on a clock that agrees with the run's.
    """
    ago_s = (now_ms - last.time_ms) / 1000
    ago = f"{show_seconds(max(ago_s, 0))} ago"
    if last.state == "failed":
        return f"flow {last.flow!r} failed {ago}: {last.error}"
    if last.state == "ended":
        return f"flow {last.flow!r} does not run; it ended {ago}"
    where = f"process {last.pid} on {last.host}"
    if last.host == socket.gethostname() and not _exists(last.pid):
        return f"flow {last.flow!r} does not run: {where} is gone without a word; its last look was {ago}"
    if ago_s > _MISSED * last.interval_s + _SLACK_S:
        return (
            f"flow {last.flow!r} has told nothing for {show_seconds(ago_s)}, though it looks every "
            f"{show_seconds(last.interval_s)}: {where} has been killed, or hangs; see its log"
        )
    return None


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        return True
    return True
