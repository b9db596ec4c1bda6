"""Told backlog: how do key groups hear whether the records of a batch are history or news?

The driver knows it, and a batch's tasks are given nothing but what its sources hold. So what the driver says
is a source beside the topics: a folder beside the checkpoint, in which each change is a file. Spark logs with
a batch which files it reads. So a batch that is run again hears the same, what was told is not lost with
the driver, and a change that nothing else comes with makes a batch of its own.

Files that a committed batch has read are deleted by Spark. One that is gone although its batch was not
committed (an older copy of the checkpoint was brought back) is left out: each start tells anew.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

__all__ = ["BacklogStatusWriter", "read_backlog_status"]

_SCHEMA = "at BIGINT, backlog BOOLEAN"


class BacklogStatusWriter:
    """Tells the key groups of one query.

    Args:
        checkpoint: The folder of its checkpoint.
    """

    def __init__(self, checkpoint: Path) -> None:
        self._folder = _folder(checkpoint)
        self._written: bool | None = None
        self._at = 0

    def write(self, *, backlog: bool) -> None:
        """From the next batch on, records are history or news; nothing happens if that was told already."""
        if backlog == self._written:
            return
        self._written = backlog
        self._at = max(self._at + 1, time.time_ns())
        part = self._folder / f".{self._at}"  # a source does not see names like this
        part.write_text(json.dumps({"at": self._at, "backlog": backlog}))
        part.replace(self._folder / f"{self._at}.json")


def read_backlog_status(spark: SparkSession, checkpoint: Path) -> DataFrame:
    """What a query is told, as a stream: ``at``, which gives the order, and ``backlog``."""
    stream = spark.readStream.schema(_SCHEMA).option("cleanSource", "delete")
    return stream.json(str(_folder(checkpoint)))


def _folder(checkpoint: Path) -> Path:
    folder = checkpoint.with_name(f"{checkpoint.name}.backlog")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
