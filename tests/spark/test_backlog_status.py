"""The backlog status is a source: changes are read in order, once, and again by a repeated batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from flowcore.spark.checkpoint.backlog_status import BacklogStatusWriter, read_backlog_status

pytestmark = pytest.mark.spark


class _StatusStream:
    """A stream of the backlog status; each run is one batch if there are changes."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.checkpoint = folder / "query"
        self.frame = read_backlog_status(spark, self.checkpoint)
        self.read: list[list[bool]] = []

    def run(self, *, fails: bool = False) -> None:
        def take(batch: DataFrame, _: int) -> None:
            self.read.append([row.backlog for row in sorted(batch.collect())])
            if fails:
                raise RuntimeError

        writer: Any = self.frame.writeStream.foreachBatch(take)
        query = writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        except Exception:
            if not fails:
                raise


def test_backlog_changes_are_read_once_and_in_order(spark: SparkSession, tmp_path: Path) -> None:
    """An equal status is not a change; without changes there is no batch; files are deleted once read."""
    stream = _StatusStream(spark, tmp_path)
    status = BacklogStatusWriter(stream.checkpoint)
    for backlog in (True, True, False, True):
        status.write(backlog=backlog)

    stream.run()
    stream.run()
    status.write(backlog=True)
    stream.run()
    status.write(backlog=False)
    stream.run()
    stream.run()

    assert stream.read == [[True, False, True], [False]]
    assert len(list((tmp_path / "query.backlog").glob("*.json"))) <= 1


def test_repeated_batch_reads_the_same_backlog_status(spark: SparkSession, tmp_path: Path) -> None:
    """A repeated batch does not read what a new driver has written since."""
    stream = _StatusStream(spark, tmp_path)
    BacklogStatusWriter(stream.checkpoint).write(backlog=True)
    stream.run(fails=True)
    BacklogStatusWriter(stream.checkpoint).write(backlog=False)

    stream.run()

    assert stream.read == [[True], [True], [False]]


def test_batch_without_its_status_file_reads_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """An older copy of a checkpoint continues; the start writes the status again."""
    stream = _StatusStream(spark, tmp_path)
    BacklogStatusWriter(stream.checkpoint).write(backlog=True)
    stream.run(fails=True)
    for file in (tmp_path / "query.backlog").glob("*.json"):
        file.unlink()
    BacklogStatusWriter(stream.checkpoint).write(backlog=False)

    stream.run()

    assert stream.read == [[True], [], [False]]
