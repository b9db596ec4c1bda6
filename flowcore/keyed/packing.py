"""Packs the input of a task: records with their key groups become packed rows.

A task reads a part of an input partition, in order. Its records are collected, sorted by key group, and sent
to each group as one packed row. At the end, each group gets the newest timestamp of the partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flowcore.elements import RecordAttributes, StreamElement, WatermarkStatus
from flowcore.keyed.columns import concat_batches
from flowcore.keyed.packed import PACKED, Channel, Packed
from flowcore.serializers.formats import RawFormat
from flowcore.serializers.tagged import TaggedSerializer
from flowcore.watermarks.generators import call_generator

__all__ = ["InputColumns", "Packing"]

_ROWS_AT_ONCE = 1 << 17
_ELEMENTS: TaggedSerializer[bytes] = TaggedSerializer(RawFormat())


@dataclass(frozen=True, slots=True, kw_only=True)
class InputColumns:
    """The names of the input's columns other than those of records.

    Attributes:
        key_group: The key group.
        source: The number of the source.
        partition: The input partition.
        offset: The order within it.
        newest: The timestamp that counts for watermarks, or null; None if watermarks arrive as elements from
            the key groups of another operator.
        record: True for a record of the operator; null or false for a row that only carries event time.
        element: A control element, or null; None if there are no control elements.
        sender: The sender of the control element.
        marker: The event of a latency marker, or null; None if there are no markers.
        backlog: The backlog status of the records that follow, or null; None if there is no such status.
        passing: A row that passes the operator, as a struct, or null; None if no rows pass it.
    """

    key_group: str
    source: str
    partition: str
    offset: str
    newest: str | None
    record: str | None = None
    element: str | None = None
    sender: str | None = None
    marker: str | None = None
    backlog: str | None = None
    passing: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """Packs input.

    Attributes:
        inputs: The columns of the input.
        sources: The names of the sources, by number.
        key_groups: The number of key groups.
        rows: The columns of records.
        functions: By source, a user's function from the timestamps of a batch to event time.
    """

    inputs: InputColumns
    sources: tuple[str, ...]
    key_groups: int
    rows: pa.Schema
    functions: Mapping[str, Callable[[pa.Array[Any]], int | None]] = field(default_factory=dict)

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pack the input of one task."""
        seen: dict[Channel, int | None] = {}
        control: list[Packed] = []
        pending: list[pa.RecordBatch] = []
        for batch in batches:
            pending.append(batch)
            if sum(each.num_rows for each in pending) >= _ROWS_AT_ONCE:
                yield from self._pack(concat_batches(pending), seen, control)
                pending = []
        if pending:
            yield from self._pack(concat_batches(pending), seen, control)
        if control:
            several = Packed.of_several(control)
            yield from _to_batches((group, several) for group in range(self.key_groups))
        yield from _to_batches(
            (group, Packed.of_seen(channel, newest_ms))
            for channel, newest_ms in seen.items()
            for group in range(self.key_groups)
        )

    def _pack(
        self, batch: pa.RecordBatch, seen: dict[Channel, int | None], control: list[Packed]
    ) -> Iterator[pa.RecordBatch]:
        inputs = self.inputs
        others = (
            (inputs.marker, self._markers),
            (inputs.backlog, self._attributes),
            (inputs.passing, self._passing),
        )
        for name, pack in others:
            if name is not None and (column := batch.column(name)).null_count < batch.num_rows:
                yield from _to_batches(pack(batch.filter(column.is_valid()), name))
                batch = batch.filter(column.is_null())
        for channel, part in self._by_partition(batch):
            yield from _to_batches(self._pack_partition(channel, part, seen, control))

    def _by_partition(self, batch: pa.RecordBatch) -> Iterator[tuple[Channel, pa.RecordBatch]]:
        names = [self.inputs.source, self.inputs.partition]
        table = pa.Table.from_batches([batch.select(names)])
        distinct = table.group_by(names).aggregate([]).to_pylist()
        for origin in distinct:
            number, partition = origin.values()
            mine = batch
            if len(distinct) > 1:
                equal = (pc.equal(batch.column(name), value) for name, value in origin.items())
                mine = batch.filter(pc.and_(*equal))
            yield Channel(self.sources[number], str(partition)), mine

    def _pack_partition(
        self,
        channel: Channel,
        batch: pa.RecordBatch,
        seen: dict[Channel, int | None],
        control: list[Packed],
    ) -> Iterator[tuple[int, Packed]]:
        """Records by group; adds the control elements between them to those for every group."""
        name, start = self.inputs.element, 0
        if self.inputs.newest is None:
            # Python functions emit their outputs before the control elements of the same batch.
            order = np.argsort(batch.column(self.inputs.offset).to_numpy(), kind="stable")
            batch = batch.take(order)
        if name is not None:
            offsets = batch.column(self.inputs.offset).to_numpy()
            elements = batch.column(name)
            for position in np.flatnonzero(elements.is_valid().to_numpy(zero_copy_only=False)).tolist():
                yield from self._records(channel, batch.slice(start, position - start), seen)
                sender = Channel(channel.source, channel.partition, self._sender(batch, position))
                element = _ELEMENTS.decode(elements[position].as_py())
                control += self._control(sender, int(offsets[position]), element)
                start = position + 1
        yield from self._records(channel, batch.slice(start), seen)

    def _control(self, sender: Channel, at: int, element: StreamElement[Any]) -> Iterator[Packed]:
        if self.inputs.newest is None and isinstance(element, RecordAttributes):
            yield Packed.of_attributes(at, element)
            return
        if self.inputs.newest is None and element == WatermarkStatus(idle=False):
            yield Packed.of_active(sender, at)
        yield Packed.of_element(sender, at, element)

    def _sender(self, batch: pa.RecordBatch, position: int) -> str:
        found = None if self.inputs.sender is None else batch.column(self.inputs.sender)[position].as_py()
        return found or ""

    def _records(
        self, channel: Channel, batch: pa.RecordBatch, seen: dict[Channel, int | None]
    ) -> Iterator[tuple[int, Packed]]:
        if not batch.num_rows:
            return
        if self.inputs.newest is not None:
            times = batch.column(self.inputs.newest)
            function = self.functions.get(channel.source)
            last_ms = call_generator(function, times) if function else pc.max(times).as_py()
            newest_ms = [seen.get(channel), last_ms]
            seen[channel] = max((each for each in newest_ms if each is not None), default=None)
        at: int = batch.column(self.inputs.offset)[0].as_py()
        if self.inputs.record is not None:
            batch = batch.filter(batch.column(self.inputs.record))  # which drops nulls too
        groups = batch.column(self.inputs.key_group).to_numpy()
        order = np.argsort(groups.astype(np.min_scalar_type(self.key_groups)), kind="stable")
        rows = batch.select(self.rows.names).take(order)
        bounds = np.searchsorted(groups[order], np.arange(self.key_groups + 1)).tolist()
        for group, (start, end) in enumerate(pairwise(bounds)):
            if start < end:
                yield group, Packed.of_rows(channel, at, rows.slice(start, end - start))

    def _markers(self, batch: pa.RecordBatch, marker: str) -> Iterator[tuple[int, Packed]]:
        """Each marker goes to one group, which emits it after its records."""
        for row in batch.select([self.inputs.source, self.inputs.partition, marker]).to_pylist():
            number, partition, event = row.values()
            channel = Channel(self.sources[number], str(partition))
            yield partition % self.key_groups, Packed.of_event(channel, event)

    def _attributes(self, batch: pa.RecordBatch, backlog: str) -> Iterator[tuple[int, Packed]]:
        """Attributes for every group."""
        for at, backlogged in zip(
            *(batch.column(name).to_pylist() for name in (self.inputs.offset, backlog)), strict=True
        ):
            packed = Packed.of_attributes(at, RecordAttributes(backlogged))
            yield from ((group, packed) for group in range(self.key_groups))

    def _passing(self, batch: pa.RecordBatch, passing: str) -> Iterator[tuple[int, Packed]]:
        """The rows of each channel go to one group, which emits them in their order."""
        for channel, part in self._by_partition(batch):
            structs = part.column(passing)
            assert isinstance(structs, pa.StructArray)  # noqa: S101 - a fact for the type checker
            rows = pa.RecordBatch.from_struct_array(structs)
            at: int = part.column(self.inputs.offset)[0].as_py()
            yield int(channel.partition) % self.key_groups, Packed.of_passing(channel, at, rows)


def _to_batches(rows: Iterable[tuple[int, Packed]]) -> Iterator[pa.RecordBatch]:
    found: list[Any] = list(rows)
    if found:
        columns = zip(*((group, *packed) for group, packed in found), strict=True)
        arrays = [pa.array(values, field.type) for values, field in zip(columns, PACKED, strict=True)]
        yield pa.record_batch(arrays, schema=PACKED)
