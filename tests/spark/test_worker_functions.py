"""Functions with state of a live query are opened once in a worker, and closed when it ends."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from flowcore import Flow, KafkaTopic, RichFunction
from flowcore.errors import RunError
from flowcore.planner import plan_flow
from flowcore.process import KeyedProcessFunction
from flowcore.process.keyed import KeyedProcesses
from flowcore.settings import Settings
from flowcore.spark.busy_times import BusyTimes
from flowcore.spark.context import Context
from flowcore.spark.frame.branches import Branch, BranchedFrame
from flowcore.spark.operators.key_groups import WORKER_POOL
from flowcore.spark.operators.python_chain import Keeping, apply_chain
from flowcore.spark.run.early_workers import start_workers
from flowcore.spark.run.session import live_session
from tests.python_workers import running_workers
from tests.spark.stepped_query import SteppedQuery

pytestmark = pytest.mark.spark

ROWS = pa.schema([pa.field("user", pa.string()), pa.field("t", pa.int64()), pa.field("v", pa.int64())])
RESULTS = pa.schema([pa.field("sum", pa.int64())])


class Calls:
    """A file to which workers write when they open and close a function."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def note(self, what: str) -> None:
        with self.path.open("a") as file:
            file.write(f"{os.getpid()} {what}\n")

    @property
    def by_worker(self) -> Mapping[int, list[str]]:
        """The calls in each worker, in order."""
        found = defaultdict(list)
        for line in self.path.read_text().splitlines() if self.path.exists() else ():
            pid, _, what = line.partition(" ")
            found[int(pid)].append(what)
        return found

    def wait_for(self, what: str) -> None:
        """Wait until it is the last call in each worker."""
        end = time.monotonic() + 300
        while any(calls[-1] != what for calls in self.by_worker.values()):
            assert time.monotonic() < end, self.by_worker
            time.sleep(0.05)


class Sums(KeyedProcessFunction):
    """Emits the sum of a key; negative values fail."""

    def __init__(self, calls: Calls, version: int = 1) -> None:
        self.calls = calls
        self.version = version

    def open(self, context: Any) -> None:
        self.sum = context.value_state("sum", "BIGINT")
        self.calls.note(f"open {self.version}")

    def process(self, record: Mapping[str, Any], _context: Any) -> Iterator[Mapping[str, Any]]:
        if record["v"] < 0:
            raise ValueError
        self.sum.set(self.sum.get(0) + record["v"])
        yield {"sum": self.sum.get()}

    def close(self) -> None:
        self.calls.note(f"close {self.version}")


class Same(RichFunction):
    """Returns its record."""

    def __init__(self, calls: Calls, version: int = 1) -> None:
        self.calls = calls
        self.version = version

    def open(self) -> None:
        self.calls.note(f"open {self.version}")

    def close(self) -> None:
        self.calls.note(f"close {self.version}")

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        return record


