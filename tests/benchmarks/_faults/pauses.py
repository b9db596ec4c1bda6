"""Pauses: SIGSTOP of the driver, of the JVM, of a worker, and of all of them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from flowcore.spark.checkpoint.lease import STALE_S
from tests.benchmarks._faults.driver import Driver, wait_until
from tests.benchmarks._faults.scenario import BOTH, Scenario
from tests.benchmarks._faults.trial import Trial

__all__ = ["PAUSES"]

_TRANSACTION_S = 300.0
"""After this time Kafka aborts a transaction that flowcore has begun."""


def _jvm(trial: Trial) -> None:
    """The JVM goes on where it was stopped."""
    driver = _running(trial)
    pid = driver.jvm
    os.kill(pid, signal.SIGSTOP)
    _pause(trial, 5, 40)
    os.kill(pid, signal.SIGCONT)
    trial.recover(driver)


def _worker(least_s: float, most_s: float) -> Callable[[Trial], None]:
    """A worker is stopped in its transaction, and goes on."""

    def play(trial: Trial) -> None:
        trial.send(450)
        driver = trial.start(f"transaction-rows:{trial.random.randint(1, 2)}:stop")
        driver.wait_failpoint()
        trial.send(150)
        trial.close_windows()
        _pause(trial, least_s, most_s)
        trial.recover(driver)

    return play


def _python(trial: Trial) -> None:
    """Another process takes over while only the driver's Python is stopped: its JVM must end by itself."""
    driver = _running(trial)
    os.kill(driver.pid, signal.SIGSTOP)
    time.sleep(STALE_S + 2)
    _take_over(trial, driver)


def _machine(trial: Trial) -> None:
    """All processes are stopped in a transaction, another process takes over, and they go on."""
    trial.send(450)
    driver = trial.start(f"transaction-rows:{trial.random.randint(1, 2)}:stop")
    driver.wait_failpoint()
    driver.signal_all(signal.SIGSTOP)
    time.sleep(STALE_S + 2)
    _take_over(trial, driver)


def _two(trial: Trial) -> None:
    """Two drivers of one flow start at the same time: one of them runs, and the other is refused."""
    trial.send(450)
    drivers = [trial.start(), trial.start()]
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


def _pause(trial: Trial, least_s: float, most_s: float) -> None:
    seconds = trial.random.uniform(least_s, most_s)
    trial.notes.append(f"{seconds:.0f} s")
    time.sleep(seconds)


PAUSES = (
    Scenario(
        id="pause-jvm", title="SIGSTOP of the JVM, 5 to 40 s", play=_jvm, deliveries=BOTH, limit_s=180,
    ),
    Scenario(
        id="pause-worker", title="SIGSTOP of a worker in its transaction, 5 to 40 s", play=_worker(5, 40),
        limit_s=180,
    ),
    Scenario(
        id="pause-worker-past-transaction", title="the same, until Kafka has aborted the transaction",
        play=_worker(_TRANSACTION_S + 15, _TRANSACTION_S + 20), limit_s=180,
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
