"""A live query waits for the end of an outage, and continues by itself: nothing is lost or repeated."""

from __future__ import annotations

import os
import resource
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from flowcore import Flow
from flowcore.kafka.broker import EmbeddedBroker
from flowcore.settings import Settings
from tests.kafka.conftest import Live
from tests.waiting import run_until

pytestmark = pytest.mark.kafka

BID = "id BIGINT NOT NULL, price DOUBLE"
QUICK = {"answer_timeout": timedelta(seconds=3), "metrics_interval": timedelta(milliseconds=500)}


def _bids(*numbers: int) -> Iterator[dict[str, Any]]:
    return ({"id": number, "price": float(number)} for number in range(*numbers))


def _sums(values: list[dict[str, Any]]) -> dict[int, float]:
    return {value["id"]: value["price"] for value in values}


def _reasons(run: Any) -> list[str]:
    return [switch.reason for switch in run.health().switches]


def test_query_waits_for_its_broker_and_continues(tmp_path: Path, spark: Any) -> None:
    """The broker is away for longer than the clients wait; what was sent afterwards arrives once."""
    broker = EmbeddedBroker(tmp_path / "broker")
    given = {"state.dir": tmp_path / "state", "kafka.bootstrap.servers": broker.bootstrap_servers}
    live = Live(broker.bootstrap_servers, replace(Settings.of(given, environment={}), **QUICK), spark)
    bids, out = live.topic("bids", schema=BID), live.topic("out")
    flow = Flow("away")
    flow.read("bids", bids).where("price >= 0").write("out", out)
    broker.start()
    try:
        live.send(bids, *_bids(50), partitions=2)

        def follow(run: Any) -> None:
            run_until(run, lambda: run.progress()[0].rows_out == 50)
            broker.stop()
            run_until(run, lambda: any("it waits" in reason for reason in _reasons(run)))
            assert run.active
            broker.start()
            live.send(bids, *_bids(50, 100), partitions=2)
            run_until(run, lambda: any("it continues after an outage" in reason for reason in _reasons(run)))
            run_until(run, lambda: len(live.records(out)) >= 100)

        live.run(flow, "micro-batch", follow)

        assert Counter(value["id"] for value in live.values(out)) == dict.fromkeys(range(100), 1)
    finally:
        broker.stop()


def test_query_waits_for_space_on_its_disk_and_continues(live: Live, tmp_path: Path) -> None:
    """The state folder is full for some batches; then each record has been processed once by its id."""
    bids, out = live.topic("bids", schema=BID), live.topic("out")
    flow = Flow("full")
    flow.read("bids", bids).aggregate(by="id", price="sum(price)").write("out", out)
    with _small_disk(tmp_path) as (state, full):
        live.settings = replace(live.settings, state_dir=state, **QUICK)
        live.send(bids, *_bids(50))

        def follow(run: Any) -> None:
            run_until(run, lambda: len(live.records(out)) == 50)
            with full():
                live.send(bids, *_bids(50, 100))
                run_until(run, lambda: any("disk or a quota is full" in reason for reason in _reasons(run)))
                assert run.active
                time.sleep(2)
            live.send(bids, *_bids(100))
            run_until(run, lambda: any("it continues after an outage" in reason for reason in _reasons(run)))
            run_until(run, lambda: _sums(live.values(out)) == {number: 2.0 * number for number in range(100)})

        live.run(flow, "micro-batch", follow)


@contextmanager
def _small_disk(folder: Path) -> Iterator[tuple[Path, Callable[[], Any]]]:
    """A folder, and what fills its disk for a block: a small file system, or limits of the processes."""
    disk = folder / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        yield disk, _limit_files
        return
    try:
        yield disk, lambda: _filler(disk / "filler")
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@contextmanager
def _filler(file: Path) -> Iterator[None]:
    with file.open("wb", buffering=0) as filler:
        try:
            while True:
                filler.write(bytes(1 << 16))
        except OSError:
            pass
        yield
    file.unlink()


@contextmanager
def _limit_files() -> Iterator[None]:
    """No file may grow beyond some bytes: of the JVM, and so that a probe of 1 MiB fails of this process."""
    jvm: Any = SparkContext._gateway
    limits = {jvm.proc.pid: 16, os.getpid(): 1 << 19}
    before = {pid: resource.prlimit(pid, resource.RLIMIT_FSIZE) for pid in limits}
    for pid, size in limits.items():
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, before[pid][1]))
    try:
        yield
    finally:
        for pid, limit in before.items():
            resource.prlimit(pid, resource.RLIMIT_FSIZE, limit)
