"""Records under way: how many has the running batch of a real-time query read so far?

Such a batch lasts minutes, and Spark tells what it read when it ends. Its tasks tell earlier, with each
heartbeat (``spark.executor.heartbeatInterval``), and Spark keeps that for its own UI, shown or not.
"""

from __future__ import annotations

import logging
import re
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["UnderWay"]

_LAST = 50
_SCAN, _ROWS = "RealTimeStreamScan", "number of output rows"
_log = logging.getLogger(__name__)


class UnderWay:
    """Asks for the records under way of one real-time query."""

    def __init__(self, spark: SparkSession, running: StreamingQuery) -> None:
        # Spark has no public way to ask but its web page.
        self._store: Any = spark._jsparkSession.sharedState().statusStore()  # noqa: SLF001
        self._batch = re.compile(rf"runId = {running.runId}\s+batch = (\d+)")

    def records(self, committed: int) -> int:
        """Records that batches after a committed one have read; 0 where it cannot be told.

        Args:
            committed: Number of the batch, -1 if there is none.
        """
        try:
            count = self._store.executionsCount()
            recent = self._store.executionsList(max(count - _LAST, 0), _LAST)
            executions = [recent.apply(number) for number in range(recent.size())]
            # A batch has executions inside of one another; one of them is told the numbers.
            return max(
                (self._rows(each) for each in executions if self._is_after(each, committed)), default=0
            )
        except (Py4JError, ConnectionError):
            _log.debug("the records under way cannot be told", exc_info=True)
            return 0

    def _is_after(self, execution: Any, committed: int) -> bool:
        batch = self._batch.search(execution.description())
        return batch is not None and int(batch[1]) > committed

    def _rows(self, execution: Any) -> int:
        number = execution.executionId()
        told = self._store.executionMetrics(number)
        values = [told.get(counter) for counter in self._counters(number)]
        return sum(int(value.get().replace(",", "")) for value in values if value.isDefined())

    def _counters(self, execution: int) -> list[int]:
        nodes = self._store.planGraph(execution).allNodes()
        scans = [node for node in map(nodes.apply, range(nodes.size())) if node.name() == _SCAN]
        metrics = [node.metrics().apply(number) for node in scans for number in range(node.metrics().size())]
        return [metric.accumulatorId() for metric in metrics if metric.name() == _ROWS]
