"""Processes of a contender, seen from outside: memory, processor time, and when they began to read.

Nothing of a contender takes part in the measurement, so that all are measured alike.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

import psutil

from flowcore.background import PeriodicThread
from flowcore.errors import InstallationError, RunError
from flowcore.metrics.usage import process_family
from tests.benchmarks._process_cost import read_cost

__all__ = ["Processes", "now_ms", "require_ss"]

_SAMPLE_S, _WATCH_S = 2.0, 0.05
_READING_BYTES = 16 << 10
"""Bytes that the broker has sent on one connection when its client surely reads records."""
_STOP_S = 20.0
_SENT = re.compile(r"^\S+\s+\S+\s+\S+\s+\S+:(\d+)\s.*?bytes_sent:(\d+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _Sample:
    at_ms: int
    memory_mb: float
    cpu_s: float


@dataclass(slots=True)
class Processes:
    """The processes of a contender, and all below them; a context manager that starts and stops them.

    Args:
        starting: Starts them, one after the other.
        port: The broker's port.

    Attributes:
        roots: The started processes.
        reading_ms: When the broker had sent the first records; None until it has.
    """

    starting: Iterable[subprocess.Popen[bytes]]
    port: int
    roots: list[subprocess.Popen[bytes]] = field(default_factory=list)
    reading_ms: int | None = None
    _samples: list[_Sample] = field(default_factory=list)
    _cpu_s: dict[int, float] = field(default_factory=dict)
    _threads: list[PeriodicThread] = field(default_factory=list)

    def __enter__(self) -> Self:
        try:
            for process in self.starting:
                self.roots.append(process)
            for name, work, interval_s in (
                ("memory", self.sample, _SAMPLE_S), ("reading", self._watch, _WATCH_S)
            ):  # fmt: skip
                self._threads.append(PeriodicThread(name, work, interval_s).__enter__())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_watching()
        self._stop()

    def stop_watching(self) -> None:
        """From now on memory and processor time are read only by `sample`."""
        for thread in self._threads:
            thread.__exit__(None, None, None)

    def require_alive(self) -> None:
        """Raise an error if one of them has ended.

        Raises:
            RunError: One has ended.
        """
        for process in self.roots:
            if process.poll() is not None:
                msg = f"its process ended with code {process.returncode}"
                raise RunError(msg)

    def sample(self, *, with_memory: bool = True) -> float:
        """Add up memory and processor time now.

        Args:
            with_memory: Read memory too. It stops a process for some milliseconds.

        Returns:
            The processor time that all have spent, in seconds.
        """
        cpu_s, memory = read_cost([root.pid for root in self.roots], with_memory=with_memory)
        self._cpu_s |= cpu_s
        spent_s = sum(self._cpu_s.values())
        self._samples.append(_Sample(now_ms(), memory / 1e6, spent_s))
        return spent_s

    def peak_mb(self) -> float:
        """The most memory of all samples."""
        return max((each.memory_mb for each in self._samples), default=0.0)

    def cpu_s(self, until_ms: int) -> float:
        """Processor time that all have spent until then."""
        later = [each.cpu_s for each in self._samples if each.at_ms >= until_ms]
        return later[0] if later else sum(self._cpu_s.values())

    def _watch(self) -> None:
        if self.reading_ms is None:
            asked = ["ss", "-tinHO", "state", "established", f"( sport = :{self.port} )"]
            shown = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
            own = {str(each.laddr.port) for each in psutil.Process().net_connections() if each.laddr}
            sent = [int(size) for port, size in _SENT.findall(shown) if port not in own]
            if max(sent, default=0) >= _READING_BYTES:
                self.reading_ms = now_ms()

    def _stop(self) -> None:
        family = [each for root in self.roots for each in process_family(root.pid)]
        for root in self.roots:
            with suppress(ProcessLookupError):
                root.send_signal(signal.SIGTERM)
        _, alive = psutil.wait_procs(family, timeout=_STOP_S)
        for process in alive:
            with suppress(psutil.Error):
                process.kill()
        for root in self.roots:
            root.wait()


def require_ss() -> None:
    """Require the program that tells when a process begins to read.

    Raises:
        InstallationError: There is none.
    """
    if shutil.which("ss") is None:
        msg = "there is no `ss`, which tells when a process begins to read: run: apt-get install iproute2"
        raise InstallationError(msg)


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
