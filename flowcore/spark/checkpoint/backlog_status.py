"""Backlog status of a live query, as a streaming source that its key groups read.

The driver decides whether a query processes backlog, but the tasks of a batch read only sources. So the
status is a source: a folder beside the checkpoint, with a file for each change. Spark logs which files a
batch reads. Therefore a repeated batch reads the same status, the status survives the driver, and a change
without other input makes a batch of its own.

Spark deletes the files that a committed batch has read. If an older copy of a checkpoint is restored, a file
may be missing although its batch was not committed. It is ignored: each start writes the status again.
"""

import json
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

__all__ = ["NO_LIMIT", "BacklogStatusWriter", "read_backlog_status"]

NO_LIMIT = "365000d"
"""Spark leaves out files of a greater age: all new ones, after a jump of the clock there and back."""
_SCHEMA = "at BIGINT, backlog BOOLEAN"


class BacklogStatusWriter:
    """Writes the backlog status of one query."""

    def __init__(self, checkpoint: Path) -> None:
        self._folder = _folder(checkpoint)
        self._written: bool | None = None
        # The clock may have been set back since an earlier run wrote a file that no batch has read yet.
        written = (file.stem for file in self._folder.glob("*.json"))
        self._at = max((int(number) for number in written if number.isdecimal()), default=0)

    def write(self, *, backlog: bool) -> None:
        """Set the status from the next batch on; does nothing if it has not changed."""
        if backlog == self._written:
            return
        self._at = max(self._at + 1, time.time_ns())
        part = self._folder / f".{self._at}"  # Spark ignores hidden files
        try:
            part.write_text(json.dumps({"at": self._at, "backlog": backlog}))
            part.replace(self._folder / f"{self._at}.json")
        finally:
            part.unlink(missing_ok=True)
        self._written = backlog  # not before: on a full disk the next call writes it


def read_backlog_status(spark: SparkSession, checkpoint: Path) -> DataFrame:
    """The backlog status of a query as a stream: ``at``, which gives the order, and ``backlog``."""
    stream = spark.readStream.schema(_SCHEMA).option("cleanSource", "delete")
    stream = stream.option("maxFileAge", NO_LIMIT)
    # A file without these is torn; the start that reads it has written another one.
    return stream.json(str(_folder(checkpoint))).where("at IS NOT NULL AND backlog IS NOT NULL")


def _folder(checkpoint: Path) -> Path:
    folder = checkpoint.with_name(f"{checkpoint.name}.backlog")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
