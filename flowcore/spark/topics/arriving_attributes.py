"""Record attributes that arrive in a tagged topic, as a column: whether each record is backlog.

A task reads a part of a partition, whose attributes may have arrived in an earlier batch. So a task in which
attributes have arrived writes the status of the partition's channels to the checkpoint.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from flowcore.api.operators import PythonTransform
from flowcore.backlog import MergedBacklog
from flowcore.chains import asks_for_attributes
from flowcore.channels import channel_name
from flowcore.elements import MAX_TIMESTAMP_MS, EndOfInput, RecordAttributes, Watermark
from flowcore.keyed.offset_files import OffsetFiles
from flowcore.planner.model import Chain
from flowcore.serializers.formats import RawFormat
from flowcore.serializers.tagged import TaggedSerializer
from flowcore.spark.frame.rows import BACKLOG, BRANCH, CHANNEL, ELEMENT, RowKind

__all__ = ["BacklogColumn", "reads_attributes"]

FOLDER = "attributes"
"""The folder in a checkpoint; it has one for each partition."""
_ENDS = (EndOfInput(), Watermark(MAX_TIMESTAMP_MS))
_ELEMENTS: TaggedSerializer[bytes] = TaggedSerializer(RawFormat())


@dataclass(frozen=True, slots=True)
class BacklogColumn:
    """Adds the column `BACKLOG` to the rows of a topic; sent to the workers.

    Attributes:
        checkpoint: The folder of the query's checkpoint.
        topic: The name of the topic.
        lags: The query itself is in backlog, so that all its records are.
        senders: The senders that the source declares; None if any may write to the topic.
    """

    checkpoint: str
    topic: str
    lags: bool
    senders: Collection[str] | None = None

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Add the column to the rows of one task, which are in the order of one partition."""
        partition: _Partition | None = None
        for batch in batches:
            if batch.num_rows and partition is None:
                number, offset = (batch.column(name)[0].as_py() for name in ("partition", "offset"))
                files = OffsetFiles(Path(self.checkpoint) / FOLDER / f"{self.topic}-{number}")
                partition = _Partition.read(files, str(number), offset, self.senders)
            statuses = np.zeros(batch.num_rows, np.bool_) if partition is None else partition.follow(batch)
            column = pa.array(statuses | self.lags)
            yield pa.RecordBatch.from_arrays([*batch.columns, column], [*batch.schema.names, BACKLOG])
        if partition is not None:
            partition.write()


@dataclass(slots=True)
class _Partition:
    """The status of a partition's channels while a task reads it.

    Attributes:
        files: The files in the checkpoint for the partition.
        changed_from: The offset after the last element that has changed the status; None if none has.
    """

    files: OffsetFiles
    name: str
    merged: MergedBacklog
    changed_from: int | None = field(default=None)

    @classmethod
    def read(cls, files: OffsetFiles, name: str, offset: int, senders: Collection[str] | None) -> _Partition:
        """The status from an offset on; a partition without a file has none yet."""
        kept = files.read(offset)
        if kept is None:
            return cls(files, name, MergedBacklog([name], senders))
        return cls(files, name, MergedBacklog.from_snapshot(kept, [name], senders))

    def follow(self, batch: pa.RecordBatch) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Whether the record of each row is backlog."""
        statuses = np.full(batch.num_rows, bool(self.merged.backlog))
        kinds = batch.column(BRANCH).to_numpy(zero_copy_only=False)
        for place in np.flatnonzero(kinds == RowKind.CONTROL).tolist():
            element = _ELEMENTS.decode(batch.column(ELEMENT)[place].as_py())
            match element:
                case RecordAttributes(backlog):
                    status: bool | None = backlog
                case EndOfInput() | Watermark() if element in _ENDS:
                    status = None
                case _:
                    continue
            channel = channel_name(self.name, batch.column(CHANNEL)[place].as_py() or "")
            self.merged.receive(channel, backlog=status)
            self.changed_from = batch.column("offset")[place].as_py() + 1
            statuses[place:] = bool(self.merged.backlog)
        return statuses

    def write(self) -> None:
        """Write the status for later batches if it may have changed."""
        if self.changed_from is not None:
            self.files.write(self.changed_from, self.merged.snapshot([self.name]))


def reads_attributes(chain: Chain) -> bool:
    """Whether a function of a chain asks for the attributes of its records."""
    functions = (node.function for node in chain.operators if isinstance(node, PythonTransform))
    return any(map(asks_for_attributes, functions))
