"""`flowcore bench all` lets a benchmark clean up when it is interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks.all import run_command

_BENCHMARK = """
import pathlib, sys, time
print("began", flush=True)
pathlib.Path(sys.argv[1], "began").touch()
try:
    time.sleep(60)
finally:
    time.sleep(1)
    pathlib.Path(sys.argv[1], "cleaned").touch()
"""
_ALL = """
import signal, sys, threading, time, pathlib, os
from tests.benchmarks.all import run_command
signal.signal(signal.SIGTERM, signal.default_int_handler)
def interrupt():
    while not pathlib.Path(sys.argv[2], "began").exists():
        time.sleep(0.02)
    os.kill(os.getpid(), int(sys.argv[3]))
threading.Thread(target=interrupt).start()
run_command([sys.executable, "-c", sys.argv[1], sys.argv[2]])
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_benchmark_cleans_up(tmp_path: Path, number: signal.Signals) -> None:
    """Cleaning up takes a second here; a broker and a JVM take longer."""
    command = [sys.executable, "-c", _ALL, _BENCHMARK, str(tmp_path), str(int(number))]

    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ, timeout=120)

    assert "KeyboardInterrupt" in done.stderr
    assert (tmp_path / "cleaned").exists()


def test_output_and_exit_code_are_those_of_the_command() -> None:
    """A benchmark that fails is reported with what it printed."""
    done = run_command([sys.executable, "-c", "import sys; print('out'); sys.exit('err')"])

    assert (done.returncode, done.stdout, done.stderr) == (1, "out\n", "err\n")
