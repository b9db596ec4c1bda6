"""The same windows without flowcore: Spark's native aggregate, and its per-key state in Python."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark import cloudpickle
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

from flowcore.kafka.topics import ensure_topics
from pipelines.auctions.readers import read_rows
from tests.benchmarks._window_cases import DELAY_MS, PARTITIONS, SCHEMA, WINDOWS, Case, Sent, check

__all__ = ["Rivals"]

TUNED_READ = {"kafka.max.poll.records": "5000", "kafka.max.partition.fetch.bytes": str(8 << 20)}
TUNED_WRITE = {
    "kafka.linger.ms": "50",
    "kafka.batch.size": str(512 << 10),
    "kafka.buffer.memory": str(128 << 20),
}


class Rivals:
    """Hand-written Structured Streaming queries, with the Kafka settings of flowcore.

    Args:
        spark: The session that flowcore's queries run in.
        servers: The broker.
        folder: For checkpoints.
        new_topic: Names a topic that nobody has written to.
    """

    def __init__(self, spark: SparkSession, servers: str, folder: Path, new_topic: Callable[[], str]) -> None:
        self.spark, self.servers, self.folder, self.new_topic = spark, servers, folder, new_topic

    def native(self, case: Case, sent: Sent, batch: int) -> float:
        """Seconds of Spark's own aggregate."""
        columns = [F.col(f"w.{name}").alias(f"window_{name}") for name in ("start", "end")]
        frame = self._records(sent, batch).withWatermark("time", f"{DELAY_MS} milliseconds")
        frame = frame.groupBy(_over(case, "time").alias("w"), "auction_id").agg(
            F.sum("price").alias("total"), F.count("*").alias("n")
        )
        return self._run(case, sent, frame.select("auction_id", "total", "n", *columns), "append", "native")

    def per_key(self, case: Case, sent: Sent, batch: int) -> float:
        """Seconds of the same logic, one key at a time."""
        # Workers cannot import a benchmark.
        cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
        lateness_ms = 30_000 if case.late else 0
        # Spark drops the records that its watermark has passed, so its watermark waits for late ones too.
        frame = self._records(sent, batch).withWatermark("time", f"{DELAY_MS + lateness_ms} milliseconds")
        found = frame.groupBy("auction_id").transformWithState(
            PerKey(case.windows, lateness_ms),
            outputStructType="auction_id BIGINT, total BIGINT, n BIGINT, "
            "window_start TIMESTAMP, window_end TIMESTAMP",
            outputMode="Update",
            timeMode="EventTime",
        )
        return self._run(case, sent, found, "update", "state per key")

    def _records(self, sent: Sent, batch: int) -> DataFrame:
        source = {
            "kafka.bootstrap.servers": self.servers,
            "subscribe": sent.topic,
            "startingOffsets": "earliest",
        }
        return (
            self.spark.readStream.format("kafka")
            .options(**source, **TUNED_READ, maxOffsetsPerTrigger=str(batch))
            .load()
            .select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("r"))
            .select("r.*", F.timestamp_millis("r.at").alias("time"))
        )

    def _run(self, case: Case, sent: Sent, frame: DataFrame, mode: str, who: str) -> float:
        out = self.new_topic()
        ensure_topics(self.servers, {out: PARTITIONS})
        value = F.to_json(F.struct(*frame.columns)).alias("value")
        began = time.monotonic()
        query = (
            frame.select(F.col("auction_id").cast("string").alias("key"), value)
            .writeStream.format("kafka")
            .options(**{"kafka.bootstrap.servers": self.servers, "topic": out, **TUNED_WRITE})
            .option("checkpointLocation", str(self.folder / out))
            .outputMode(mode)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        seconds = time.monotonic() - began
        check(case, sent, read_rows(self.servers, out, WINDOWS), who)
        return seconds


class PerKey(StatefulProcessor):
    """Windows with Spark's state of one key at a time; only timers emit.

    A batch has its watermark before its records, and fires its timers after them. So a window that the
    watermark has passed may not have fired, and all its records of this batch come before its timer.
    """

    def __init__(self, windows: str, lateness_ms: int) -> None:
        self.windows, self.lateness_ms = windows, lateness_ms

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.open = handle.getMapState("windows", "start BIGINT, end BIGINT", "total BIGINT, n BIGINT")

    # Only `transformWithStateInPandas` passes data frames.
    def handleInputRows(  # type: ignore[override] # noqa: N802
        self,
        key: Any,  # noqa: ARG002
        rows: Iterator[Row],
        timerValues: TimerValues,  # noqa: ARG002, N803
    ) -> Iterator[Row]:
        kept = {tuple(window): list(value) for window, value in self.open.iterator()}
        touched = set()
        for row in rows:
            for window in self._windows_of(row.at, kept):
                total = kept.setdefault(window, [0, 0])
                total[0] += row.price
                total[1] += 1
                touched.add(window)
        for window in touched & kept.keys():
            self.open.updateValue(window, tuple(kept[window]))
            self.handle.registerTimer(window[1] - 1 - self.lateness_ms)
        yield from ()

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: ARG002, N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803
    ) -> Iterator[Row]:
        due_ms = expiredTimerInfo.getExpiryTimeInMs()
        for window, total in [(tuple(window), value) for window, value in self.open.iterator()]:
            if window[1] - 1 - self.lateness_ms == due_ms:
                yield self._row(key, window, total)
                if self.lateness_ms:
                    self.handle.registerTimer(window[1] - 1)
            # Not all that the watermark has passed: their own timers have yet to emit them.
            if window[1] - 1 == due_ms:
                self.open.removeKey(window)

    def _windows_of(self, at: int, kept: dict[Any, Any]) -> list[tuple[int, int]]:
        if self.windows == "tumbling":
            return [(at - at % 10_000, at - at % 10_000 + 10_000)]
        if self.windows == "sliding":
            last = at - at % 1000
            return [(start, start + 10_000) for start in range(last - 9000, last + 1, 1000)]
        merged, total = (at, at + 5000), [0, 0]
        for window in [each for each in kept if each[0] <= merged[1] and merged[0] <= each[1]]:
            value = kept.pop(window)
            self.open.removeKey(window)
            total = [total[0] + value[0], total[1] + value[1]]
            merged = (min(merged[0], window[0]), max(merged[1], window[1]))
        kept[merged] = total
        return [merged]

    def _row(self, key: Any, window: tuple[int, int], total: Any) -> Row:
        return Row(
            auction_id=key[0], total=total[0], n=total[1],
            window_start=pd.Timestamp(window[0], unit="ms"), window_end=pd.Timestamp(window[1], unit="ms"),
        )  # fmt: skip


def _over(case: Case, time: str) -> Column:
    return {
        "tumbling": F.window(time, "10 seconds"),
        "sliding": F.window(time, "10 seconds", "1 second"),
        "session": F.session_window(time, "5 seconds"),
    }[case.windows]
