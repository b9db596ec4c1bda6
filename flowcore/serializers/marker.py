"""A latency marker's own bytes, the same among tagged elements and in events.

marked_ms (8), subtask (4), length of operator_id (1, unsigned), its UTF-8; integers are big-endian and
signed.
"""

from __future__ import annotations

from struct import Struct

from flowcore.elements import MAX_OPERATOR_ID_BYTES, LatencyMarker, LatencyMarkerEvent
from flowcore.serializers.refusal import refusal

__all__ = ["MAX_MARKER_BYTES", "pack_marker", "unpack_marker"]

_HEAD = Struct(">qiB")
MAX_MARKER_BYTES = _HEAD.size + MAX_OPERATOR_ID_BYTES
_ADVICE = "a latency marker was cut or changed on its way, or this is none; it is not counted"


def pack_marker(marker: LatencyMarker | LatencyMarkerEvent) -> bytes:
    """A marker's bytes."""
    operator_id = marker.operator_id.encode()
    return _HEAD.pack(marker.marked_ms, marker.subtask, len(operator_id)) + operator_id


def unpack_marker(data: bytes, where: str) -> tuple[int, str, int]:
    """Marked time, operator id and subtask from all of these bytes.

    Raises:
        SerializationError: Bytes are missing or left over, or a value is out of range.
    """
    if len(data) < _HEAD.size:
        raise refusal(
            where, f"has {len(data)} bytes of a latency marker, which needs {_HEAD.size + 1}", _ADVICE
        )
    marked_ms, subtask, size = _HEAD.unpack_from(data)
    if len(data) - _HEAD.size != size or not size:
        what = f"has {len(data) - _HEAD.size} bytes of operator id where its length says {size}"
        raise refusal(where, what if size else "has a latency marker without operator id", _ADVICE)
    if subtask < 0:
        raise refusal(where, f"has subtask {subtask} in a latency marker, which counts from 0", _ADVICE)
    try:
        return marked_ms, str(data[_HEAD.size :], "utf-8"), subtask
    except UnicodeDecodeError as error:
        raise refusal(where, f"has an operator id that is not UTF-8 ({error.reason})", _ADVICE) from error
