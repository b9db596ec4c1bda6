"""The first failure of a real-time query, as the tasks of its stages report them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pyspark.errors import StreamingQueryException

from flowcore.spark.run.spark_query import find_failure

LOST = "java.io.IOException: Connection to streaming shuffle writer 1 closed before termination"
FAILED = "org.apache.spark.SparkException: a task\n\tat a.A\nCaused by: a.B: the reason\n\tat a.B\n\tat a.C"


def items(*found: Any) -> Any:
    return SimpleNamespace(size=lambda: len(found), apply=found.__getitem__)


def option(content: str | None) -> Any:
    return SimpleNamespace(isDefined=lambda: content is not None, get=lambda: content)


def task(status: str, message: str | None) -> Any:
    return SimpleNamespace(status=lambda: status, errorMessage=lambda: option(message))


def job(status: str, stage: int) -> Any:
    name = SimpleNamespace(name=lambda: status)
    return SimpleNamespace(jobGroup=lambda: option("run"), status=lambda: name, stageIds=lambda: items(stage))


def test_the_reason_is_that_of_the_task_that_failed_first() -> None:
    """Tasks that lost it, also by an error with a cause, and those that were cancelled then follow it."""
    tasks = items(
        task("SUCCESS", None),
        task("KILLED", "Stage cancelled: Job 7 cancelled part of cancelled job group run"),
        task("FAILED", f"{LOST}\n\tat a.D\nCaused by: java.nio.channels.ClosedChannelException\n\tat a.E"),
        task("FAILED", FAILED),
    )
    earlier = items(task("FAILED", "java.io.IOException: an attempt before another one succeeded"))
    store = SimpleNamespace(
        jobsList=lambda _: items(job("SUCCEEDED", 2), job("FAILED", 3)),
        taskList=lambda stage, *_: {2: earlier, 3: tasks}[stage],
    )
    java = SimpleNamespace(sc=lambda: SimpleNamespace(statusStore=lambda: store))
    running: Any = SimpleNamespace(runId="run", exception=lambda: StreamingQueryException(LOST))
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(_jsc=java))

    found = find_failure(running, spark)

    assert str(found) == "a.B: the reason"
