"""Histories as messages: their order, offsets and partitions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from flowcore import Flow, KafkaTopic, Parquet, monotonous
from flowcore.api.operators import WithHistory
from flowcore.errors import StateError
from flowcore.settings import Settings
from flowcore.spark.checkpoint.offset_log import forget_unplanned_files
from flowcore.spark.context import Context
from flowcore.spark.topics.histories import prepare_history, read_history

pytestmark = pytest.mark.spark

BID = "id BIGINT, at BIGINT"


def _node(start: int) -> WithHistory:
    flow = Flow("f")
    topic = KafkaTopic("bids", BID, event_time="at", watermark=monotonous(), start={0: start})
    node = flow.read("past", Parquet("past", schema=BID)).then(flow.read("bids", topic)).operator
    assert isinstance(node, WithHistory)
    return node


def test_messages_of_a_history_precede_the_topic_in_order(spark: SparkSession, tmp_path: Path) -> None:
    """A file is a batch; the last rows of each give every partition its newest event time."""
    settings = Settings.of({"execution.max-records-per-batch": 4}, environment={})
    context, checkpoint, node = Context(spark, settings, "f"), tmp_path / "bids", _node(5)
    rows = spark.createDataFrame([(number, number * 10) for number in (3, 9, 1, 7, 0, 5, 8, 2, 6, 4)], BID)
    prepare_history(node, rows, checkpoint, context, partitions=2)
    columns = ["topic", "partition", "offset", "timestamp", "value"]
    stream = read_history(node, checkpoint, context, columns)
    batches: list[list[tuple[str, int, int, int, str]]] = []

    def take(frame: object, _: int) -> None:
        texts = ["topic", "partition", "offset", "unix_millis(timestamp)", "CAST(value AS STRING)"]
        batches.append([tuple(row) for row in frame.selectExpr(*texts).collect()])  # type: ignore[attr-defined]

    query = stream.writeStream.foreachBatch(take).trigger(availableNow=True)
    query.option("checkpointLocation", str(checkpoint)).start().awaitTermination()

    found = [row for batch in batches for row in batch]
    assert [(row[0], row[2], row[3]) for row in found] == [("bids", n - 10, n * 10) for n in range(10)]
    assert found[4][4] == '{"id":4,"at":40}'
    assert [[row[1] for row in batch] for batch in batches] == [[0] * (len(one) - 1) + [1] for one in batches]
    assert len(batches) == 3

    prepare_history(node, rows.limit(0), checkpoint, context, partitions=2)  # nothing: it was read
    assert len([*tmp_path.glob("bids.history/bids/*.parquet")]) == len(batches)
    with pytest.raises(StateError, match=r"moved.history.bids is missing"):
        read_history(node, checkpoint.rename(tmp_path / "moved"), context, columns)


@pytest.mark.parametrize("planned", [0, 1])
def test_a_batch_has_one_file_also_after_a_kill_before_it_was_planned(
    spark: SparkSession, tmp_path: Path, planned: int
) -> None:
    """Spark had logged which file the batch reads, and not the batch."""
    settings = Settings.of({"execution.max-records-per-batch": 4}, environment={})
    context, checkpoint, node = Context(spark, settings, "f"), tmp_path / "bids", _node(5)
    rows = spark.createDataFrame([(number, number * 10) for number in range(12)], BID)
    prepare_history(node, rows, checkpoint, context, partitions=2)
    offsets = _read(node, checkpoint, context)
    for log in ("offsets", "commits"):
        for entry in (checkpoint / log).glob("*[0-9]*"):
            if int(re.findall(r"\d+", entry.name)[0]) >= planned:
                entry.unlink()

    forget_unplanned_files(checkpoint)

    assert _read(node, checkpoint, context) == offsets[planned:]


def _read(node: WithHistory, checkpoint: Path, context: Context) -> list[list[int]]:
    """The offsets of the records of each batch."""
    batches: list[list[int]] = []
    stream = read_history(node, checkpoint, context, ["offset", "value"])

    def take(frame: object, _: int) -> None:
        batches.append([row.offset for row in frame.collect()])  # type: ignore[attr-defined]

    query = stream.writeStream.foreachBatch(take).trigger(availableNow=True)
    query.option("checkpointLocation", str(checkpoint)).start().awaitTermination()
    return batches


def test_a_history_has_event_times_that_no_timestamp_holds(spark: SparkSession, tmp_path: Path) -> None:
    """Each start of the query failed."""
    context, checkpoint, node = Context(spark, Settings(), "f"), tmp_path / "bids", _node(5)

    rows = spark.createDataFrame([(1, 2**63 - 1), (2, 20)], BID)
    prepare_history(node, rows, checkpoint, context, partitions=1)

    found = spark.read.parquet(str(tmp_path / "bids.history" / "bids")).selectExpr("CAST(value AS STRING)")
    assert {row.value for row in found.collect()} == {'{"id":1,"at":9223372036854775807}', '{"id":2,"at":20}'}
