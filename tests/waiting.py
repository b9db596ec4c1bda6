"""Waiting in tests for what another process or thread does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowcore.spark.run.live_stage import LiveRun

__all__ = ["LONGEST_S", "run_until", "wait_until"]

LONGEST_S = 400.0
"""No test takes as long, even beside others on a slow machine."""
_POLL_S = 0.1


def wait_until(
    condition: Callable[[], object], what: str = "that is so", timeout_s: float = LONGEST_S
) -> None:
    """Wait until a condition is true; fail after the timeout."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, f"after {timeout_s:.0f} s it is still not so that {what}"
        time.sleep(_POLL_S)


def run_until(run: LiveRun, condition: Callable[[], object], timeout_s: float = LONGEST_S) -> None:
    """Wait until a condition is true, while all queries of a run go on; fail if they end."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert not run.wait(_POLL_S), "the queries have ended"
        assert time.monotonic() < end, f"after {timeout_s:.0f} s it is still not so: {run.health()}"
