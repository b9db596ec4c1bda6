"""Drivers in processes of their own, which tests kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from flowcore import Flow, KafkaTopic, failpoints
from flowcore.planner import plan_flow
from flowcore.settings import Settings
from flowcore.spark.run.flow import open_context
from flowcore.spark.run.live_stage import LiveRun
from tests.waiting import LONGEST_S

if TYPE_CHECKING:
    from flowcore.planner.plan import Plan
    from tests.kafka.conftest import Live

__all__ = ["driver_settings", "kill_driver", "report_running", "run_plan", "run_slice", "run_to_failpoint"]


def driver_settings(servers: str, state: str, *, batch_records: int = 20, **others: str) -> Settings:
    """The settings of a driver, whose batches are small, so that a kill leaves some of them."""
    values = {
        **others,
        "kafka.bootstrap.servers": servers,
        "state.dir": state,
        "execution.short-lived": "true",
        "execution.max-records-per-batch": batch_records,
    }
    return Settings.of(values, environment={})


def report_running() -> None:
    """Tell `kill_driver` that the queries of this driver run."""
    print("running", flush=True)  # noqa: T201 - the test waits for this line


def run_plan(plan: Plan, settings: Settings) -> None:
    """Run the live queries of a plan until this process is killed."""
    with open_context(plan, settings) as context, LiveRun(plan, context) as run:
        report_running()
        run.wait(300)


def run_slice(
    declare: Callable[..., Flow], servers: str, state: str, topics: Iterable[str], *, batch_records: int = 20
) -> None:
    """Run a slice of a flow of topics, in small batches, until this process is killed."""
    settings = driver_settings(servers, state, batch_records=batch_records)
    run_plan(plan_flow(declare(*map(KafkaTopic, topics)), "slice", settings), settings)


def kill_driver(
    drive: Callable[..., object],
    live: Live,
    *arguments: str,
    batches: int = 0,
    after_s: float = 0.0,
    when: Callable[[], bool] = lambda: True,
) -> None:
    """Call a function in a new process, and kill it with its JVM and workers.

    Args:
        drive: A function of a module, which gets the broker, the state folder, and the arguments; it calls
            `report_running`.
        live: The broker and the state folder.
        arguments: Further arguments.
        batches: The number of batches that the process commits before, of all its queries.
        after_s: The time from the last of these to the kill, in seconds.
        when: The kill also waits until this is true.
    """
    wanted = _committed(live) + batches
    with subprocess.Popen(
        _command(drive, live, arguments), stdout=subprocess.PIPE, start_new_session=True
    ) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == b"running\n"
        while driver.poll() is None and _committed(live) < wanted:
            time.sleep(0.05)
        time.sleep(after_s)
        while not when():
            assert driver.poll() is None
            time.sleep(0.2)
        assert driver.poll() is None
        os.killpg(driver.pid, signal.SIGKILL)


def _committed(live: Live) -> int:
    return sum(1 for _ in live.settings.state_dir.glob("*/checkpoints/*/commits/[0-9]*"))


def run_to_failpoint(drive: Callable[..., object], live: Live, *arguments: str, failpoint: str) -> None:
    """Call a function in a new process, of which the driver or a worker is killed at a fail-point.

    Args:
        failpoint: ``name:n``.
    """
    command = _command(drive, live, arguments)
    environment = {**os.environ, failpoints.VARIABLE: failpoint}
    found = subprocess.run(
        command, env=environment, start_new_session=True, timeout=LONGEST_S, capture_output=True, check=False
    )
    assert f"fail-point {failpoint}".encode() in found.stderr, found.stderr[-2000:]


def _command(drive: Callable[..., object], live: Live, arguments: Iterable[str]) -> list[str]:
    program = f"import sys; from {drive.__module__} import {drive.__name__} as drive; drive(*sys.argv[1:])"
    return [sys.executable, "-c", program, live.servers, str(live.settings.state_dir), *arguments]
