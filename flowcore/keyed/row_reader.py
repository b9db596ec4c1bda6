"""Turn messages and packed outputs into the input of packing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from flowcore.keyed.columns import runs
from flowcore.keyed.control import LOW_BITS, PARTITION_BITS
from flowcore.keyed.message_reader import MessageColumns, MessageSource
from flowcore.keyed.output_reader import (
    PACKED_SOURCE,
    ControlOutput,
    OutputReader,
    PassingOutput,
    RecordOutput,
)
from flowcore.keyed.record_columns import PackingColumns, RecordColumns

__all__ = ["RowReader"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowReader:
    """Makes the packing's input of rows that Spark has not read.

    Attributes:
        names: The columns of the rows. Those of packed outputs have the key group in the place of the
            partition, and no time.
        output: The column with the name of a packed output; None if there are none.
        messages: Each source by number, with the columns of its records.
        outputs: Each packed output by name.
    """

    names: MessageColumns
    output: str | None = None
    messages: Mapping[int, tuple[MessageSource, RecordColumns]] = field(default_factory=dict)
    outputs: Mapping[str, RecordOutput | ControlOutput | PassingOutput] = field(default_factory=dict)
    into: PackingColumns

    def read(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The packing's input of the rows of one task."""
        names, outputs = self.names, OutputReader(self.outputs, self.into)
        for batch in batches:
            numbers = batch.column(names.channel).to_numpy() >> PARTITION_BITS
            for start, end in runs(numbers):
                part, number = batch.slice(start, end - start), int(numbers[start])
                if number < 0:
                    own = {self.into.channel: names.channel, self.into.offset: names.offset}
                    columns = {name: part.column(now) for name, now in own.items()}
                    yield self.into.complete(columns, part.num_rows)
                elif number == PACKED_SOURCE and self.output is not None:
                    groups = part.column(names.channel).to_numpy() & LOW_BITS
                    yield from outputs.read(part.column(self.output), part.column(names.value), groups)
                else:
                    source, records = self.messages[number]
                    yield from source.read(part, names, records, self.into)
