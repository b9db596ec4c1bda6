"""Latency markers as bytes: among tagged elements, and as runtime events in a companion topic.

The bytes of a marker, integers big-endian and signed: marked_ms (8), subtask (4), length of operator_id
(1, unsigned), its UTF-8.

An event is a message of the companion topic, never part of a record, so that value-only streams can have
latency markers too: version (1) = 1, kind (1) = 1 for a latency marker, then the marker; at most 270 bytes.
"""

from struct import Struct

from flowcore.elements import MAX_OPERATOR_ID_BYTES, LatencyMarker, LatencyMarkerEvent
from flowcore.errors import SerializationError

__all__ = [
    "EVENT_VERSION",
    "LATENCY_MARKER_EVENT",
    "MAX_EVENT_BYTES",
    "LatencyMarkerEventSerializer",
    "pack_marker",
    "unpack_marker",
]

EVENT_VERSION = 1
LATENCY_MARKER_EVENT = 1
_HEAD = bytes((EVENT_VERSION, LATENCY_MARKER_EVENT))
_MARKER_HEAD = Struct(">qiB")
MAX_EVENT_BYTES = len(_HEAD) + _MARKER_HEAD.size + MAX_OPERATOR_ID_BYTES
_CUT = "a latency marker was cut or changed, or this is not a marker; it is not counted"
_NEWER = "it was written by a newer flowcore or by another program; update this one"


class LatencyMarkerEventSerializer:
    """Latency marker events to bytes and back.

    >>> LatencyMarkerEventSerializer().encode(LatencyMarkerEvent(1500, "op", 3)).hex(" ")
    '01 01 00 00 00 00 00 00 05 dc 00 00 00 03 02 6f 70'
    """

    __slots__ = ()

    def encode(self, event: LatencyMarkerEvent) -> bytes:
        return _HEAD + pack_marker(event)

    def decode(self, data: bytes, where: str | None = None) -> LatencyMarkerEvent:
        """One event from all of these bytes.

        Args:
            where: Coordinates for the error message, such as ``bids.events[0]@12``.

        Raises:
            SerializationError: The version or kind is unknown, bytes are missing or left over, or a value is
                out of range.
        """
        where = where or "an event"
        if not len(_HEAD) <= len(data) <= MAX_EVENT_BYTES:
            what = f"has {len(data)} bytes, an event has {len(_HEAD)} to {MAX_EVENT_BYTES}"
            advice = "it was cut, or written by another program; it is not counted"
            raise SerializationError.at(where, what, advice)
        version, kind = data[:2]
        if version != EVENT_VERSION:
            what = f"has version {version}, this flowcore reads version {EVENT_VERSION}"
            raise SerializationError.at(where, what, _NEWER)
        if kind != LATENCY_MARKER_EVENT:
            what = f"is an event of kind {kind}, this flowcore reads kind {LATENCY_MARKER_EVENT}"
            raise SerializationError.at(where, what, _NEWER)
        return LatencyMarkerEvent(*unpack_marker(data[len(_HEAD) :], where))


def pack_marker(marker: LatencyMarker | LatencyMarkerEvent) -> bytes:
    operator_id = marker.operator_id.encode()
    return _MARKER_HEAD.pack(marker.marked_ms, marker.subtask, len(operator_id)) + operator_id


def unpack_marker(data: bytes, where: str) -> tuple[int, str, int]:
    """Marked time, operator id and subtask from all of these bytes.

    Raises:
        SerializationError: Bytes are missing or left over, or a value is out of range.
    """
    if len(data) < _MARKER_HEAD.size:
        raise SerializationError.at(
            where, f"has {len(data)} bytes of a latency marker, which needs {_MARKER_HEAD.size + 1}", _CUT
        )
    marked_ms, subtask, size = _MARKER_HEAD.unpack_from(data)
    if len(data) - _MARKER_HEAD.size != size or not size:
        what = f"has {len(data) - _MARKER_HEAD.size} bytes of operator id where its length says {size}"
        raise SerializationError.at(where, what if size else "has a latency marker without operator id", _CUT)
    if subtask < 0:
        raise SerializationError.at(
            where, f"has subtask {subtask} in a latency marker, which counts from 0", _CUT
        )
    try:
        return marked_ms, str(data[_MARKER_HEAD.size :], "utf-8"), subtask
    except UnicodeDecodeError as error:
        raise SerializationError.at(
            where, f"has an operator id that is not UTF-8 ({error.reason})", _CUT
        ) from error
