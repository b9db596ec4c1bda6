"""Replace all state of a query with key groups, in one batch that reads the new state.

There is one `StateWriter` for each exchange of the query, in the same order, so that Spark finds the same
stores. Rows of other exchanges pass it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from flowcore.spark.operators.processor import open_states

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["NEW_STATE", "StateWriter", "write_state"]

NEW_STATE = "depth INT, key_group INT, operator STRING, number BIGINT, content BINARY"
"""A segment of an operator. The number is -1 for the manifests of a key group; null ones remove it."""


def write_state(rows: DataFrame, depth: int) -> DataFrame:
    """Replace the state of all exchanges by rows of `NEW_STATE`; each key group has a row of number -1."""
    for number in range(1, depth + 1):
        rows = rows.groupBy("key_group").transformWithStateInPandas(
            StateWriter(number), outputStructType=NEW_STATE, outputMode="Update", timeMode="ProcessingTime"
        )
    return rows


class StateWriter(StatefulProcessor):
    """Replaces the state of the key groups of one exchange."""

    def __init__(self, depth: int) -> None:
        self._depth = depth

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the states of key groups."""
        self._manifests, self._segments = open_states(handle)
        self._handle = handle

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: ARG002, N802, N803 - Spark's names
        """Replace the state of a key group."""
        begun = False
        for frame in rows:
            yield frame[frame["depth"] != self._depth]
            mine = frame[frame["depth"] == self._depth]
            for operator, number, content in zip(
                mine["operator"], mine["number"], mine["content"], strict=True
            ):
                if not begun:
                    self._clear()
                    begun = True
                if number >= 0:
                    self._segments.updateValue((operator, int(number)), (content,))
                elif content is not None:
                    self._write_manifests(content, timerValues.getCurrentProcessingTimeInMs())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:  # noqa: ARG002, N802, N803
        """Timers are replaced before any of them is due."""
        yield from ()

    def _clear(self) -> None:
        self._manifests.clear()
        self._segments.clear()
        for timer_ms in list(self._handle.listTimers()):
            self._handle.deleteTimer(timer_ms)

    def _write_manifests(self, content: bytes, processing_time_ms: int) -> None:
        self._manifests.update((content,))
        times = [each["wake_ms"] for each in json.loads(content).values() if each["wake_ms"] is not None]
        if times:  # a timer that is due would fire in this batch, and be gone
            self._handle.registerTimer(max(min(times), processing_time_ms + 1))
