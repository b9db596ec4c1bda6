"""The history of a run, as commands find it."""

import time
from pathlib import Path

import pytest

from flowcore.metrics.history import HistoryWriter, history_folder
from tests.unit.metrics.full_progress import run


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state folder with the history of a current run and of one before it."""
    now_ms = time.time_ns() // 1_000_000
    writer = HistoryWriter(history_folder(tmp_path, "sales"))
    for ago_s in (86_000, 85_990, 20, 15, 10, 5, 0):
        seconds = 100.0 - ago_s if ago_s < 80_000 else 87_000.0 - ago_s
        writer.progressed(run(time_ms=now_ms - ago_s * 1000, seconds=seconds))
    return tmp_path
