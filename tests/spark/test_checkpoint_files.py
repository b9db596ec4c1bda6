"""Files of a checkpoint are renamed by the JVM itself, not by a process for each look at a link."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from flowcore.settings import Settings
from flowcore.spark.run.session import live_session

pytestmark = pytest.mark.spark


def test_batch_reads_no_link_with_a_process(spark: SparkSession, tmp_path: Path) -> None:
    """A batch with state commits its checkpoint, and Java's flight recorder sees no `readlink`."""
    live = live_session(spark, Settings.of({"execution.shuffle-partitions": 1}, environment={}))
    rows = live.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    counts = rows.groupBy("value").count().writeStream.format("noop").outputMode("update")
    jfr: Any = spark._jvm.jdk.jfr  # type: ignore[union-attr]
    recording = jfr.Recording()
    recording.enable("jdk.ProcessStart")
    recording.start()
    try:
        checkpoint = str(tmp_path / "checkpoint")
        query = counts.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
        file = spark._jvm.java.io.File(str(tmp_path / "starts.jfr")).toPath()  # type: ignore[union-attr]
        recording.dump(file)
    finally:
        recording.close()

    commands = [event.getString("command") for event in jfr.consumer.RecordingFile.readAllEvents(file)]
    assert list((tmp_path / "checkpoint/commits").iterdir())
    assert any(command.startswith("chmod") for command in commands)  # they are recorded
    assert not [command for command in commands if command.startswith("readlink")]
