"""The end of a batch: how does a running query stop there, and not in the middle of one?

`StreamingQuery.stop` throws the running batch away, and all that it has written is written again. Spark lets
a slice end by telling the query that it has ended: its thread looks after each batch. The same is done here
for any query; there is no public way to.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["end_after_batch", "has_ended"]


def end_after_batch(running: StreamingQuery, spark: SparkSession) -> None:
    """Let a query end when its running batch is committed; in real-time mode that may take minutes.

    With a trigger interval it ends at the latest when its next batch would begin.
    """
    states: Any = spark._jvm.org.apache.spark.sql.execution.streaming.runtime  # type: ignore[union-attr]  # noqa: SLF001
    ended = getattr(getattr(states, "TERMINATED$"), "MODULE$")
    _execution(running).state().set(ended)


def has_ended(running: StreamingQuery) -> bool:
    """Whether a query has ended with all that it leaves; one that is to end counts as inactive before."""
    return not _execution(running).queryExecutionThread().isAlive()


def _execution(running: StreamingQuery) -> Any:
    return running._jsq.streamingQuery()  # noqa: SLF001
