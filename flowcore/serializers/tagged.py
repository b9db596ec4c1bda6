"""The tagged form of a stream element: one tag byte, then the content of the table below.

Integers are big-endian and signed. A value has no length: an element is a whole message, and its value ends
with the message.

=====  ==================  ==========================================================================
tag    element             what follows
=====  ==================  ==========================================================================
0      record, timestamp   timestamp_ms (8), value
1      record, none        value
2      watermark           timestamp_ms (8)
3      latency marker      marked_ms (8), subtask (4), length of operator_id (1, unsigned), its UTF-8
4      watermark status    0 active, 1 idle (1)
5      record attributes   0 no backlog, 1 backlog (1)
6      end of input
=====  ==================  ==========================================================================

A record takes one byte more than its value, or nine with a timestamp.
"""

from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import Generic, assert_never

from flowcore.elements import (
    EndOfInput,
    LatencyMarker,
    Record,
    RecordAttributes,
    StreamElement,
    Watermark,
    WatermarkStatus,
)
from flowcore.errors import SerializationError
from flowcore.serializers.events import pack_marker, unpack_marker
from flowcore.serializers.formats.value_format import V, ValueFormat

__all__ = ["TIMESTAMP_BYTES", "Tag", "TaggedSerializer"]

_TIME = Struct(">bq")
TIMESTAMP_BYTES = 8
_SHOWN_BYTES = 24


class Tag(IntEnum):
    """The first byte of a tagged element."""

    RECORD_WITH_TIMESTAMP = 0
    RECORD = 1
    WATERMARK = 2
    LATENCY_MARKER = 3
    WATERMARK_STATUS = 4
    RECORD_ATTRIBUTES = 5
    END_OF_INPUT = 6


@dataclass(frozen=True, slots=True)
class TaggedSerializer(Generic[V]):
    """Any stream element to bytes and back.

    Args:
        operator: Name of the operator, for error messages.

    >>> from flowcore.serializers.formats import RawFormat
    >>> TaggedSerializer(RawFormat(), "clicks").encode(Watermark(258)).hex(" ")
    '02 00 00 00 00 00 00 01 02'
    """

    value_format: ValueFormat[V]
    operator: str = "unnamed"

    def encode(self, element: StreamElement[V]) -> bytes:
        """One element as bytes.

        Raises:
            SerializationError: The value format refuses the value.
        """
        match element:
            case Record():
                return self._record(element)
            case Watermark():
                return _TIME.pack(Tag.WATERMARK, element.timestamp_ms)
            case LatencyMarker():
                return bytes((Tag.LATENCY_MARKER,)) + pack_marker(element)
            case WatermarkStatus():
                return bytes((Tag.WATERMARK_STATUS, element.idle))
            case RecordAttributes():
                return bytes((Tag.RECORD_ATTRIBUTES, element.backlog))
            case EndOfInput():
                return bytes((Tag.END_OF_INPUT,))
            case _:
                assert_never(element)

    def decode(self, data: bytes, where: str | None = None) -> StreamElement[V]:
        """One element from all of these bytes.

        Args:
            where: Coordinates for the error message, such as ``clicks[3]@812``.

        Raises:
            SerializationError: The tag is unknown, bytes are missing or left over, or the value format
                refuses the value.
        """
        where = where or f"an element of operator {self.operator!r}"
        if not data:
            raise SerializationError.at(where, "has 0 bytes, a tagged element needs at least 1", _HINT)
        match data[0]:
            case Tag.RECORD_WITH_TIMESTAMP:
                timestamp_ms = _time(data, where, exact=False)
                return Record(self._value(data[_TIME.size :], where), timestamp_ms)
            case Tag.RECORD:
                return Record(self._value(data[1:], where))
            case Tag.WATERMARK:
                return Watermark(_time(data, where, exact=True))
            case Tag.LATENCY_MARKER:
                return LatencyMarker(*unpack_marker(data[1:], where))
            case Tag.WATERMARK_STATUS:
                return WatermarkStatus(_flag(data, where))
            case Tag.RECORD_ATTRIBUTES:
                return RecordAttributes(_flag(data, where))
            case Tag.END_OF_INPUT if len(data) == 1:
                return EndOfInput()
            case Tag.END_OF_INPUT:
                raise SerializationError.at(where, f"has {len(data)} bytes, the end of input has 1", _HINT)
            case unknown:
                shown = data[:_SHOWN_BYTES].hex(" ") + (" …" if len(data) > _SHOWN_BYTES else "")
                what = f"begins with tag {unknown}, the tags are 0 to {max(Tag)} ({shown})"
                raise SerializationError.at(where, what, _HINT)

    def _record(self, record: Record[V]) -> bytes:
        try:
            value = self.value_format.encode(record.value)
        except SerializationError as error:
            msg = f"a record of operator {self.operator!r} cannot be written: {error}"
            raise SerializationError(msg) from error
        if record.timestamp_ms is None:
            return bytes((Tag.RECORD,)) + value
        return _TIME.pack(Tag.RECORD_WITH_TIMESTAMP, record.timestamp_ms) + value

    def _value(self, data: bytes, where: str) -> V:
        try:
            return self.value_format.decode(data)
        except SerializationError as error:
            msg = f"{where} cannot be read: {error}"
            raise SerializationError(msg) from error


_HINT = (
    "it was cut, or written by a flow without timestamps or by another program; read a topic of "
    'plain values with elements="plain"'
)


def _time(data: bytes, where: str, *, exact: bool) -> int:
    if len(data) < _TIME.size or (exact and len(data) > _TIME.size):
        name = Tag(data[0]).name.lower().replace("_", " ")
        least = "" if exact else "at least "
        raise SerializationError.at(
            where, f"has {len(data)} bytes, a tagged {name} has {least}{_TIME.size}", _HINT
        )
    return int(_TIME.unpack_from(data)[1])


def _flag(data: bytes, where: str) -> bool:
    name = Tag(data[0]).name.lower().replace("_", " ")
    if len(data) != 2:  # noqa: PLR2004 - tag and flag
        raise SerializationError.at(where, f"has {len(data)} bytes, a tagged {name} has 2", _HINT)
    if data[1] > 1:
        raise SerializationError.at(where, f"holds {data[1]} where a {name} has 0 or 1", _HINT)
    return bool(data[1])
