"""Data about a partition that tasks keep in a checkpoint, by the offset from which it is valid.

A task reads a part of a partition, and may need elements of an earlier batch. So each task writes the data
that is valid after its part. The data at an offset depends on the topic alone: a batch that runs again finds
the same data, and a file of a batch that failed is right.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["OffsetFiles"]

_KEPT = 100
"""Files of a partition: as many as Spark keeps batches, which may run again."""


@dataclass(frozen=True, slots=True)
class OffsetFiles:
    """The files of one partition, in a folder that has no others."""

    folder: Path

    def read(self, offset: int) -> Any:
        """The data that is valid at an offset, as JSON-able data; None if nothing was written."""
        earlier = [each for each in self._offsets() if each <= offset]
        return json.loads(self._file(max(earlier)).read_text()) if earlier else None

    def write(self, offset: int, fact: Any) -> None:
        """Write the data that is valid from an offset on, and remove files that no batch needs."""
        self.folder.mkdir(parents=True, exist_ok=True)
        part = self.folder / f".{offset}.{os.getpid()}"
        with part.open("w") as file:  # a file that a loss of power tears would stop each batch
            file.write(json.dumps(fact))
            file.flush()
            os.fsync(file.fileno())
        part.replace(self._file(offset))
        for each in sorted(self._offsets())[:-_KEPT]:
            self._file(each).unlink(missing_ok=True)

    def _file(self, offset: int) -> Path:
        return self.folder / f"{offset}.json"

    def _offsets(self) -> list[int]:
        return [int(each.stem) for each in self.folder.glob("*.json")]
