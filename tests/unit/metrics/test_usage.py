"""A run reports memory, open files and threads of its process and of the processes below it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from flowcore.metrics.usage import read_usage, root_of_run

CHILD = """
import sys, threading
opened = [open(sys.argv[1], "rb") for _ in range(50)]
held = bytearray(64 << 20)
done = threading.Event()
threads = [threading.Thread(target=done.wait) for _ in range(10)]
for each in threads:
    each.start()
print("ready", flush=True)
sys.stdin.read()
done.set()
"""


def test_usage_counts_the_processes_below(tmp_path: Path) -> None:
    """A child with 50 files, 10 threads and 64 MiB adds at least these, until it ends."""
    file = tmp_path / "file"
    file.touch()
    before = read_usage(os.getpid())
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        during = read_usage(os.getpid())
        alone = read_usage(child.pid)
    after = read_usage(os.getpid())

    assert before is not None
    assert during is not None
    assert alone is not None
    assert after is not None
    assert during.open_files - before.open_files >= 50
    assert during.threads - before.threads >= 11
    assert during.memory_bytes - before.memory_bytes >= 64 << 20
    assert alone.threads == 11
    assert after.open_files <= before.open_files + 1
    assert read_usage(child.pid) is None


def test_run_below_spark_submit_begins_with_its_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    """The JVM has started this process there, and not the other way round; it may have ended."""
    assert root_of_run(submitted=False) == os.getpid()
    assert root_of_run(submitted=True) == os.getpid()

    monkeypatch.setattr(psutil.Process, "name", lambda _: "java")
    assert root_of_run(submitted=True) == os.getppid()
