"""A benchmark that is terminated ends what it has started."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[3]
CHILD = f"[{sys.executable!r}, '-c', 'import time; time.sleep(300)']"
HOLDS = f"""
import subprocess, time
from contextlib import contextmanager

import click


@contextmanager
def started():
    child = subprocess.Popen({CHILD}, start_new_session=True)
    try:
        yield child
    finally:
        time.sleep(1)  # as an engine that does not end at once
        child.kill()
        child.wait()


@click.command()
def command():
    with started() as child:
        open("pid", "w").write(str(child.pid) + ";")
        time.sleep(300)
"""
BENCH = [sys.executable, "-c", "from flowcore.cli.main import main; main()", "bench"]


def test_terminated_benchmark_leaves_no_process(tmp_path: Path) -> None:
    """The contender of a benchmark has a session of its own: no signal but that of the benchmark ends it."""
    folder = tmp_path / "tests" / "benchmarks"
    folder.mkdir(parents=True)
    (folder / "holds.py").write_text(HOLDS)
    with subprocess.Popen(
        [*BENCH, "holds"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        stderr=subprocess.PIPE,
    ) as process:
        child = _read_pid(tmp_path / "pid", process)
        process.terminate()
        process.communicate(timeout=120)

    assert process.returncode != 0
    assert not psutil.pid_exists(child)


def _read_pid(file: Path, process: subprocess.Popen[bytes]) -> int:
    end = time.monotonic() + 120
    while not (file.exists() and file.read_text().endswith(";")):
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.05)
    return int(file.read_text().removesuffix(";"))
