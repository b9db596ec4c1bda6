"""Soak: hours of rotating faults on one running flow, and slopes of what it uses.

A round is each fault that a run survives, in random order, and then one of those that end it; the run is
started again, as supervision would. Sales go on all the time. Nothing may grow over the second half
(`tests.benchmarks._faults.growth`), and the rules of the other scenarios hold at the end.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

import click
import psutil

from flowcore.errors import RunError
from flowcore.kafka.broker import EmbeddedBroker
from flowcore.spark.checkpoint.lease import STALE_S
from tests.benchmarks._faults.broker_faults import broker_of, kill_broker
from tests.benchmarks._faults.driver import Driver
from tests.benchmarks._faults.growth import Sample, Trend, find_growth, find_trends
from tests.benchmarks._faults.scenario import Scenario
from tests.benchmarks._faults.trial import Trial

__all__ = ["SOAK", "Soak"]

_SALES_A_SECOND = 20
_LONGEST_GAP_S = 100.0
"""Mean time between two faults of a long soak, so that a process lives for ten minutes."""
_SAMPLE_S = 10.0
_SETTINGS = {
    "execution.short-lived": "false",
    # So that a short soak, too, reaches in its first half what is kept: old versions of the state are removed
    # by maintenance, which finds as many of them as there were batches since the last one.
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.sql.streaming.stateStore.maintenanceInterval": "10s",
}
_END_S = 150.0
_RECOVERY_S = 600.0
_JCMD_S = 30.0


class Soak:
    """A flow that runs, faults, and samples of what it uses.

    Attributes:
        driver: The run of now.
        samples: What was measured, in order.
    """

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.random = trial.random
        self.samples: list[Sample] = []
        self._began_s = time.monotonic()
        self._gap_s = min(_LONGEST_GAP_S, trial.site.soak_s / 18)
        self._generation = -1
        self._sampled_s = self._running_s = 0.0
        self._temporary = trial.folder / "tmp"
        self._temporary.mkdir()
        self._sell()
        self.driver = self._start()

    def run(self) -> None:
        """Inject faults until the time is over."""
        faults = _rotate(self)
        injected = 0
        while self._elapsed_s < self.trial.site.soak_s:
            self.keep_selling(self.random.uniform(0.3, 1.7) * self._gap_s)
            name, inject = next(faults)
            click.echo(f"{self._elapsed_s:6.0f} s  {name}", err=True)
            inject(self)
            injected += 1
            self._recover()
        self.trial.notes.append(f"{injected} faults, {self._generation} restarts")

    def keep_selling(self, seconds: float, *, measure: bool = True) -> None:
        """Send sales for some time, and measure now and then."""
        end = time.monotonic() + seconds
        while (left_s := end - time.monotonic()) > 0 and self._elapsed_s < self.trial.site.soak_s:
            self._sell()
            time.sleep(min(left_s, 1.0))
            if measure:
                self._sample()

    def check(self) -> None:
        """Note the slopes, and what grows."""
        duration_s, settle_s = self.trial.site.soak_s, min(120.0, self.trial.site.soak_s / 10)
        trends: list[Trend] = [*find_trends(self.samples, duration_s, settle_s)]
        self.trial.notes.append(f"{len(self.samples)} samples: " + ", ".join(map(str, trends)))
        found = json.dumps([asdict(each) for each in self.samples])
        (self.trial.folder / "samples.json").write_text(found)
        self.trial.problems += find_growth(self.samples, duration_s, settle_s)

    @property
    def _elapsed_s(self) -> float:
        return time.monotonic() - self._began_s

    def _sell(self) -> None:
        self.trial.send(_SALES_A_SECOND)

    def _start(self) -> Driver:
        self._generation += 1
        with _temporary_folder(self._temporary):
            driver = self.trial.start(None, life_s=2 * self.trial.site.soak_s, **_SETTINGS)
        driver.wait_running()
        self._running_s = time.monotonic()
        return driver

    def _recover(self) -> None:
        """Wait until all sales of before are copied; meanwhile a run that has ended is started again."""
        wanted = {sale["id"] for _, sale in self.trial.sent.sales}
        end = time.monotonic() + _RECOVERY_S
        with self.trial.recovery():
            while not wanted <= self.trial.copied():
                if time.monotonic() > end:
                    missing = len(wanted - self.trial.copied())
                    msg = f"{missing} of {len(wanted)} sales were not copied within {_RECOVERY_S:g} s"
                    raise RunError(msg)
                if self.driver.ended:
                    self.driver.wait_end(_END_S)
                    self.driver.kill()
                    self.driver = self._start()
                self._sell()
                time.sleep(0.5)
                self._sample()

    def _sample(self) -> None:
        now_s = time.monotonic()
        if now_s < self._sampled_s + _SAMPLE_S or self.driver.ended:
            return
        self._sampled_s = now_s
        with suppress(psutil.Error, OSError, subprocess.SubprocessError, StopIteration):  # it is just ending
            figures = {**_usage_of(self.driver), **self._folders()}
            self.samples.append(
                Sample(now_s - self._began_s, self._generation, now_s - self._running_s, figures)
            )

    def _folders(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for name, folder in ("checkpoint", self.trial.checkpoint.parent), ("temporary", self._temporary):
            sizes = [*_file_sizes(folder)]
            found |= {f"{name}_files": len(sizes), f"{name}_bytes": sum(sizes)}
        return found


Fault = Callable[[Soak], None]


def _pause(seconds: tuple[float, float], choose: Callable[[Driver], list[int]]) -> Fault:
    """Stop processes, and let them go on."""

    def inject(soak: Soak) -> None:
        stopped = choose(soak.driver)
        _signal(stopped, signal.SIGSTOP)
        soak.keep_selling(soak.random.uniform(*seconds), measure=False)
        _signal(stopped, signal.SIGCONT)

    return inject


def _stop_broker(stop: Callable[[EmbeddedBroker], None], most_s: float) -> Fault:
    """Stop the broker, and start it again."""

    def inject(soak: Soak) -> None:
        broker = broker_of(soak.trial)
        stop(broker)
        time.sleep(soak.random.uniform(0, most_s))
        broker.start()

    return inject


def _kill(choose: Callable[[Driver], list[int]]) -> Fault:
    """Kill processes, and wait until the run has ended, which an idle worker does not cause."""

    def inject(soak: Soak) -> None:
        _signal(choose(soak.driver), signal.SIGKILL)
        end = time.monotonic() + _END_S
        while not soak.driver.ended and time.monotonic() < end:
            if choose is _a_worker:
                _signal(_a_worker(soak.driver), signal.SIGKILL)
            soak.keep_selling(0.2, measure=False)

    return inject


def _python(driver: Driver) -> list[int]:
    return [driver.pid]


def _jvm(driver: Driver) -> list[int]:
    return [driver.jvm]


def _a_worker(driver: Driver) -> list[int]:
    return driver.workers[:1]


def _all(driver: Driver) -> list[int]:
    return [driver.pid, *driver.look_at_family()]


_SURVIVED: Mapping[str, Fault] = {
    "pause of the JVM": _pause((3, 20), _jvm),
    "pause of a worker": _pause((3, 20), _a_worker),
    "pause of all processes": _pause((3, 20), _all),
    "stop of the broker": _stop_broker(EmbeddedBroker.stop, 10),
    "kill of the broker": _stop_broker(kill_broker, 5),
}
_ENDING: Mapping[str, Fault] = {
    "kill of all processes": _kill(_all),
    "kill of the JVM": _kill(_jvm),
    "kill of the driver's Python": _kill(_python),
    "kill of workers": _kill(_a_worker),
    "pause of Python past its lease": _pause((STALE_S + 2, STALE_S + 15), _python),
}


def _rotate(soak: Soak) -> Iterator[tuple[str, Fault]]:
    """Faults without end: all that a run survives, then one that ends it."""
    while True:
        for ending in _shuffled(soak, _ENDING):
            yield from _shuffled(soak, _SURVIVED)
            yield ending


def _shuffled(soak: Soak, faults: Mapping[str, Fault]) -> list[tuple[str, Fault]]:
    return soak.random.sample([*faults.items()], len(faults))


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _usage_of(driver: Driver) -> dict[str, float]:
    """What the processes of a run use now, after a full garbage collection of the JVM."""
    jvm = driver.jvm
    done = subprocess.run(
        ["jcmd", str(jvm), "GC.class_histogram"], capture_output=True, text=True, timeout=_JCMD_S, check=True
    )  # fmt: skip
    (heap,) = re.findall(r"^Total\s+\d+\s+(\d+)", done.stdout, re.MULTILINE)
    processes = {pid: psutil.Process(pid) for pid in (driver.pid, jvm, *driver.workers)}
    resident = {pid: process.memory_info().rss for pid, process in processes.items()}
    return {
        "python_bytes": resident.pop(driver.pid),
        "heap_bytes": int(heap),
        "jvm_bytes": resident.pop(jvm),
        "workers_bytes": sum(resident.values()),
        "descriptors": sum(each.num_fds() for each in processes.values()),
        "threads": sum(each.num_threads() for each in processes.values()),
    }


def _file_sizes(folder: Path) -> Iterator[int]:
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):  # just removed
                yield os.lstat(f"{place}/{name}").st_size


@contextmanager
def _temporary_folder(folder: Path) -> Iterator[None]:
    """Processes that are started in the block have their temporary files there."""
    before = os.environ.get("TMPDIR")
    os.environ["TMPDIR"] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = before


def _soak(trial: Trial) -> None:
    trial.batch_records = 5_000  # a busy machine must keep pace with the sales
    soak = Soak(trial)
    soak.run()
    trial.close_windows()
    trial.recover(soak.driver)
    soak.check()


SOAK = (
    Scenario(
        id="soak", title="two hours (--soak-minutes) of rotating faults, and nothing grows (needs jcmd)",
        play=_soak, own_broker=True, limit_s=300, by_name_only=True,
    ),
)  # fmt: skip
