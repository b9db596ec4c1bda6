"""Pack the input of a task: records with their key groups become packed rows.

A task reads a part of an input partition, in order, or what some key groups of another operator emitted. Its
records are collected, sorted by key group, and sent to each group as one packed row. At the end, each group
gets the control row of the task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flowcore.elements import MAX_TIMESTAMP_MS, RecordAttributes
from flowcore.keyed.columns import in_parts, rows_not_null, runs
from flowcore.keyed.control import LOW_BITS, PARTITION_BITS, QUERY, Channel, ControlElement
from flowcore.keyed.operator import FLUSH_EVENT
from flowcore.keyed.packed import PACKED, Packed
from flowcore.keyed.passing import PassingRows, SeenRows
from flowcore.keyed.row_reader import RowReader
from flowcore.keyed.task_elements import SenderFiles, TaskElements
from flowcore.serializers.formats import RawFormat
from flowcore.serializers.tagged import TaggedSerializer
from flowcore.watermarks.generated import call_generator
from flowcore.watermarks.merge import Times

__all__ = [
    "BACKLOG_CHANNELS",
    "InputColumns",
    "Packing",
    "Recipient",
]

_ROWS_AT_ONCE, _BYTES_AT_ONCE = 1 << 17, 64 << 20
"""What is packed together: an Arrow array, as of all packed rows, cannot hold 2 GiB of text or bytes."""
_NO_CHANNEL = -1
"""The channel of outputs of `map_batches`, since the partitions of their records are unknown."""
BACKLOG_CHANNELS = {-2: True, -3: False}
"""The channels of rows that are the query's own backlog status from this step on: Spark takes some time for
each column of each row, so that such rows have no column of their own."""
_ELEMENTS: TaggedSerializer[bytes] = TaggedSerializer(RawFormat())


@dataclass(frozen=True, slots=True, kw_only=True)
class InputColumns:
    """The names of the input's columns other than those of records.

    Attributes:
        channel: The number of the source, or of the operator, that emitted the row, before the
            `PARTITION_BITS` of its partition or key group; null for a row without a channel, and one of
            `BACKLOG_CHANNELS`.
        offset: The order within it.
        newest: The timestamp that counts for watermarks, or null; None if no source has one.
        element: A control element, or null; None if there are no control elements.
        marker: The event of a latency marker, or null; None if there are no markers.
    """

    channel: str
    offset: str
    newest: str | None = None
    element: str | None = None
    sender: str | None = None
    marker: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipient:
    """An operator that receives records.

    Attributes:
        key_group: The input's column of a record's key group; null for a row that only carries event time.
        columns: The input's columns of a record, in the order in which the operator has them.
    """

    key_group: str
    columns: tuple[str, ...]

    def pack(self, batch: pa.RecordBatch, key_groups: int) -> Iterator[tuple[int, pa.RecordBatch, Times]]:
        """The records among some rows by key group, with the numbers of their rows."""
        column = batch.column(self.key_group)
        chosen = np.arange(batch.num_rows)
        if column.null_count:
            chosen = chosen[rows_not_null(column)]
        groups = column.drop_null().to_numpy()
        order = np.argsort(groups.astype(np.min_scalar_type(key_groups)), kind="stable")
        chosen = chosen[order]
        rows = batch.select(list(self.columns)).take(chosen)
        bounds = np.searchsorted(groups[order], np.arange(key_groups + 1)).tolist()
        for group, (start, end) in enumerate(pairwise(bounds)):
            if start < end:
                yield group, rows.slice(start, end - start), chosen[start:end]


@dataclass(slots=True)
class _Portion:
    """Rows and control elements of a task that are in order with each other.

    Attributes:
        channel: The channel of its first row.
        at: The place of its next row.
    """

    channel: Channel
    at: int
    elements: TaskElements


@dataclass(slots=True)
class _Task:
    """The event time, backlog and markers in the input of a task.

    Attributes:
        newest_ms: By source and partition with records, the newest time that counts. Of another operator, one
            channel with records, if any has some.
        backlog: The query's own statuses, which precede all records.
    """

    portions: dict[int, _Portion] = field(default_factory=dict)
    newest_ms: dict[Channel, int | None] = field(default_factory=dict)
    flushed: set[str] = field(default_factory=set)
    senders: set[str] = field(default_factory=set)
    backlog: list[ControlElement] = field(default_factory=list)

    def control_rows(self) -> Iterator[Packed]:
        """The control rows for every key group: of the task, and of each other portion with elements."""
        portions = [*self.portions.values()] or [_Portion(Channel("", ""), 0, TaskElements())]
        newest_ms, backlog, flushed = self.newest_ms, self.backlog, self.flushed
        for portion in portions:
            elements = [*backlog, *portion.elements]
            if newest_ms or elements or flushed:
                yield Packed.of_control(portion.channel, newest_ms, elements, flushed)
            newest_ms, backlog, flushed = {}, [], set()


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """Packs input.

    Attributes:
        sources: The names of the sources and of the operators upstream, by number.
        recipients: The operators, by number.
        upstream: The names among ``sources`` that are operators.
        passing: The rows that pass the exchange; None if no rows do.
        later: The rows that report to a later exchange what was read of a source; None if no exchange needs
            them.
        derived: By source, others that have its partitions and follow its control elements.
        functions: By source, a user's function from the timestamps of a batch to event time.
        senders: The senders whose control elements count; None if all do.
        by_channel: Pack each channel for itself. Necessary if channels share a task in one run and not in
            another: a repeated batch processes its records in the same order.
        reader: Reads the rows of which the input is made; None if Spark has read them.
        scattered: Rows of one channel may be in several tasks. Their places are their offsets, by which key
            groups bring them in order again; they are packed by channel.
    """

    inputs: InputColumns
    sources: tuple[str, ...]
    key_groups: int
    recipients: tuple[Recipient, ...]
    upstream: frozenset[str] = frozenset()
    passing: PassingRows | None = None
    later: SeenRows | None = None
    derived: Mapping[str, Sequence[str]] = field(default_factory=dict)
    functions: Mapping[str, Callable[[pa.Array[Any]], int | None]] = field(default_factory=dict)
    senders: SenderFiles | None = None
    reader: RowReader | None = None
    by_channel: bool = False
    scattered: bool = False

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pack the input of one task."""
        task = _Task()
        if self.reader is not None:
            batches = self.reader.read(batches)
        for part in in_parts(batches, _ROWS_AT_ONCE, _BYTES_AT_ONCE):
            yield from self._pack(part, task)
        for portion in task.portions.values():
            portion.elements.write()
        for control in task.control_rows():
            # A row for every group.
            columns = [pa.array(np.arange(self.key_groups, dtype=np.int32))]
            for value, column in zip(control, [*PACKED][1:], strict=True):
                columns.append(pa.repeat(pa.scalar(value, column.type), self.key_groups))
            yield pa.record_batch(columns, schema=PACKED)
        if self.later is not None:
            yield from _to_batches(self._seen_rows(self.later, task.newest_ms))

    def _pack(self, batch: pa.RecordBatch, task: _Task) -> Iterator[pa.RecordBatch]:
        inputs = self.inputs
        passing = self.passing
        if passing is not None and (column := batch.column(passing.passes)).null_count < len(column):
            yield from _to_batches(self._passing(batch.filter(column.is_valid()), passing))
            kept = column.is_null()
            if inputs.element is not None:  # a control element may be for this exchange and for a later one
                kept = pc.or_(kept, batch.column(inputs.element).is_valid())
            batch = batch.filter(kept)
        if inputs.marker is not None and (column := batch.column(inputs.marker)).null_count < len(column):
            yield from _to_batches(self._markers(batch.filter(column.is_valid()), inputs.marker))
            batch = batch.filter(column.is_null())
        channels = self._channels(batch)
        own = channels < _NO_CHANNEL
        if own.any():
            at = batch.column(inputs.offset).to_numpy(zero_copy_only=False)
            task.backlog += [
                ControlElement(QUERY, "", "", offset, RecordAttributes(BACKLOG_CHANNELS[number]))
                for number, offset in zip(channels[own].tolist(), at[own].tolist(), strict=True)
            ]
            batch = batch.filter(~own)
        if batch.num_rows:
            yield from _to_batches(self._records(batch, task))

    def _records(self, batch: pa.RecordBatch, task: _Task) -> Iterator[tuple[int, Packed]]:
        """Records by group; the elements between them and the newest times are added to the task's."""
        batch, channels, offsets = self._in_order(batch)
        for start, end in runs(channels) if self._apart else [(0, batch.num_rows)]:
            portion = self._portion(int(channels[start]), int(offsets[start]), task)
            rows = slice(start, end)
            part = batch.slice(start, end - start)
            yield from self._portion_records(part, channels[rows], offsets[rows], portion, task)

    @property
    def _apart(self) -> bool:
        """Each channel is packed for itself."""
        return self.by_channel or self.scattered

    def _portion(self, number: int, offset: int, task: _Task) -> _Portion:
        """The portion of a task for rows that begin with a channel and an offset."""
        key = number if self._apart else _NO_CHANNEL
        if key not in task.portions:
            task.portions[key] = _Portion(self._channel(number), offset, TaskElements(self.senders))
        return task.portions[key]

    def _portion_records(
        self, batch: pa.RecordBatch, channels: Times, offsets: Times, portion: _Portion, task: _Task
    ) -> Iterator[tuple[int, Packed]]:
        at, portion.at = portion.at, portion.at + batch.num_rows
        places = offsets if self.scattered else np.arange(at, portion.at)
        elements = np.zeros(batch.num_rows, np.bool_)
        if self.inputs.element is not None:
            elements = rows_not_null(batch.column(self.inputs.element))
        has_elements = bool(elements.any())
        if has_elements:
            where = (each[elements].tolist() for each in (channels, offsets, places))
            positions = zip(*where, strict=True)
            self._take_elements(batch.filter(elements), positions, portion.elements, task)
            batch, channels, places = batch.filter(~elements), channels[~elements], places[~elements]
        self._take_newest(batch, channels, task)
        for number, recipient in enumerate(self.recipients):
            for group, rows, chosen in recipient.pack(batch, self.key_groups):
                if has_elements or self.scattered:
                    packed = Packed.of_rows_with_places(portion.channel, places[chosen], rows, number)
                else:
                    packed = Packed.of_rows(portion.channel, at, rows, number)
                yield group, packed

    def _in_order(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Times, Times]:
        """The rows by channel, in the order within it: their channels and offsets.

        Python functions emit their outputs before the control elements of the same batch. The outputs of
        `map_batches` have no channel, and are first.
        """
        channels = self._channels(batch)
        offsets = batch.column(self.inputs.offset).cast(pa.int64()).fill_null(_NO_CHANNEL).to_numpy()
        steps = np.diff(channels)
        if ((steps < 0) | ((steps == 0) & (np.diff(offsets) < 0))).any():
            order = np.lexsort((offsets, channels))
            batch, channels, offsets = batch.take(order), channels[order], offsets[order]
        return batch, channels, offsets

    def _channels(self, batch: pa.RecordBatch) -> Times:
        """The number of each row's channel."""
        channels: Times = batch.column(self.inputs.channel).cast(pa.int64()).fill_null(_NO_CHANNEL).to_numpy()
        return channels

    def _channel(self, number: int) -> Channel:
        if number == _NO_CHANNEL:
            return Channel("", "")
        return Channel(self.sources[number >> PARTITION_BITS], str(number & LOW_BITS))

    def _take_elements(
        self,
        batch: pa.RecordBatch,
        positions: Iterable[tuple[int, int, int]],
        elements: TaskElements,
        task: _Task,
    ) -> None:
        """Take control elements, each with the number of its channel, its offset and its place."""
        names = list(filter(None, (self.inputs.element, self.inputs.sender)))
        for (number, offset, place), row in zip(positions, batch.select(names).to_pylist(), strict=True):
            encoded, sender = [*row.values(), None][:2]
            channel = self._channel(number)
            if encoded == FLUSH_EVENT and channel.source in self.upstream:
                task.flushed.add(channel.source)
            elif elements.admits(channel, sender or "", offset):
                element = _ELEMENTS.decode(encoded)
                for source in (channel.source, *self.derived.get(channel.source, ())):
                    elements.add(ControlElement(source, channel.partition, sender or "", place, element))

    def _take_newest(self, batch: pa.RecordBatch, channels: Times, task: _Task) -> None:
        """Take the newest time that counts of each partition."""
        for start, end in runs(channels):
            if channels[start] == _NO_CHANNEL:
                continue
            channel = self._channel(int(channels[start]))
            if channel.source in self.upstream:
                if channel.source not in task.senders:
                    task.senders.add(channel.source)
                    task.newest_ms[channel] = None
                continue
            if self.inputs.newest is None:
                continue
            mine = batch.column(self.inputs.newest).slice(start, end - start)
            function = self.functions.get(channel.source)
            times = mine.drop_null()
            if function is not None and len(times):
                last_ms = call_generator(function, times)
            else:
                last_ms = pc.max(times).as_py()
            known = [each for each in (task.newest_ms.get(channel), last_ms) if each is not None]
            task.newest_ms[channel] = max(known, default=None)

    def _markers(self, batch: pa.RecordBatch, marker: str) -> Iterator[tuple[int, Packed]]:
        """Each marker goes to one group of one operator in turn, which emits it after its records."""
        rows = zip(self._channels(batch).tolist(), batch.select([marker]).to_pylist(), strict=True)
        for place, (number, row) in enumerate(rows):
            packed = Packed.of_event(self._channel(number), row[marker], place % len(self.recipients))
            yield (number & LOW_BITS) % self.key_groups, packed

    def _passing(self, batch: pa.RecordBatch, passing: PassingRows) -> Iterator[tuple[int, Packed]]:
        """The rows of each channel go to one group, which emits them in their order."""
        batch, channels, offsets = self._in_order(batch)
        rows = passing.select(batch)
        for start, end in runs(channels):
            number = int(channels[start])
            group = (number & LOW_BITS) % self.key_groups
            part = rows.slice(start, end - start)
            yield group, Packed.of_passing(self._channel(number), int(offsets[start]), part)

    def _seen_rows(
        self, later: SeenRows, newest_ms: Mapping[Channel, int | None]
    ) -> Iterator[tuple[int, Packed]]:
        for channel, time_ms in newest_ms.items():
            if channel.source in later.sources:
                rows = later.build(self.sources.index(channel.source), int(channel.partition), time_ms)
                group = int(channel.partition) % self.key_groups
                yield group, Packed.of_passing(channel, MAX_TIMESTAMP_MS, rows)


def _to_batches(rows: Iterable[tuple[int, Packed]]) -> Iterator[pa.RecordBatch]:
    found: list[tuple[Any, ...]] = []
    size_bytes = 0
    for group, packed in rows:
        found.append((group, *packed))
        size_bytes += len(packed.payload)
        if size_bytes >= _BYTES_AT_ONCE:
            yield _to_batch(found)
            found, size_bytes = [], 0
    if found:
        yield _to_batch(found)


def _to_batch(rows: Iterable[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, PACKED, strict=True)]
    return pa.record_batch(arrays, schema=PACKED)
