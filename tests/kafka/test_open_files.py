"""Restarts of a query leave neither files nor threads open in the driver, nor files beside its checkpoint."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from flowcore import Flow

pytestmark = pytest.mark.kafka

OWN = ("kafka", "flowcore", "stream", "state-store", "Thread-")
"""Names of threads that a query starts. Spark's pools grow to a limit, and shrink when they are idle."""


def _open(state: Path) -> dict[str, int]:
    gateway: Any = SparkContext._gateway
    threads = map(_name, Path(f"/proc/{gateway.proc.pid}/task").iterdir())
    beside = [path for path in (state / "open" / "checkpoints").iterdir() if path.is_file()]
    return {
        "files": len(list(Path("/proc/self/fd").iterdir())),
        "threads": threading.active_count(),
        "JVM threads": sum(name.startswith(OWN) for name in threads),
        "files beside the checkpoint": len(beside),
    }


def _name(thread: Path) -> str:
    try:
        return (thread / "comm").read_text()
    except OSError:  # it has ended
        return ""


@pytest.mark.thorough
def test_restarts_leave_nothing_open(live: Any) -> None:
    """What is open after the eighth run was open after the third."""
    bids, out = live.topic("bids", schema="id BIGINT"), live.topic("out", elements="tagged")
    flow = Flow("open")
    flow.read("bids", bids).where("id >= 0").write("out", out)
    found = []
    for number in range(8):
        live.send(bids, {"id": number})
        live.run(flow)
        found.append(_open(live.settings.state_dir))

    assert len(live.records(out)) >= 8
    for what, before in found[2].items():
        assert found[7][what] <= before + 4, (what, found)