@pytest.fixture
def calls(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Calls:
    """The notes of functions in a pool of workers of the test's own: any idle worker may run a task."""
    monkeypatch.setitem(spark.sparkContext.environment, WORKER_POOL, tmp_path.name)
    return Calls(tmp_path / "calls")


def _process(function: KeyedProcessFunction) -> KeyedProcesses:
    return KeyedProcesses(
        name="sums", function=function, keys=("user",), values=("v",), timestamp="t", rows=ROWS, places=(),
        topics=(), results=RESULTS, side_outputs={},
    )  # fmt: skip


def _query(spark: SparkSession, folder: Path, function: KeyedProcessFunction) -> SteppedQuery:
    return SteppedQuery(
        live_session(spark, Settings()),
        _process(function),
        rows=ROWS,
        keys=("user",),
        folder=folder / "query",
    )


def _records(value: int = 1) -> list[dict[str, Any]]:
    return [{"user": user, "t": 1, "v": value} for user in "abcdefgh"]


def _sums(query: SteppedQuery) -> set[int]:
    outputs = query.step(_records())
    return {row for _, rows in outputs.batches for row in rows.column("sum").to_pylist()}


@pytest.mark.thorough
def test_process_function_is_opened_once_in_a_worker(
    spark: SparkSession, tmp_path: Path, calls: Calls
) -> None:
    """Over batches and a restart of the query each worker opens it once, and none closes it."""
    with _query(spark, tmp_path, Sums(calls)) as query:
        found = [_sums(query) for _ in range(3)]
        query.restart()
        found += [_sums(query) for _ in range(2)]

    assert found == [{1}, {2}, {3}, {4}, {5}]
    assert {*map(tuple, calls.by_worker.values())} == {("open 1",)}


def test_workers_that_start_early_run_the_first_batch(
    spark: SparkSession, tmp_path: Path, calls: Calls
) -> None:
    """An exchange asks for a pool that is there already, and for no other."""
    flow = Flow("f")
    users = flow.read("in", KafkaTopic("in", "user STRING, v BIGINT", partitions=1))
    users.process(Sums(calls), by="user", schema="sum BIGINT").write("out", KafkaTopic("out"))
    stage = plan_flow(flow).live
    assert stage is not None
    settings = Settings.of({"state.dir": tmp_path}, environment={})

    start_workers(stage.queries, Context(spark, settings, flow.name))
    for thread in threading.enumerate():
        if thread.name == "flowcore-workers":
            thread.join()
    early, _ = running_workers(spark)
    with _query(spark, tmp_path, Sums(calls)) as query:
        found = _sums(query)

    assert found == {1}
    assert early
    assert running_workers(spark)[0] == early


def test_edited_function_replaces_the_open_one(spark: SparkSession, tmp_path: Path, calls: Calls) -> None:
    """A worker closes the old function before it opens the edited one, whose state continues."""
    with _query(spark, tmp_path, Sums(calls)) as query:
        found = [_sums(query)]
        query.operator = _process(Sums(calls, version=2))
        query.restart()
        found += [_sums(query), _sums(query)]

    assert found == [{1}, {2}, {3}]
    several = {*map(tuple, calls.by_worker.values())}
    assert ("open 1", "close 1", "open 2") in several
    assert several <= {("open 1", "close 1", "open 2"), ("open 1",), ("open 2",)}


def test_function_is_closed_when_its_worker_ends(spark: SparkSession, tmp_path: Path, calls: Calls) -> None:
    """Spark's daemon ends workers with a signal."""
    with _query(spark, tmp_path, Sums(calls)) as query:
        _sums(query)
        _sums(query)

    for worker in calls.by_worker:
        os.kill(worker, signal.SIGHUP)

    calls.wait_for("close 1")
    assert {*map(tuple, calls.by_worker.values())} == {("open 1", "close 1")}


@pytest.mark.thorough
def test_function_is_closed_when_its_task_fails(spark: SparkSession, tmp_path: Path, calls: Calls) -> None:
    """The worker ends with the task, and another one opens the function again."""
    with _query(spark, tmp_path, Sums(calls)) as query:
        found = [_sums(query)]
        with pytest.raises(RunError, match="its function raised ValueError"):
            query.step(_records(-1))
        found.append(_sums(query))

    assert found == [{1}, {2}]
    assert ("open 1", "close 1") in {*map(tuple, calls.by_worker.values())}
    assert all(seen in (["open 1"], ["open 1", "close 1"]) for seen in calls.by_worker.values())


def _run_chain(spark: SparkSession, function: Same, place: str | None) -> None:
    flow = Flow("f")
    read = flow.read("in", KafkaTopic("in", schema="v BIGINT"))
    read.map(function, schema="v BIGINT").write("out", KafkaTopic("out"))
    (query,) = plan_flow(flow).live_queries
    (chain,) = query.chains
    branched = BranchedFrame(
        spark.range(0, 4, 1, 2).selectExpr("id AS v"),
        (f"_c{number}" for number in count()),
        has_coordinates=False,
    )
    used = {node: frozenset({"v"}) for node in query.operators}
    keeping = Keeping(place, BusyTimes().for_tasks(spark.sparkContext, "query")) if place else None
    apply_chain(chain, branched, Branch(1, {"v": "v"}), used=used, numbers=count(2), keeping=keeping)
    assert branched.frame.count() == 4


def test_chain_function_is_opened_once_in_a_worker(spark: SparkSession, calls: Calls) -> None:
    """Each worker opens a function of a live chain once, and replaces one that was edited."""
    name = str(calls.path)
    for _ in range(3):
        _run_chain(spark, Same(calls), name)
    once = {*map(tuple, calls.by_worker.values())}
    _run_chain(spark, Same(calls, version=2), name)

    assert once == {("open 1",)}
    several = {*map(tuple, calls.by_worker.values())}
    assert several & {("open 1", "close 1", "open 2"), ("open 2",)}
    assert several <= {("open 1", "close 1", "open 2"), ("open 1",), ("open 2",)}


@pytest.mark.thorough
def test_chain_function_of_a_bounded_stage_is_closed_with_its_task(spark: SparkSession, calls: Calls) -> None:
    """What it holds is released before the stage is committed."""
    _run_chain(spark, Same(calls), None)

    assert {tuple(seen[:2]) for seen in calls.by_worker.values()} == {("open 1", "close 1")}
    assert sum(map(len, calls.by_worker.values())) == 4
