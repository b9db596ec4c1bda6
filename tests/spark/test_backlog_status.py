"""What a query is told of backlog is a source: in order, once, and again with a batch run again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from flowcore.spark.checkpoint.backlog_status import BacklogStatusWriter, read_backlog_status

pytestmark = pytest.mark.spark


class _Heard:
    """A stream of what is told; each run is one batch, if there is anything."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.checkpoint = folder / "query"
        self.frame = read_backlog_status(spark, self.checkpoint)
        self.heard: list[list[bool]] = []

    def run(self, *, fails: bool = False) -> None:
        def take(batch: DataFrame, _: int) -> None:
            self.heard.append([row.backlog for row in sorted(batch.collect())])
            if fails:
                raise RuntimeError

        writer: Any = self.frame.writeStream.foreachBatch(take)
        query = writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        except Exception:
            if not fails:
                raise


def test_each_change_is_heard_once_and_in_order(spark: SparkSession, tmp_path: Path) -> None:
    """What is told again is no change; nothing told, no batch; what was read is deleted."""
    stream = _Heard(spark, tmp_path)
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

    assert stream.heard == [[True, False, True], [False]]
    assert len(list((tmp_path / "query.backlog").glob("*.json"))) <= 1


def test_batch_that_is_run_again_hears_the_same(spark: SparkSession, tmp_path: Path) -> None:
    """And not what was told since, by a driver that knows nothing of the one before."""
    stream = _Heard(spark, tmp_path)
    BacklogStatusWriter(stream.checkpoint).write(backlog=True)
    stream.run(fails=True)
    BacklogStatusWriter(stream.checkpoint).write(backlog=False)

    stream.run()

    assert stream.heard == [[True], [True], [False]]


def test_batch_whose_file_is_gone_hears_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """An older copy of a checkpoint goes on; the start tells anew."""
    stream = _Heard(spark, tmp_path)
    BacklogStatusWriter(stream.checkpoint).write(backlog=True)
    stream.run(fails=True)
    for file in (tmp_path / "query.backlog").glob("*.json"):
        file.unlink()
    BacklogStatusWriter(stream.checkpoint).write(backlog=False)

    stream.run()

    assert stream.heard == [[True], [], [False]]
