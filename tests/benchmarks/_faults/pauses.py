"""Pauses: SIGSTOP of the driver, of the JVM, of a worker, and of all of them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from random import Random

from flowcore.spark.checkpoint.lease import STALE_S
from tests.benchmarks._faults.driver import Driver, wait_until
from tests.benchmarks._faults.scenario import BOTH, Scenario
from tests.benchmarks._faults.trial import Trial

__all__ = ["PAUSES", "TIMEOUTS_S", "choose_pause"]

TIMEOUTS_S: Mapping[str, float] = {
    "the lease": STALE_S,
    "Spark's heartbeats and the broker's answers": 120.0,
    "the transaction": 300.0,
}
"""What another process waits for; each pause is longer than one of them."""
_MARGIN_S = (2.0, 15.0)


def _jvm(trial: Trial) -> None:
    """The JVM goes on where it was stopped."""
    driver = _running(trial)
    pid = driver.jvm
    os.kill(pid, signal.SIGSTOP)
    _pause(trial)
    os.kill(pid, signal.SIGCONT)
    trial.recover(driver)


def _worker(*timeouts: str) -> Callable[[Trial], None]:
    """A worker is stopped in its transaction, and goes on."""

    def play(trial: Trial) -> None:
        trial.send(450)
        driver = trial.start(f"transaction-rows:{trial.random.randint(1, 2)}:stop")
        driver.wait_failpoint()
        trial.send(150)
        trial.close_windows()
        _pause(trial, *timeouts)
        trial.recover(driver)

    return play


def _python(trial: Trial) -> None:
    """Another process takes over while only the driver's Python is stopped: its JVM must end by itself."""
    driver = _running(trial)
    os.kill(driver.pid, signal.SIGSTOP)
    _pause(trial)
    _take_over(trial, driver)


def _machine(trial: Trial) -> None:
    """All processes are stopped in a transaction, another process takes over, and they go on."""
    trial.send(450)
    driver = trial.start(f"transaction-rows:{trial.random.randint(1, 2)}:stop")
    driver.wait_failpoint()
    driver.signal_all(signal.SIGSTOP)
    _pause(trial)
    _take_over(trial, driver)


def _two(trial: Trial) -> None:
    """Two drivers of one flow start within seconds: one of them runs, and the other is refused."""
    trial.send(450)
    first, apart_s = trial.start(), trial.random.choice((0.0, trial.random.uniform(0, 10)))
    trial.notes.append(f"{apart_s:.1f} s apart")
    time.sleep(apart_s)
    drivers = [first, trial.start()]
    wait_until(lambda: any(each.ended for each in drivers), 180, "one of two drivers is refused")
    if all(each.ended for each in drivers):
        trial.problems.append(f"both drivers ended: {[each.error for each in drivers]}")
        return
    refused, running = sorted(drivers, key=lambda each: not each.ended)
    trial.notes.append(refused.error[:120])
    if "already runs on the checkpoint" not in refused.error and "just being started" not in refused.error:
        trial.problems.append(f"a driver ended with another error than that of the lease: {refused.error}")
    trial.send(150)
    trial.close_windows()
    trial.recover(running)


def _take_over(trial: Trial, driver: Driver) -> None:
    trial.send(150)
    trial.close_windows()
    trial.finish()
    driver.signal_all(signal.SIGCONT)
    driver.wait_end(150)
    trial.notes.append(driver.error[:90])
    if not driver.error:
        trial.problems.append("the stopped driver ended without an error of flowcore")


def _running(trial: Trial) -> Driver:
    trial.send(450)
    driver = trial.start()
    trial.wait_copies(trial.random.randint(1, 300), driver)
    trial.send(150)
    trial.close_windows()
    return driver


def choose_pause(seed: int, random: Random, *timeouts: str) -> tuple[str, float]:
    """The time-out that a pause passes, by default one of all, and the pause's seconds; seeds take turns."""
    names = timeouts or tuple(TIMEOUTS_S)
    name = names[(seed - 1) % len(names)]
    return name, TIMEOUTS_S[name] + random.uniform(*_MARGIN_S)


def _pause(trial: Trial, *timeouts: str) -> None:
    name, seconds = choose_pause(trial.seed, trial.random, *timeouts)
    trial.notes.append(f"{seconds:.0f} s, past {name}")
    time.sleep(seconds)


_LEASE, _ANSWERS, _TRANSACTION = TIMEOUTS_S

PAUSES = (
    Scenario(
        id="pause-jvm", title="SIGSTOP of the JVM past a time-out: 30, 120 or 300 s", play=_jvm,
        deliveries=BOTH, limit_s=180,
    ),
    Scenario(
        id="pause-worker", title="SIGSTOP of a worker in its transaction, past 30 or 120 s",
        play=_worker(_LEASE, _ANSWERS), limit_s=180,
    ),
    Scenario(
        id="pause-worker-past-transaction", title="the same, until Kafka has aborted the transaction",
        play=_worker(_TRANSACTION), limit_s=180,
    ),
    Scenario(
        id="pause-python", title="SIGSTOP of the driver's Python until another process has taken over",
        play=_python, limit_s=180, deliveries=BOTH,
    ),
    Scenario(
        id="pause-machine", title="SIGSTOP of all processes in a transaction, until another has taken over",
        play=_machine, limit_s=180,
    ),
    Scenario(
        id="two-starts", title="two drivers of one flow start at the same time", play=_two, deliveries=BOTH,
        limit_s=180,
    ),
)  # fmt: skip
