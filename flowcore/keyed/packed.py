"""Packed rows: how do records and what travels among them get from the tasks that read to the key groups?

Spark's Python state operators take rows apart one by one, so a row is made to carry many records: those of
one key group in a part of a task's input, as an Arrow record batch. Between them go control rows, to every
key group. Columns: ``key_group``, ``kind``, ``channel`` (as JSON: source, partition, and sender of arriving
elements), ``at`` (the order within a partition) and ``payload``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import Any, NamedTuple

import pyarrow as pa

from flowcore.elements import LatencyMarker, RecordAttributes, StreamElement
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
_TIME = Struct(">q")
_BACKLOG = b"\x01"
_EVENTS = LatencyMarkerEventSerializer()
_ELEMENTS: TaggedSerializer[bytes] = TaggedSerializer(RawFormat())


class PackedKind(IntEnum):
    """What the payload is. Records and the elements among them keep the order they came in."""

    ROWS = 0
    """A record batch."""
    ELEMENT = 1
    """A control element that stood among the records."""
    SEEN = 2
    """That a partition had records, and the newest timestamp that counts; after all rows of the step."""
    MARKER = 3
    """A latency marker; after all else."""
    ATTRIBUTES = 4
    """What is true of the step's records and of those after it; before all else."""
    BAD = 5
    """Bad messages, as a record batch that nobody looks into here."""


_PLACES = {
    PackedKind.ATTRIBUTES: 0, PackedKind.ROWS: 1, PackedKind.ELEMENT: 1,
    PackedKind.SEEN: 2, PackedKind.MARKER: 3, PackedKind.BAD: 4,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Channel:
    """Where something came from.

    Attributes:
        source: The source's name.
        partition: The input partition.
        sender: Whose watermarks these are, where several send into one partition.
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
    """One packed row, without its key group."""

    kind: int
    channel: str
    at: int
    payload: bytes

    @property
    def newest_ms(self) -> int | None:
        """Of `PackedKind.SEEN`: the newest timestamp that counts."""
        return _TIME.unpack(self.payload)[0] if self.payload else None

    @property
    def element(self) -> StreamElement[Any]:
        """Of `PackedKind.ELEMENT`: the element."""
        return _ELEMENTS.decode(self.payload)

    @property
    def marker(self) -> LatencyMarker:
        """Of `PackedKind.MARKER`: the marker."""
        return _EVENTS.decode(self.payload).to_marker()

    @property
    def attributes(self) -> RecordAttributes:
        """Of `PackedKind.ATTRIBUTES`: what they are."""
        return RecordAttributes(self.payload == _BACKLOG)

    def rows(self, schema: pa.Schema) -> pa.RecordBatch:
        """Of `PackedKind.ROWS`: the records."""
        return pa.ipc.read_record_batch(pa.py_buffer(self.payload), schema)

    @classmethod
    def of_rows(cls, channel: Channel, at: int, rows: pa.RecordBatch) -> Packed:
        """Records; their schema is known at both ends."""
        return cls(PackedKind.ROWS, channel.encode(), at, rows.serialize().to_pybytes())

    @classmethod
    def of_bad(cls, channel: Channel, rows: pa.RecordBatch) -> Packed:
        """Bad messages; their schema is known where they leave."""
        return cls(PackedKind.BAD, channel.encode(), 0, rows.serialize().to_pybytes())

    @classmethod
    def of_seen(cls, channel: Channel, newest_ms: int | None) -> Packed:
        """A partition had records."""
        return cls(PackedKind.SEEN, channel.encode(), 0, b"" if newest_ms is None else _TIME.pack(newest_ms))

    @classmethod
    def of_element(cls, channel: Channel, at: int, element: StreamElement[Any]) -> Packed:
        """A control element."""
        return cls(PackedKind.ELEMENT, channel.encode(), at, _ELEMENTS.encode(element))

    @classmethod
    def of_attributes(cls, at: int, attributes: RecordAttributes) -> Packed:
        """What the query knows of its records; ``at`` tells the order of several in a step."""
        return cls(PackedKind.ATTRIBUTES, "", at, _BACKLOG if attributes.backlog else b"")

    @classmethod
    def of_event(cls, channel: Channel, event: bytes) -> Packed:
        """A latency marker, as the event that carried it."""
        return cls(PackedKind.MARKER, channel.encode(), 0, event)


def sort_packed(items: Iterable[Packed]) -> list[Packed]:
    """The rows of one step in the order in which a key group takes them."""
    return sorted(items, key=lambda item: (_PLACES[PackedKind(item.kind)], item.channel, item.at, item.kind))
