"""End a streaming query after its batch, and read the progress of a running batch, as PySpark cannot.

`StreamingQuery.stop` discards the running batch, so everything that the batch wrote is written again. Spark
ends a slice differently: it sets the query's state, which the query's thread checks after each batch.
`end_after_batch` does the same for any query.

A real-time batch lasts minutes, and Spark reports what the batch read when it ends. Its tasks report more
often, with each heartbeat (``spark.executor.heartbeatInterval``), and Spark keeps these numbers for its own
UI, even if the UI is off.

All stages of a real-time batch run at the same time. If a task fails, the tasks that read its records fail,
too, and Spark gives the error that it hears of first. `find_failure` looks for the one that came before.
"""

import logging
import re
import time
from collections.abc import Iterator
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["RunningBatch", "end_after_batch", "find_failure", "has_ended"]

_FOLLOWS = re.compile("Connection to streaming shuffle writer .* closed before termination")
"""What a task says that has lost the one whose records it reads."""
_FAILURE_WAIT_S = 5.0
_POLL_S = 0.1
_MOST_TASKS = 10_000
_LAST = 50
_SCAN, _ROWS = "RealTimeStreamScan", "number of output rows"
_log = logging.getLogger(__name__)


def end_after_batch(running: StreamingQuery, spark: SparkSession) -> None:
    """End a query when its running batch is committed; in real-time mode that may take minutes.

    A query with a trigger interval ends at the latest when its next batch would begin.
    """
    states: Any = spark._jvm.org.apache.spark.sql.execution.streaming.runtime  # type: ignore[union-attr]  # noqa: SLF001
    ended = getattr(getattr(states, "TERMINATED$"), "MODULE$")
    _execution(running).state().set(ended)


def has_ended(running: StreamingQuery) -> bool:
    """Whether a query's thread has ended; Spark calls a query inactive earlier, when it is about to end."""
    return not _execution(running).queryExecutionThread().isAlive()


def find_failure(running: StreamingQuery, spark: SparkSession) -> Exception | None:
    """The first error of a query that has failed; waits a few seconds if Spark may hear of it later."""
    error = running.exception()
    if error is None or not _FOLLOWS.search(str(error)):
        return error
    deadline = time.monotonic() + _FAILURE_WAIT_S
    while time.monotonic() < deadline:
        for text in _failures_of_tasks(running, spark):
            if not _FOLLOWS.search(text):
                return StreamingQueryException(re.split(r"\n\tat ", text.rpartition("\nCaused by: ")[2])[0])
        time.sleep(_POLL_S)
    return error


def _failures_of_tasks(running: StreamingQuery, spark: SparkSession) -> Iterator[str]:
    """What the failed tasks of a query's failed jobs say; those that were cancelled are left out."""
    store: Any = spark.sparkContext._jsc.sc().statusStore()  # noqa: SLF001
    for job in _items(store.jobsList(None)):
        group = job.jobGroup()
        if group.isDefined() and group.get() == running.runId and job.status().name() == "FAILED":
            for stage in _items(job.stageIds()):
                for task in _items(store.taskList(stage, 0, _MOST_TASKS)):
                    message = task.errorMessage()
                    if message.isDefined() and task.status() == "FAILED":
                        yield message.get()


def _items(sequence: Any) -> Iterator[Any]:
    """The items of a sequence of Scala."""
    return map(sequence.apply, range(sequence.size()))


class RunningBatch:
    """The records that the running batch of a real-time query has read so far."""

    def __init__(self, spark: SparkSession, running: StreamingQuery) -> None:
        # Spark's only public access to these numbers is its web page.
        self._store: Any = spark._jsparkSession.sharedState().statusStore()  # noqa: SLF001
        self._batch = re.compile(rf"runId = {running.runId}\s+batch = (\d+)")

    def records(self, committed: int) -> int:
        """The records that batches after a committed one (-1 if none) have read; 0 if that is unknown."""
        try:
            count = self._store.executionsCount()
            recent = _items(self._store.executionsList(max(count - _LAST, 0), _LAST))
            # A batch has nested executions; one of them has the numbers.
            return max((self._rows(one) for one in recent if self._is_after(one, committed)), default=0)
        except (Py4JError, ConnectionError):
            _log.debug("the records of the running batch are unknown", exc_info=True)
            return 0

    def _is_after(self, execution: Any, committed: int) -> bool:
        batch = self._batch.search(execution.description())
        return batch is not None and int(batch[1]) > committed

    def _rows(self, execution: Any) -> int:
        number = execution.executionId()
        scans = [node for node in _items(self._store.planGraph(number).allNodes()) if node.name() == _SCAN]
        metrics = [metric for scan in scans for metric in _items(scan.metrics())]
        reported = self._store.executionMetrics(number)
        values = [reported.get(metric.accumulatorId()) for metric in metrics if metric.name() == _ROWS]
        return sum(int(value.get().replace(",", "")) for value in values if value.isDefined())


def _execution(running: StreamingQuery) -> Any:
    return running._jsq.streamingQuery()  # noqa: SLF001
