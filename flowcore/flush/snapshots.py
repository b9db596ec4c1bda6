"""Snapshots: how is a buffer written down, and read back after a restart?

As plain data that JSON can hold, with its version. What is restored behaves as what was written: nothing is
lost, nothing leaves twice, and the interval goes on counting from the same flush.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

from flowcore.elements import LatencyMarker, Record, Watermark, WatermarkStatus
from flowcore.errors import ElementError, SerializationError
from flowcore.flush.buffer import Buffer
from flowcore.flush.plain import check_value, key_of, written_key

__all__ = ["FORMAT", "VERSION", "restore", "snapshot"]

FORMAT = "flowcore.flush.buffer"
VERSION = 1

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def snapshot(buffer: Buffer[K, V], encode: Callable[[V], Any] = check_value) -> dict[str, Any]:
    """Write a buffer down.

    Args:
        buffer: It is not changed, and later changes to it do not change what is returned.
        encode: Makes a record's value plain data.

    Raises:
        SerializationError: A key or a value is not plain.
    """
    return {
        "format": FORMAT,
        "version": VERSION,
        "last_flush_ms": buffer.last_flush_ms,
        "waiting_since_ms": buffer.waiting_since_ms,
        "backlog": buffer.backlog,
        "records": [
            [written_key(key), encode(record.value), record.timestamp_ms]
            for key, record in buffer.records.items()
        ],
        "held": [
            {"watermark": element.timestamp_ms} if isinstance(element, Watermark) else {"idle": element.idle}
            for element in buffer.held.values()
        ],
        "markers": [
            [marker.operator_id, marker.subtask, marker.marked_ms] for marker in buffer.markers.values()
        ],
    }


def restore(written: Mapping[str, Any], decode: Callable[[Any], V] = check_value) -> Buffer[Any, V]:
    """The buffer that was written so.

    Args:
        written: What `snapshot` returned, also after a way through JSON.
        decode: What undoes ``encode``.

    Raises:
        SerializationError: It is no snapshot of a buffer, or one of a later version.
    """
    found = (written.get("format"), written.get("version"))
    if found != (FORMAT, VERSION):
        msg = (
            f"a snapshot of format {found[0]!r} and version {found[1]!r} is not one of {FORMAT!r} and "
            f"version {VERSION}: records held back in it would be lost; restore it with the "
            f"flowcore that wrote it"
        )
        raise SerializationError(msg)
    try:
        return _read(written, decode)
    except (KeyError, TypeError, ValueError, ElementError) as error:
        msg = (
            f"a snapshot of a buffer is damaged ({type(error).__name__}: {error}): records held back in it "
            f"would be lost; restore an earlier one"
        )
        raise SerializationError(msg) from error


def _read(written: Mapping[str, Any], decode: Callable[[Any], V]) -> Buffer[Any, V]:
    held = [_held(element) for element in written["held"]]
    markers = [
        LatencyMarker(marked_ms, operator_id, subtask)
        for operator_id, subtask, marked_ms in written["markers"]
    ]
    return Buffer(
        records={
            key_of(key): Record(decode(value), timestamp_ms)
            for key, value, timestamp_ms in written["records"]
        },
        held={type(element): element for element in held},
        markers={(marker.operator_id, marker.subtask): marker for marker in markers},
        last_flush_ms=written["last_flush_ms"],
        waiting_since_ms=written["waiting_since_ms"],
        backlog=written["backlog"],
    )


def _held(written: Mapping[str, Any]) -> Watermark | WatermarkStatus:
    if "watermark" in written:
        return Watermark(written["watermark"])
    return WatermarkStatus(written["idle"])
