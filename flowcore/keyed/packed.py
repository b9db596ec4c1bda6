"""Packed rows, which carry records and control elements from reading tasks to key groups.

Spark's Python state operators process rows one by one, so one packed row carries many records: those of one
key group in a part of a task's input, as an Arrow record batch. A control row goes to every key group.
Columns: ``key_group``, ``kind``, ``channel`` (as JSON: source and partition of its rows, or of the first row
of its task, which identifies the task then), ``at`` (the place among the rows and elements of the channel or
task), ``payload`` and ``operator`` (the number of the operator in the exchange, or `EVERY`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flowcore.elements import LatencyMarker
from flowcore.keyed.columns import concat_batches
from flowcore.keyed.control import (
    Channel,
    ChannelOrder,
    ControlElement,
    Place,
    channel_order,
    encode_control,
)
from flowcore.serializers.events import LatencyMarkerEventSerializer

__all__ = ["EVERY", "PACKED", "Packed", "PackedKind", "PackedRows", "sort_packed"]

_COLUMNS: dict[str, pa.DataType] = {
    "key_group": pa.int32(),
    "kind": pa.int8(),
    "channel": pa.string(),
    "at": pa.int64(),
    "payload": pa.binary(),
    "operator": pa.int32(),
}
PACKED: pa.Schema = pa.schema(_COLUMNS)
EVERY = -1
"""Instead of the number of an operator: a row is for all operators of the exchange."""
_PLACE: pa.Field[Any] = pa.field("_place", pa.int64())
_EVENTS = LatencyMarkerEventSerializer()


class PackedKind(IntEnum):
    """The kind of payload."""

    ROWS = 0
    """A record batch."""
    ROWS_WITH_PLACES = 1
    """A record batch whose last column is the place of each row: control elements may be between them."""
    CONTROL = 2
    """A control row, see `flowcore.keyed.control`."""
    MARKER = 3
    """A latency marker; after all records and elements."""
    PASSING = 4
    """Rows that no operator processes, as a record batch that is not opened here."""


_ORDER: Mapping[int, int] = {
    PackedKind.CONTROL: 0, PackedKind.ROWS: 1, PackedKind.ROWS_WITH_PLACES: 1, PackedKind.MARKER: 2,
    PackedKind.PASSING: 3,
}  # fmt: skip


class Packed(NamedTuple):
    """A packed row without its key group."""

    kind: int
    channel: str
    at: int
    payload: bytes
    operator: int = EVERY

    @property
    def marker(self) -> LatencyMarker:
        """The marker, of `PackedKind.MARKER`."""
        return _EVENTS.decode(self.payload).to_marker()

    def rows(self, schema: pa.Schema) -> pa.RecordBatch:
        """The records, of `PackedKind.ROWS`."""
        return pa.ipc.read_record_batch(pa.py_buffer(self.payload), schema)

    @classmethod
    def of_rows(cls, channel: Channel, at: int, rows: pa.RecordBatch, operator: int = EVERY) -> Packed:
        """Pack records; both sides have their schema."""
        return cls(PackedKind.ROWS, channel.encode(), at, rows.serialize().to_pybytes(), operator)

    @classmethod
    def of_rows_with_places(
        cls, channel: Channel, places: npt.NDArray[np.int64], rows: pa.RecordBatch, operator: int = EVERY
    ) -> Packed:
        """Pack records with their places, in order."""
        content = rows.append_column(_PLACE, pa.array(places)).serialize().to_pybytes()
        return cls(PackedKind.ROWS_WITH_PLACES, channel.encode(), int(places[0]), content, operator)

    @classmethod
    def of_passing(cls, channel: Channel, at: int, rows: pa.RecordBatch) -> Packed:
        """Pack rows that no operator processes; the writer has their schema."""
        return cls(PackedKind.PASSING, channel.encode(), at, rows.serialize().to_pybytes())

    @classmethod
    def of_control(
        cls,
        channel: Channel,
        newest_ms: Mapping[Channel, int | None] | None = None,
        elements: Iterable[ControlElement] = (),
        flushed: Iterable[str] = (),
    ) -> Packed:
        """Pack a control row, with the arguments of `encode_control`."""
        content = encode_control(newest_ms or {}, elements, flushed)
        return cls(PackedKind.CONTROL, channel.encode(), 0, content)

    @classmethod
    def of_event(cls, channel: Channel, event: bytes, operator: int = EVERY) -> Packed:
        """Pack a latency marker, as the event that carried it."""
        return cls(PackedKind.MARKER, channel.encode(), 0, event, operator)


def sort_packed(rows: Iterable[Packed]) -> list[Packed]:
    """Sort the rows of one step in the order of processing."""

    def order(row: Packed) -> tuple[int, ChannelOrder, int, int, bytes]:
        # By content, too: copies of one row that come from several tasks have one place.
        return _ORDER[row.kind], channel_order(row.channel), row.at, row.kind, row.payload

    return sorted(rows, key=order)


class PackedRows:
    """The records of a step, which are taken in order, from packed rows in the order of processing."""

    def __init__(self, items: Iterable[Packed], schema: pa.Schema) -> None:
        self._schema = schema
        self._with_places = schema.append(_PLACE)
        kinds = (PackedKind.ROWS, PackedKind.ROWS_WITH_PLACES)
        self._waiting = [item for item in items if item.kind in kinds][::-1]
        self._split: tuple[ChannelOrder, pa.RecordBatch] | None = None
        """The rest of a packed row, some records of which were taken."""

    def take(self, up_to: Place | None = None) -> list[pa.RecordBatch]:
        """Take the records before a place; by default all."""
        found: list[pa.RecordBatch] = []
        if self._split is not None:
            self._take_split(*self._split, up_to, found)
        while self._split is None and self._waiting:
            item = self._waiting[-1]
            channel = channel_order(item.channel)
            if up_to is not None and (channel, item.at) >= up_to:
                break
            self._waiting.pop()
            if item.kind == PackedKind.ROWS:
                found.append(item.rows(self._schema))
            else:
                self._take_split(channel, self._merge(item), up_to, found)
        return found

    def _merge(self, item: Packed) -> pa.RecordBatch:
        """The rows of a packed row, and of those of other tasks that are between them, by their places."""
        batches = [item.rows(self._with_places)]
        last = _last_place(batches[0])
        while self._waiting:
            other = self._waiting[-1]
            if other.kind != item.kind or other.channel != item.channel or other.at >= last:
                break
            batches.append(self._waiting.pop().rows(self._with_places))
            last = max(last, _last_place(batches[-1]))
        rows = concat_batches(batches)
        if len(batches) == 1:
            return rows
        return rows.take(np.argsort(rows.column(_PLACE.name).to_numpy(), kind="stable"))

    def _take_split(
        self, channel: ChannelOrder, rows: pa.RecordBatch, up_to: Place | None, found: list[pa.RecordBatch]
    ) -> None:
        """Take records of a packed row, and leave the rest."""
        count = rows.num_rows
        if up_to is not None and channel >= up_to[0]:
            places = rows.column(_PLACE.name).to_numpy()
            count = int(np.searchsorted(places, up_to[1])) if channel == up_to[0] else 0
        if count:
            found.append(rows.slice(0, count).select(self._schema.names))
        self._split = (channel, rows.slice(count)) if count < rows.num_rows else None


def _last_place(rows: pa.RecordBatch) -> int:
    place: int = rows.column(_PLACE.name)[-1].as_py()
    return place
