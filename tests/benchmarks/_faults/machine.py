"""Faults of the machine, faked in the processes of a trial: its clock jumps, its disk is slow or fails."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flowcore.errors import RunError
from tests.benchmarks._faults.driver import wait_until
from tests.benchmarks._faults.scenario import BOTH, Scenario
from tests.benchmarks._faults.storage import require_outage
from tests.benchmarks._faults.trial import Trial

__all__ = ["MACHINE_FAULTS", "FakedMachine"]

_SOURCE = Path(__file__).with_suffix(".c")
_JUMP_S = 3000.0
"""Kafka refuses records that are an hour ahead of its clock."""
_KIB = 1024
_FIELDS, _COUNT = struct.Struct("=qqqq"), struct.Struct("=q")
_FAILS_WITHIN_S = 60.0


class FakedMachine:
    """A library that processes preload, and the file that says what they see; see ``machine.c``.

    Args:
        folder: Where both are written.
        disk: The folder to which writes may fail.

    Raises:
        RunError: There is no C compiler.
    """

    def __init__(self, folder: Path, disk: Path | None = None) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            msg = "clocks and disks are faked by a library that must be compiled: install a C compiler (cc)"
            raise RunError(msg)
        library = folder / "machine.so"
        subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, _SOURCE, "-ldl"], check=True)
        self._file = folder / "machine"
        self._file.write_bytes(bytes(_FIELDS.size + _COUNT.size))
        self.environment = {"LD_PRELOAD": str(library), "FLOWCORE_MACHINE": str(self._file)}
        if disk is not None:
            self.environment["FLOWCORE_MACHINE_FOLDER"] = str(disk.resolve())

    def set(
        self, *, clock_s: float = 0.0, bytes_per_s: int = 0, latency_s: float = 0.0, fails_one_in: int = 0
    ) -> None:
        """Change what all processes see: a clock that is ahead, a slow disk, and failing writes.

        Args:
            fails_one_in: If it is n, one write in n fails; 0 for none.
        """
        content = _FIELDS.pack(int(clock_s * 1e9), bytes_per_s, int(latency_s * 1e9), fails_one_in)
        with self._file.open("r+b") as file:
            file.write(content)

    @property
    def failed(self) -> int:
        """How many writes have failed so far."""
        (count,) = _COUNT.unpack_from(self._file.read_bytes(), _FIELDS.size)
        return int(count)

    @contextmanager
    def preloaded(self) -> Iterator[None]:
        """Processes that are started in the block are on this machine."""
        os.environ.update(self.environment)
        try:
            yield
        finally:
            for name in self.environment:
                del os.environ[name]


def _clock(trial: Trial) -> None:
    """The wall clock of a driver jumps some times, by up to 50 minutes, and is right in the end."""
    machine = FakedMachine(trial.folder)
    trial.send(450)
    interval = trial.random.choice(("0 s", "200 ms", "2 s"))
    with machine.preloaded():
        driver = trial.start(**{"execution.trigger-interval": interval})
    trial.wait_copies(trial.random.randint(1, 300), driver)
    trial.notes.append(f"batches every {interval}, clock")
    for _ in range(trial.random.randint(1, 4)):
        jump_s = trial.random.choice((-1, 1)) * trial.random.uniform(1, _JUMP_S)
        trial.notes.append(f"{jump_s:+.0f} s")
        machine.set(clock_s=jump_s)
        trial.send(trial.random.randint(1, 150))
        time.sleep(trial.random.uniform(0.1, 8))
    machine.set()
    trial.close_windows()
    trial.recover(driver)


def _slow_disk(trial: Trial) -> None:
    """The broker's disk is slow for a minute, at times so slow that requests take seconds."""
    broker = trial.site.broker
    assert broker is not None
    machine = FakedMachine(trial.folder)
    broker.stop()
    with machine.preloaded():
        broker.start()
    trial.send(450)
    driver = trial.start()
    trial.wait_copies(trial.random.randint(1, 300), driver)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        rate, latency_s = trial.random.uniform(16, 256), trial.random.uniform(0, 1) ** 4 * 10
        trial.notes.append(f"{rate:.0f} KiB/s + {latency_s:.1f} s")
        machine.set(bytes_per_s=int(rate * _KIB), latency_s=latency_s)
        trial.send(50)
        time.sleep(trial.random.uniform(1, 15))
    machine.set()
    trial.close_windows()
    trial.recover(driver)


def _disk_errors(trial: Trial) -> None:
    """All writes to the state folder, or one in n, fail with EIO for a time."""
    machine = FakedMachine(trial.folder, trial.state)
    trial.send(600)
    trial.close_windows()
    with machine.preloaded():
        driver = trial.start()
    trial.wait_copies(trial.random.randint(1, 300), driver)
    fails_one_in, seconds = trial.random.choice((1, 3, 20)), trial.random.uniform(2, 30)
    trial.notes.append(f"one write in {fails_one_in}, {seconds:.0f} s")
    machine.set(fails_one_in=fails_one_in)
    time.sleep(seconds)
    wait_until(lambda: machine.failed > 0, _FAILS_WITHIN_S, "a write to the state folder fails")
    machine.set()
    trial.notes.append(f"{machine.failed} failed")
    trial.recover(driver)
    if driver.error:
        require_outage(trial, driver)


MACHINE_FAULTS = (
    Scenario(
        id="clock-jumps", title="the clock of a driver jumps by up to 50 minutes (needs a C compiler)",
        play=_clock, deliveries=BOTH, limit_s=180,
    ),
    Scenario(
        id="slow-disk", title="the disk of the broker is slow for a minute (needs a C compiler)",
        play=_slow_disk, own_broker=True, deliveries=BOTH, limit_s=180,
    ),
    Scenario(
        id="disk-errors", title="writes to the state folder fail with EIO, 2 to 30 s (needs a C compiler)",
        play=_disk_errors, deliveries=BOTH, limit_s=180,
    ),
)  # fmt: skip
