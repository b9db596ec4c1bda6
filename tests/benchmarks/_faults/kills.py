"""Kills: of the process that reaches a fail-point, of the JVM, of the driver and of workers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from flowcore.errors import RunError
from flowcore.failpoints import VARIABLE
from flowcore.installation.jars import jars
from flowcore.planner import plan_flow
from flowcore.settings import Settings
from flowcore.spark.checkpoint.offset_log import planned_batches
from flowcore.spark.context import Context
from flowcore.spark.run.flow import run_plan
from tests.benchmarks._faults.catalog import Catalog
from tests.benchmarks._faults.driver import Driver, wait_until
from tests.benchmarks._faults.scenario import BOTH, Scenario
from tests.benchmarks._faults.trial import Trial

__all__ = ["KILLS", "kill_in_batch", "run_stages"]

_IN_BATCH = ("offsets-logged", "transaction-committed-0", "transaction-committed-1", "batch-written")
_FEWEST_SALES, _SALES = 450, 600
_TRIES = 8
_SNAPSHOT_SHOPS = 6_000
_DIGITS = 200


def _at(failpoint: str, most: int = 2, **settings: object) -> Callable[[Trial], None]:
    """Kill the process that reaches a fail-point, at one of its first times."""

    def play(trial: Trial) -> None:
        _send_all(trial)
        driver = trial.start(f"{failpoint}:{trial.random.randint(1, most)}", **settings)
        driver.wait_failpoint()
        driver.wait_end()
        trial.finish()

    return play


def _others_at(failpoint: str, kill: Callable[[Driver], None]) -> Callable[[Trial], None]:
    """Stop the process that reaches a fail-point, and kill others meanwhile."""

    def play(trial: Trial) -> None:
        _send_all(trial)
        driver = trial.start(f"{failpoint}:{trial.random.randint(1, 2)}:stop")
        driver.wait_failpoint()
        kill(driver)
        driver.wait_end()
        trial.finish()

    return play


def _at_random(kill: Callable[[Driver], None]) -> Callable[[Trial], None]:
    """Kill at a random moment of the first batches."""

    def play(trial: Trial) -> None:
        _send_all(trial)
        driver = trial.start()
        trial.wait_copies(trial.random.randint(1, 300), driver)
        kill(driver)
        driver.wait_end()
        trial.finish()

    return play


def _realtime(trial: Trial) -> None:
    """A query in real-time mode, whose batch was not committed, repeats what it has written."""
    trial.sales = replace(trial.sales, realtime=True)
    _send_all(trial)
    driver = trial.start(mode="realtime", **{"execution.realtime.batch-duration": "5 s"})
    trial.wait_copies(trial.random.randint(1, 600), driver)
    trial.send(trial.random.randint(1, 300))
    driver.kill()
    trial.finish()


def _before_offsets(trial: Trial) -> None:
    """Kill all processes when a batch is committed, before the offsets of the next one are logged.

    A kill that comes too late is one in a batch, and the next run is killed instead.
    """
    batch = trial.random.randint(0, 2)
    for _ in range(_TRIES):
        _send_all(trial)
        driver = trial.start()
        driver.wait_jvm()
        jvm = driver.jvm
        _wait_for_file(trial.checkpoint / "commits" / str(batch), driver)
        os.kill(jvm, signal.SIGKILL)
        driver.kill()
        planned = max(planned_batches(trial.checkpoint))
        if planned == batch:
            trial.notes.append(f"after the commit of batch {batch}")
            trial.finish()
            return
        trial.notes.append(f"too late for batch {batch}")
        batch = planned + trial.random.randint(0, 1)
    msg = f"none of {_TRIES} kills came between a commit and the next offsets: the fault was not injected"
    raise RunError(msg)


def _executor(trial: Trial) -> None:
    """Kill one of two executors: its tasks run again on the other one, in the same batch."""
    _send_all(trial)
    classes = os.pathsep.join(map(str, jars("connector")))
    cluster = {"spark.master": "local-cluster[2,1,1024]", "spark.executor.memory": "1g"}
    driver = trial.start(**cluster, **{"spark.executor.extraClassPath": classes})
    trial.wait_copies(trial.random.randint(1, 300), driver)
    os.kill(trial.random.choice(driver.executors), signal.SIGKILL)
    trial.recover(driver)


def _snapshot(trial: Trial) -> None:
    """Large state of one key group, which is written as snapshots."""
    trial.batch_records = 1_500
    trial.key_groups = 1
    trial.sales = replace(trial.sales, window_s=3_600)
    trial.send(_SNAPSHOT_SHOPS, shops=_SNAPSHOT_SHOPS, digits=_DIGITS)
    trial.close_windows()
    driver = trial.start(f"state-snapshot:{trial.random.randint(1, 2)}")
    driver.wait_failpoint()
    driver.wait_end()
    trial.finish()


def _rescale(trial: Trial) -> None:
    """Kill `flowcore rescale` when it has planned its batch, some time later, or when that is committed."""
    trial.send(450)
    trial.finish()
    planned = max(planned_batches(trial.checkpoint)) + 1
    chosen = trial.random.choice(("planned", "rewriting", "state-repartitioned:1"))
    trial.notes.append(chosen)
    environment = {VARIABLE: chosen} if ":" in chosen else {}
    with _rescaling(trial, environment) as rescale:
        if not environment:
            wait_until((trial.checkpoint / "offsets" / str(planned)).exists, 120, "a batch is planned", 0.001)
        if chosen == "rewriting":
            time.sleep(trial.random.uniform(0, 3))
        if environment and rescale.wait(120) != -signal.SIGKILL:
            trial.problems.append(f"rescale ended before {chosen}: the fault was not injected")
        with suppress(ProcessLookupError):
            os.killpg(rescale.pid, signal.SIGKILL)
    ended = (trial.checkpoint / "commits" / str(planned)).exists()
    trial.notes.append("committed" if ended else "not committed")
    if trial.random.random() < 0.5:
        trial.notes.append("called again")
        with _rescaling(trial, {}) as rescale:
            if rescale.wait(120):
                trial.problems.append("the second call of rescale failed")
    trial.send(150)
    trial.close_windows()
    trial.finish()


def _rescaling(trial: Trial, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    command = [
        sys.executable, "-m", "flowcore.cli.main", "rescale", trial.sales.flow, "--shuffle-partitions", "5",
        "--set", f"state.dir={trial.state}", "--set", "execution.short-lived=true",
    ]  # fmt: skip
    log = (trial.folder / "rescale.log").open("ab")
    return subprocess.Popen(
        command, env={**os.environ, **environment}, stdout=log, stderr=log, start_new_session=True
    )


def _catalog(failpoint: str, most: int, *, in_swap: bool) -> Callable[[Trial], None]:
    """Kill a bounded stage that replaces an earlier result, which is there until the swap takes it away."""

    def play(trial: Trial) -> None:
        trial.create_topics()
        catalog = Catalog(str(trial.folder / "data"))
        catalog.add_orders(0, trial.random.randint(100, 500))
        run_stages(trial, catalog)
        left = {} if in_swap else catalog.expected()
        catalog.add_orders(1, trial.random.randint(100, 500))
        with Driver(
            catalog, {"state.dir": trial.state}, trial.folder / "catalog.log",
            f"{failpoint}:{trial.random.randint(1, most)}",
        ) as driver:  # fmt: skip
            driver.wait_failpoint()
            driver.wait_end()
        if (seen := catalog.written()) != left:
            trial.problems.append(f"N4: after the kill a reader sees {json.dumps(seen)}, not {left}")
        with trial.recovery():
            run_stages(trial, catalog)
        if (seen := catalog.written()) != catalog.expected():
            trial.problems.append(f"N4: the result is {json.dumps(seen)}")

    return play


def run_stages(trial: Trial, catalog: Catalog) -> None:
    """Run the bounded stages of a catalog in the warm session."""
    settings = Settings.of({"state.dir": trial.state}, environment={})
    plan = plan_flow(catalog.declare(), None, settings)
    context = Context(trial.site.spark, settings, plan.flow)
    run_plan(replace(plan, live=None), context)


def _again(trial: Trial) -> None:
    """Kill the run that recovers, in the batch that it repeats or soon after, once or twice."""
    trial.send(2 * _SALES)
    trial.close_windows()
    kill_in_batch(trial)
    for _ in range(trial.random.randint(1, 2)):
        if trial.sales.delivery == "at-least-once":
            kill_in_batch(trial)
            continue
        failpoint = trial.random.choice((*_IN_BATCH, "offsets-unlogged", "transaction-rows"))
        driver = trial.start(f"{failpoint}:1")
        driver.wait_failpoint()
        driver.wait_end()
    trial.finish()


def kill_in_batch(trial: Trial, *failpoints: str, **settings: object) -> None:
    """Kill a driver in the middle of a batch: at a fail-point, or at a random moment of at-least-once."""
    if trial.sales.delivery == "exactly-once":
        name = trial.random.choice(failpoints or _IN_BATCH)
        driver = trial.start(f"{name}:{trial.random.randint(1, 2)}", **settings)
        driver.wait_failpoint()
        driver.wait_end()
    else:
        driver = trial.start()
        trial.wait_copies(len(trial.copied()) + trial.random.randint(1, 150), driver)
        driver.kill()


def _send_all(trial: Trial) -> None:
    trial.send(trial.random.randint(_FEWEST_SALES, _SALES))
    trial.close_windows()


def _wait_for_file(path: Path, driver: Driver) -> None:
    def is_there() -> bool:
        if driver.ended:
            msg = f"the driver has ended before {path} was there: {driver.error}"
            raise RunError(msg)
        return path.exists()

    wait_until(is_there, 300, f"{path} is written", 0.001)


def _kill_driver(driver: Driver) -> None:
    driver.kill()


def _kill_python(driver: Driver) -> None:
    driver.look_at_family()
    os.kill(driver.pid, signal.SIGKILL)


def _kill_jvm(driver: Driver) -> None:
    os.kill(driver.jvm, signal.SIGKILL)


def _kill_worker(driver: Driver) -> None:
    """Kill a worker again and again until the query fails: an idle worker is not missed."""

    def is_over() -> bool:
        for pid in driver.workers:
            os.kill(pid, signal.SIGKILL)
        return driver.ended

    wait_until(is_over, 300, "the query of a killed worker fails", 0.05)


KILLS = (
    Scenario(
        id="kill-before-first-offsets", title="driver, before the offsets of the first batch are logged",
        play=_at("offsets-unlogged", 1), deliveries=BOTH,
    ),
    Scenario(
        id="kill-before-offsets", title="all processes, between a commit and the next offsets",
        play=_before_offsets, deliveries=BOTH,
    ),
    Scenario(
        id="kill-after-offsets", title="driver, after the offsets of a batch are logged",
        play=_at("offsets-logged", 3),
    ),
    Scenario(
        id="kill-in-output", title="worker, in the middle of a transaction's records",
        play=_at("transaction-rows"),
    ),
    Scenario(
        id="kill-before-transaction-commit", title="worker, before the commit of a transaction",
        play=_at("transaction-commit-0"),
    ),
    Scenario(
        id="kill-after-transaction-commit", title="worker, after the commit of a transaction",
        play=_at("transaction-committed-1"),
    ),
    Scenario(
        id="kill-between-slots", title="worker, between the commits of two slots of a batch",
        play=_at("transaction-commit-1", 2, **{"spark.master": "local[1]"}), quick="exactly-once",
    ),
    Scenario(
        id="kill-before-commit-log", title="driver, after all transactions, before Spark's commit log",
        play=_at("batch-written", 3),
    ),
    Scenario(
        id="kill-in-state-snapshot", title="worker, while it writes a snapshot of its state",
        play=_snapshot, deliveries=BOTH,
    ),
    Scenario(
        id="kill-in-rescale", title="all processes, while state is distributed over more partitions",
        play=_rescale, deliveries=BOTH,
    ),
    Scenario(
        id="kill-in-manifest", title="driver, between a manifest's write and its rename",
        play=_catalog("manifest-write", 2, in_swap=False),
    ),
    Scenario(
        id="kill-in-swap", title="driver, while the folder of a sink is replaced",
        play=_catalog("swap", 1, in_swap=True),
    ),
    Scenario(
        id="kill-jvm-in-transaction", title="JVM, in the middle of a transaction",
        play=_others_at("transaction-rows", _kill_jvm),
    ),
    Scenario(
        id="kill-machine-in-transaction", title="all processes, in the middle of a transaction",
        play=_others_at("transaction-rows", _kill_driver),
    ),
    Scenario(
        id="kill-python", title="the driver's Python only, at a random moment",
        play=_at_random(_kill_python), deliveries=BOTH,
    ),
    Scenario(
        id="kill-jvm", title="the JVM, at a random moment", play=_at_random(_kill_jvm), deliveries=BOTH,
    ),
    Scenario(
        id="kill-realtime", title="all processes of a query in real-time mode", play=_realtime,
        deliveries=BOTH[1:],
    ),
    Scenario(
        id="kill-executor", title="one of two executors, at a random moment", play=_executor,
        deliveries=BOTH, limit_s=180,
    ),
    Scenario(
        id="kill-worker", title="Python workers, at a random moment",
        play=_at_random(_kill_worker), deliveries=BOTH,
    ),
    Scenario(
        id="kill-again", title="a driver in a batch, and then those that recover from it", play=_again,
        deliveries=BOTH,
    ),
)  # fmt: skip
