"""Read the values of messages in the call that packs them.

Spark gives each record to Python with one column for its bytes in place of one for each field, and neither
parses them nor asks for the size of each field. A message that is not a record passes the exchange with its
bytes. There Spark finds why it is bad.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from flowcore.keyed.columns import runs
from flowcore.keyed.conditions import Condition, evaluate
from flowcore.keyed.control import LOW_BITS, PARTITION_BITS
from flowcore.keyed.key_group_hash import key_groups_of
from flowcore.serializers.formats.json_arrow import JsonArrowFormat

__all__ = ["MessageColumns", "MessageReader", "MessageSource", "RecordColumns"]

_Columns = dict[str, "pa.Array[Any]"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageColumns:
    """The names of the input's columns.

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
    """

    value_format: JsonArrowFormat
    time: str | None
    needs_time: bool
    limits_time: bool
    bad: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordColumns:
    """The columns of a source's records in the packing's input, by name there; others are null.

    Attributes:
        fields: Their fields.
        computed: Conditions on their fields.
        kept: The condition under which a record has a key group; others only carry event time. None for all.
        times: Columns with the event time.
        partitions: Columns with the partition.
        offsets: Columns with the offset.
        constants: Columns with the same value in each row.
        key_groups: The column of each recipient's key group, with the columns of its key, and whether records
            without key are spread by partition.
    """

    fields: Mapping[str, str]
    times: Sequence[str] = ()
    partitions: Sequence[str] = ()
    offsets: Sequence[str] = ()
    constants: Mapping[str, Any]
    key_groups: Mapping[str, tuple[Sequence[str], bool]]
    computed: Mapping[str, Condition] = field(default_factory=dict)
    kept: Condition | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageReader:
    """Makes the packing's input of messages.

    Attributes:
        sources: Each source by number, with the columns of its records.
        passes: The packing's column with a row that passes, as a JSON object without the bytes.
        passing_value: The packing's column with its bytes.
        passing_names: The names of partition, offset and the message's time in such a row.
        schema: The packing's input.
    """

    columns: MessageColumns
    sources: Mapping[int, tuple[MessageSource, RecordColumns]]
    passes: str
    passing_value: str
    passing_names: tuple[str, str, str]
    schema: pa.Schema
    key_groups: int

    def read(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The packing's input of some messages."""
        for batch in batches:
            numbers = batch.column(self.columns.channel).to_numpy() >> PARTITION_BITS
            for start, end in runs(numbers):
                part = batch.slice(start, end - start)
                if numbers[start] < 0:
                    yield self._complete(self._coordinates(part), part.num_rows)
                else:
                    yield from self._read(part, *self.sources[int(numbers[start])])

    def _read(
        self, batch: pa.RecordBatch, source: MessageSource, records: RecordColumns
    ) -> Iterator[pa.RecordBatch]:
        found, is_record = source.value_format.read(batch.column(self.columns.value))
        names = (column.name for column in source.value_format.value_format.columns)
        fields = dict(zip(names, found, strict=True))
        time = batch.column(self.columns.written_ms) if source.time is None else fields[source.time]
        good = np.array(is_record, np.bool_) & self._is_timely(time, batch, source)
        if not good.all():
            bad = pa.array(~good)
            if source.bad is not None:
                yield self._passing(batch.filter(bad), source.bad)
            kept = pa.array(good)
            batch, time = batch.filter(kept), time.filter(kept)
            fields = {name: column.filter(kept) for name, column in fields.items()}
        if batch.num_rows:
            yield self._records(batch, fields, time, records)

    def _is_timely(
        self, time: pa.Array[Any], batch: pa.RecordBatch, source: MessageSource
    ) -> npt.NDArray[np.bool_]:
        timely = np.ones(batch.num_rows, np.bool_)
        if source.needs_time and time.null_count:
            timely &= _is_valid(time)
        if source.limits_time:
            is_later = pc.greater(time, batch.column(self.columns.latest_ms)).fill_null(False)
            timely &= ~is_later.to_numpy(zero_copy_only=False)
        return timely

    def _records(
        self, batch: pa.RecordBatch, fields: _Columns, time: pa.Array[Any], records: RecordColumns
    ) -> pa.RecordBatch:
        columns = self._coordinates(batch)
        columns |= {name: fields[field] for name, field in records.fields.items()}
        columns |= {name: evaluate(condition, fields) for name, condition in records.computed.items()}
        columns |= dict.fromkeys(records.times, time)
        columns |= dict.fromkeys(records.offsets, batch.column(self.columns.offset))
        if records.partitions:
            columns |= dict.fromkeys(records.partitions, self._partitions(batch))
        for name, value in records.constants.items():
            columns[name] = pa.repeat(pa.scalar(value, self.schema.field(name).type), batch.num_rows)
        dropped = None
        if records.kept is not None:
            kept = pc.fill_null(evaluate(records.kept, fields), False)
            dropped = ~kept.to_numpy(zero_copy_only=False)
        for name, (keys, spreads) in records.key_groups.items():
            key = [columns[each] for each in keys]
            groups = key_groups_of(key, batch.num_rows, self.key_groups)
            if spreads and any(column.null_count for column in key):
                has_key = np.logical_and.reduce([_is_valid(column) for column in key])
                groups = np.where(has_key, groups, self._partitions(batch).to_numpy() % self.key_groups)
            columns[name] = pa.array(groups, mask=dropped)
        return self._complete(columns, batch.num_rows)

    def _passing(self, batch: pa.RecordBatch, same: Mapping[str, Any]) -> pa.RecordBatch:
        """Rows that pass with the bytes of their messages."""
        where = (self._partitions(batch), *map(batch.column, (self.columns.offset, self.columns.written_ms)))
        rows = zip(*(column.to_pylist() for column in where), strict=True)
        texts = [json.dumps({**same, **dict(zip(self.passing_names, row, strict=True))}) for row in rows]
        columns = self._coordinates(batch)
        columns[self.passes] = pa.array(texts, pa.string())
        columns[self.passing_value] = batch.column(self.columns.value)
        return self._complete(columns, batch.num_rows)

    def _partitions(self, batch: pa.RecordBatch) -> pa.Array[Any]:
        channels = batch.column(self.columns.channel).to_numpy()
        partitions: pa.Array[Any] = pa.array(channels & LOW_BITS)
        return partitions

    def _coordinates(self, batch: pa.RecordBatch) -> _Columns:
        return {name: batch.column(name) for name in (self.columns.channel, self.columns.offset)}

    def _complete(self, columns: _Columns, rows: int) -> pa.RecordBatch:
        arrays = [
            columns[field.name].cast(field.type) if field.name in columns else pa.nulls(rows, field.type)
            for field in self.schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _is_valid(column: pa.Array[Any]) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = column.is_valid().to_numpy(zero_copy_only=False)
    return found
