"""Read the values of messages in the call that packs them.

Spark gives each record to Python with one column for its bytes in place of one for each field, and neither
parses them nor asks for the size of each field. A message that is not a record passes the exchange with its
bytes. There Spark finds why it is bad.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flowcore.keyed.columns import RowMask, rows_not_null
from flowcore.keyed.control import LOW_BITS
from flowcore.keyed.record_columns import ArrowColumns, PackingColumns, RecordColumns
from flowcore.serializers.formats.json_arrow import JsonArrowFormat

__all__ = ["READ_OFFSET", "READ_PARTITION", "READ_TIME", "MessageColumns", "MessageSource"]

READ_TIME = "_flowcore_read_time"
READ_PARTITION, READ_OFFSET = "_flowcore_read_partition", "_flowcore_read_offset"
"""The columns of a message that are not its fields: its event time in milliseconds, and its coordinates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageColumns:
    """The names of the columns of messages, which packed outputs also have.

    Attributes:
        channel: The number of the source before the bits of the partition; negative for the query's own rows.
        value: The bytes of a message.
        written_ms: The time of a message.
        latest_ms: The latest event time that its record may have.
    """

    channel: str
    offset: str
    value: str
    written_ms: str
    latest_ms: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageSource:
    """How the messages of a source are read.

    Attributes:
        time: The field with the event time, in milliseconds; None for the time of the message.
        needs_time: A message without event time is not a record.
        limits_time: Neither is one whose event time is after its latest one.
        bad: What is the same in the rows of all messages that are not records, by column of passing rows;
            None if such messages do not pass the exchange.
        coordinates: The names of partition, offset and the message's time in such a row.
        used: The fields that records have; None for all.
    """

    value_format: JsonArrowFormat
    time: str | None
    needs_time: bool
    limits_time: bool
    bad: Mapping[str, Any] | None
    coordinates: tuple[str, str, str]
    used: frozenset[str] | None = None

    def read(
        self, batch: pa.RecordBatch, names: MessageColumns, records: RecordColumns, into: PackingColumns
    ) -> Iterator[pa.RecordBatch]:
        """The packing's input of some messages."""
        columns, is_record = self.value_format.read(batch.column(names.value), self.used)
        columns[READ_TIME] = batch.column(names.written_ms) if self.time is None else columns[self.time]
        columns[READ_PARTITION] = pa.array(batch.column(names.channel).to_numpy() & LOW_BITS)
        columns[READ_OFFSET] = batch.column(names.offset)
        good = is_record & self._is_timely(columns[READ_TIME], batch, names)
        if not good.all():
            if self.bad is not None:
                bad = pa.array(~good)
                partitions = columns[READ_PARTITION].filter(bad)
                yield self._passing(batch.filter(bad), partitions, names, self.bad, into)
            kept = pa.array(good)
            batch = batch.filter(kept)
            columns = {name: column.filter(kept) for name, column in columns.items()}
        if batch.num_rows:
            channels = batch.column(names.channel)
            yield into.select(records, columns, channels, columns[READ_OFFSET])[0]

    def _is_timely(self, time: pa.Array[Any], batch: pa.RecordBatch, names: MessageColumns) -> RowMask:
        timely = np.ones(batch.num_rows, np.bool_)
        if self.needs_time and time.null_count:
            timely &= rows_not_null(time)
        if self.limits_time:
            is_later = pc.greater(time, batch.column(names.latest_ms)).fill_null(False)
            timely &= ~is_later.to_numpy(zero_copy_only=False)
        return timely

    def _passing(
        self,
        batch: pa.RecordBatch,
        partitions: pa.Array[Any],
        names: MessageColumns,
        same: Mapping[str, Any],
        into: PackingColumns,
    ) -> pa.RecordBatch:
        """RowMask that pass with the bytes of their messages."""
        where = (partitions, batch.column(names.offset), batch.column(names.written_ms))
        rows = zip(*(column.to_pylist() for column in where), strict=True)
        texts = [json.dumps({**same, **dict(zip(self.coordinates, row, strict=True))}) for row in rows]
        columns: ArrowColumns = {
            into.channel: batch.column(names.channel),
            into.offset: batch.column(names.offset),
            into.passes: pa.array(texts, pa.string()),
            into.passing_value: batch.column(names.value),
        }
        return into.complete(columns, batch.num_rows)
