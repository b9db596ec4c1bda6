"""A driver in a process of its own, at which faults are injected; its program is at the end of this file.

The process leads a session, so a kill of its process group takes its JVM along; Python workers end with the
JVM. Times are seconds.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from flowcore.errors import RunError
from flowcore.failpoints import VARIABLE
from flowcore.planner import plan_flow
from flowcore.settings import Settings
from flowcore.spark.run.flow import open_context, run_flow
from flowcore.spark.run.live_stage import LiveRun
from tests.benchmarks._faults.catalog import Catalog
from tests.benchmarks._faults.sales import Sales
from tests.kafka.driver import report_running
from tests.python_workers import daemons_and_workers

__all__ = ["ROOT", "Driver", "wait_until"]

ROOT = Path(__file__).parents[3]
"""The checkout: workers import the flow's functions from here."""
_START_S = 300.0
_LIFE_S = 1_200.0
"""A driver ends then by default, whatever happened to the program that has started it."""
_POLL_S = 0.02


class Driver:
    """A running driver; a context manager that ends all of its processes.

    Args:
        flow: What it runs.
        settings: Its settings, ``mode``, and ``life_s``, after which it ends whatever happened.
        log: The file of its output.
        failpoint: See `flowcore.failpoints`.
    """

    def __init__(
        self, flow: Sales | Catalog, settings: Mapping[str, object], log: Path, failpoint: str | None = None
    ) -> None:
        self.log = log
        self.failpoint = failpoint
        task = {"kind": type(flow).__name__, "flow": asdict(flow), "settings": dict(settings)}
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        if failpoint is not None:
            environment[VARIABLE] = failpoint
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.benchmarks._faults.driver", json.dumps(task, default=str)],
                cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
        self._family: dict[int, str] = {}
        self._killed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """Process id of the driver's Python."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether the driver's Python has ended."""
        return self._process.poll() is not None

    @property
    def error(self) -> str:
        """The error of flowcore with which it ended; empty if there was none."""
        lines = self.log.read_text(errors="replace").splitlines()
        return next((line for line in reversed(lines) if line.startswith("flowcore.errors.")), "")

    @property
    def jvm(self) -> int:
        """Process id of its JVM."""
        return next(pid for pid, command in self.look_at_family().items() if _is_jvm(command))

    @property
    def executors(self) -> list[int]:
        """Process ids of its executors, if it runs on a cluster of its own."""
        name = "CoarseGrainedExecutorBackend"
        return [pid for pid, command in self.look_at_family().items() if name in command]

    @property
    def workers(self) -> list[int]:
        """Process ids of its Python workers, without their daemons."""
        _, workers = daemons_and_workers(self.look_at_family(), _parent)
        return sorted(workers)

    def look_at_family(self) -> dict[int, str]:
        """The command lines of all processes that it has started and that exist, by process id."""
        found = _descendants([self.pid, *self._family])
        self._family |= found
        return {pid: command for pid, command in self._family.items() if Path(f"/proc/{pid}").exists()}

    def wait_running(self) -> None:
        """Wait until its queries run."""
        self._wait_for_line("running\n", "start its queries")

    def wait_jvm(self) -> None:
        """Wait until it has a JVM."""
        wait_until(self._jvm_exists, _START_S, f"{self.log}: the driver starts a JVM")

    def wait_failpoint(self) -> None:
        """Wait until one of its processes has reached the fail-point."""
        self._wait_for_line(f"fail-point {self.failpoint}\n", f"reach {self.failpoint}", ends=True)
        self.look_at_family()

    def wait_end(self, timeout_s: float = _START_S) -> None:
        """Wait until its Python and its JVM have ended.

        Raises:
            RunError: It goes on.
        """
        wait_until(lambda: self.ended and not self._jvm_exists(), timeout_s, f"{self.log}: the driver ends")

    def resume_workers(self) -> None:
        """Continue workers that a fail-point has stopped. Each counts for itself, so more may stop later."""
        for pid in self.workers if (self.failpoint or "").endswith(":stop") else ():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def signal_all(self, number: signal.Signals) -> None:
        """Send a signal to the driver, to its JVM and to its workers."""
        for pid in (self.pid, *self.look_at_family()):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        """Kill all of its processes at once, as a power failure would; a second call does nothing."""
        if self._killed:  # their ids may be those of others now
            return
        self.look_at_family()
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.signal_all(signal.SIGKILL)
        self._process.wait()
        self._killed = True

    def _jvm_exists(self) -> bool:
        return any(map(_is_jvm, self.look_at_family().values()))

    def _wait_for_line(self, line: str, what: str, *, ends: bool = False) -> None:
        def is_there() -> bool:
            self.look_at_family()
            ended = self.ended
            if line in self.log.read_text(errors="replace"):
                return True
            if ended:
                last = self.log.read_text(errors="replace")[-2000:]
                msg = (
                    f"the driver has ended and did not {what}: the fault was not injected; its output: {last}"
                )
                raise RunError(msg)
            return False

        wait_until(is_there, _START_S, f"{self.log}: the driver is to {what}", 0.005 if ends else _POLL_S)


def wait_until(is_so: Callable[[], bool], timeout_s: float, what: str, poll_s: float = _POLL_S) -> None:
    """Wait until something is so.

    Raises:
        RunError: It is not so in time.
    """
    end = time.monotonic() + timeout_s
    while not is_so():
        if time.monotonic() > end:
            msg = f"{what}: not within {timeout_s:g} s"
            raise RunError(msg)
        time.sleep(poll_s)


def _descendants(roots: list[int]) -> dict[int, str]:
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            parents.setdefault(_parent(int(folder.name)), []).append(int(folder.name))
    found: dict[int, str] = {}
    new = roots
    while new := [child for pid in new for child in parents.get(pid, ()) if child not in found]:
        found |= {pid: _command(pid) for pid in new}
    return found


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return 0


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _is_jvm(command: str) -> bool:
    """Whether a command is that of a JVM of Spark, and not of its launcher, which ends soon."""
    return _program(command) == "java" and "org.apache.spark.launcher.Main" not in command


def _program(command: str) -> str:
    return command.partition(" ")[0].rpartition("/")[2]


def _drive(task: Mapping[str, Any]) -> None:
    given = dict(task["settings"])
    mode, life_s = given.pop("mode", "micro-batch"), given.pop("life_s", _LIFE_S)
    settings = Settings.of(given, environment={})
    if task["kind"] == "Catalog":
        run_flow(Catalog(**task["flow"]).declare(), settings, live=False)
        return
    plan = plan_flow(Sales(**task["flow"]).declare(), mode, settings)
    with open_context(plan, settings) as context, LiveRun(plan, context) as run:
        report_running()
        run.wait(life_s)


if __name__ == "__main__":
    _drive(json.loads(sys.argv[1]))
