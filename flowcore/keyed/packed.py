"""Packed rows, which carry records and control elements from reading tasks to key groups.

Spark's Python state operators process rows one by one, so one packed row carries many records: those of one
key group in a part of a task's input, as an Arrow record batch. Control rows go to every key group. Columns:
``key_group``, ``kind``, ``channel`` (as JSON: source, partition, and sender of arriving elements), ``at``
(the order within a partition) and ``payload``. The control elements of a task's channels share one row for
each key group, so that their number does not grow with that of pairs of channels and key groups.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import Any, NamedTuple

import pyarrow as pa

from flowcore.elements import LatencyMarker, RecordAttributes, StreamElement, WatermarkStatus
from flowcore.serializers.events import LatencyMarkerEventSerializer
from flowcore.serializers.formats import RawFormat
from flowcore.serializers.tagged import TaggedSerializer

__all__ = ["PACKED", "Channel", "Packed", "PackedKind", "sort_packed"]

_COLUMNS: dict[str, pa.DataType] = {
    "key_group": pa.int32(),
    "kind": pa.int8(),
    "channel": pa.string(),
    "at": pa.int64(),
    "payload": pa.binary(),
}
PACKED: pa.Schema = pa.schema(_COLUMNS)
_ITEMS = pa.schema(list(PACKED)[1:])
_TIME = Struct(">q")
_BACKLOG = b"\x01"
_EVENTS = LatencyMarkerEventSerializer()
_ELEMENTS: TaggedSerializer[bytes] = TaggedSerializer(RawFormat())


class PackedKind(IntEnum):
    """The kind of payload. Records and the elements between them keep their order."""

    ROWS = 0
    """A record batch."""
    ELEMENT = 1
    """A control element between records."""
    SEEN = 2
    """A partition had records, and their newest timestamp that counts; after all rows of the step."""
    MARKER = 3
    """A latency marker; after all records and elements."""
    ATTRIBUTES = 4
    """Attributes of the step's records and all later ones; before everything else."""
    PASSING = 5
    """Rows that the operator does not process, as a record batch that is not opened here."""
    SEVERAL = 6
    """Other packed rows, which take its place."""
    ACTIVE = 7
    """A channel of another operator is active in this step; before all records. The channels become active
    together: else the watermark of the first one would make the records of the others late."""


_ORDER = {
    PackedKind.ATTRIBUTES: 0, PackedKind.ROWS: 1, PackedKind.ELEMENT: 1,
    PackedKind.SEEN: 2, PackedKind.MARKER: 3, PackedKind.PASSING: 4, PackedKind.ACTIVE: 0,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Channel:
    """An input channel.

    Attributes:
        source: The source's name.
        partition: The input partition.
        sender: The sender of watermarks, where several write to one partition.
    """

    source: str
    partition: str
    sender: str = ""

    def encode(self) -> str:
        """As text."""
        return json.dumps([self.source, self.partition, self.sender])

    @classmethod
    def decode(cls, written: str) -> Channel:
        """From text."""
        return cls(*json.loads(written))


class Packed(NamedTuple):
    """A packed row without its key group."""

    kind: int
    channel: str
    at: int
    payload: bytes

    @property
    def newest_ms(self) -> int | None:
        """The newest timestamp that counts, of `PackedKind.SEEN`."""
        return _TIME.unpack(self.payload)[0] if self.payload else None

    @property
    def element(self) -> StreamElement[Any]:
        """The element, of `PackedKind.ELEMENT` and `PackedKind.ACTIVE`."""
        return _ELEMENTS.decode(self.payload)

    @property
    def marker(self) -> LatencyMarker:
        """The marker, of `PackedKind.MARKER`."""
        return _EVENTS.decode(self.payload).to_marker()

    @property
    def attributes(self) -> RecordAttributes:
        """The attributes, of `PackedKind.ATTRIBUTES`."""
        return RecordAttributes(self.payload == _BACKLOG)

    def rows(self, schema: pa.Schema) -> pa.RecordBatch:
        """The records, of `PackedKind.ROWS`."""
        return pa.ipc.read_record_batch(pa.py_buffer(self.payload), schema)

    @classmethod
    def of_rows(cls, channel: Channel, at: int, rows: pa.RecordBatch) -> Packed:
        """Pack records; both sides have their schema."""
        return cls(PackedKind.ROWS, channel.encode(), at, rows.serialize().to_pybytes())

    @classmethod
    def of_passing(cls, channel: Channel, at: int, rows: pa.RecordBatch) -> Packed:
        """Pack rows that pass the operator; the writer has their schema."""
        return cls(PackedKind.PASSING, channel.encode(), at, rows.serialize().to_pybytes())

    @classmethod
    def of_several(cls, items: Sequence[Packed]) -> Packed:
        """Pack packed rows in one."""
        columns = zip(*items, strict=True)
        arrays = [pa.array(values, field.type) for values, field in zip(columns, _ITEMS, strict=True)]
        content = pa.record_batch(arrays, schema=_ITEMS).serialize().to_pybytes()
        return cls(PackedKind.SEVERAL, "", 0, content)

    @classmethod
    def of_seen(cls, channel: Channel, newest_ms: int | None) -> Packed:
        """Pack that a partition had records."""
        return cls(PackedKind.SEEN, channel.encode(), 0, b"" if newest_ms is None else _TIME.pack(newest_ms))

    @classmethod
    def of_element(cls, channel: Channel, at: int, element: StreamElement[Any]) -> Packed:
        """Pack a control element."""
        return cls(PackedKind.ELEMENT, channel.encode(), at, _ELEMENTS.encode(element))

    @classmethod
    def of_active(cls, channel: Channel, at: int) -> Packed:
        """Pack that a channel becomes active at some place of the step."""
        return cls(PackedKind.ACTIVE, channel.encode(), at, _ELEMENTS.encode(WatermarkStatus(idle=False)))

    @classmethod
    def of_attributes(cls, at: int, attributes: RecordAttributes) -> Packed:
        """Pack attributes; ``at`` is their order in a step."""
        return cls(PackedKind.ATTRIBUTES, "", at, _BACKLOG if attributes.backlog else b"")

    @classmethod
    def of_event(cls, channel: Channel, event: bytes) -> Packed:
        """Pack a latency marker, as the event that carried it."""
        return cls(PackedKind.MARKER, channel.encode(), 0, event)


def sort_packed(rows: Iterable[Packed]) -> list[Packed]:
    """Sort the rows of one step in the order of processing; several rows in one are taken apart."""

    def order(row: Packed) -> tuple[int, str, int, int]:
        return _ORDER[PackedKind(row.kind)], row.channel, row.at, row.kind

    return sorted(_take_apart(rows), key=order)


def _take_apart(rows: Iterable[Packed]) -> Iterator[Packed]:
    for row in rows:
        if row.kind == PackedKind.SEVERAL:
            batch = pa.ipc.read_record_batch(pa.py_buffer(row.payload), _ITEMS)
            yield from map(Packed, *(column.to_pylist() for column in batch.columns))
        else:
            yield row
