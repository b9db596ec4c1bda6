"""The sink of a query that writes only the bad records of a source.

Another query reads the same source and counts them (`flowcore.planner.rules.queries`). Spark gives a batch to
the sink before it has read any record of it, so that a batch without bad records is never read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Event

from pyspark.sql import DataFrame

from flowcore.errors import RunError
from flowcore.spark.checkpoint.offset_log import batch_range

__all__ = ["DeadLetterSink"]

_POLL_S = 0.05

Judge = Callable[[Mapping[int, int], Mapping[int, int]], bool | None]


class DeadLetterSink:
    """Writes the batches of a query, for `CalledSink`.

    Args:
        topic: The topic of the source.
        judge: Whether a range of offsets has no bad record; None if it will soon be known.
        options: The options of Spark's Kafka sink.
    """

    def __init__(self, topic: str, checkpoint: Path, judge: Judge, options: Mapping[str, str]) -> None:
        self._topic = topic
        self._checkpoint = checkpoint
        self._judge = judge
        self._options = options
        self._stopped = Event()

    def stop(self) -> None:
        """End a waiting batch without its commit. Spark cannot interrupt a batch that waits in Python."""
        self._stopped.set()

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """Write one batch.

        Raises:
            RunError: The sink was stopped.
        """
        if not self._is_clean(batch):
            frame.write.format("kafka").options(**self._options).save()

    def _is_clean(self, batch: int) -> bool:
        begin, end = batch_range(self._checkpoint, batch, self._topic)
        while (clean := self._judge(begin, end)) is None:
            if self._stopped.wait(_POLL_S):
                msg = f"the dead letters of {self._topic} were stopped: the next start repeats batch {batch}"
                raise RunError(msg)
        return clean
