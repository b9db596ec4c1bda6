"""The state of a buffer: what is held back, and in which order does it leave?"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from flowcore.elements import LatencyMarker, Record, StreamElement, Watermark, WatermarkStatus

__all__ = ["Buffer", "Released", "flush", "hold", "hold_record"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

Released = tuple[StreamElement[V], ...]
"""What goes downstream now, in order."""


@dataclass(slots=True)
class Buffer(Generic[K, V]):
    """What is held back. The functions of this package change it in place.

    Attributes:
        records: The latest record of each key, the one that came last at the end.
        held: The latest watermark and the latest status, the one that came last at the end.
        markers: The earliest latency marker of each source subtask.
        last_flush_ms: The clock at the last flush of any kind, also of an empty buffer.
        waiting_since_ms: The clock when the first of the records came, None while there is none.
        backlog: The records that come are history.
    """

    records: dict[K, Record[V]] = field(default_factory=dict)
    held: dict[type[Watermark | WatermarkStatus], Watermark | WatermarkStatus] = field(default_factory=dict)
    markers: dict[tuple[str, int], LatencyMarker] = field(default_factory=dict)
    last_flush_ms: int = 0
    waiting_since_ms: int | None = None
    backlog: bool = False


def hold_record(buffer: Buffer[K, V], key: K, record: Record[V], now_ms: int) -> None:
    """Hold a record in place of any other of its key. A deletion is a record like any other."""
    if buffer.waiting_since_ms is None:
        buffer.waiting_since_ms = now_ms
    buffer.records.pop(key, None)
    buffer.records[key] = record


def hold(buffer: Buffer[K, V], element: Watermark | WatermarkStatus | LatencyMarker) -> None:
    """Hold a watermark or a status in place of any other, a marker unless an earlier one is held."""
    if isinstance(element, LatencyMarker):
        source = (element.operator_id, element.subtask)
        earliest = buffer.markers.setdefault(source, element)
        if element.marked_ms < earliest.marked_ms:
            buffer.markers[source] = element
    else:
        buffer.held.pop(type(element), None)
        buffer.held[type(element)] = element


def flush(buffer: Buffer[K, V], now_ms: int) -> Released[V]:
    """Let everything go, and leave the buffer empty.

    Call it also when a buffer upstream has been flushed, so that delays do not add up along a chain.

    Returns:
        Records that the held watermark covers; watermark and status, as they came; the other records;
        markers.
    """
    watermark = buffer.held.get(Watermark)
    covered: list[Record[V]] = []
    others: list[Record[V]] = []
    for record in buffer.records.values():
        is_covered = (
            isinstance(watermark, Watermark)
            and record.timestamp_ms is not None
            and record.timestamp_ms <= watermark.timestamp_ms
        )
        (covered if is_covered else others).append(record)
    released = (*covered, *buffer.held.values(), *others, *buffer.markers.values())
    buffer.records.clear()
    buffer.held.clear()
    buffer.markers.clear()
    buffer.last_flush_ms = now_ms
    buffer.waiting_since_ms = None
    return released
