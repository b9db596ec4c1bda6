"""The logic of a buffer behind an operator: what does each thing that happens let go?

What happens is a record, another stream element, a look at the clock, or input that has nothing to offer.
Each changes the buffer and returns what goes downstream, in order.

An interval counts from the last flush of any kind. One that finds the buffer empty is a flush too, so the
first record after a quiet time waits like any other.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeVar, assert_never, cast

from flowcore.elements import (
    EndOfInput,
    LatencyMarker,
    Record,
    RecordAttributes,
    Watermark,
    WatermarkStatus,
)
from flowcore.flush.buffer import Buffer, Released, flush, hold, hold_record
from flowcore.flush.config import BufferOutput

__all__ = ["Control", "control", "input_idle", "is_due", "look", "record", "start"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

Control = Watermark | WatermarkStatus | LatencyMarker | RecordAttributes | EndOfInput
"""Every stream element but a record."""


def start(now_ms: int = 0) -> Buffer[K, V]:
    """An empty buffer, whose first interval begins now."""
    return Buffer(last_flush_ms=now_ms)


def record(config: BufferOutput, buffer: Buffer[K, V], key: K, latest: Record[V], now_ms: int) -> Released[V]:
    """Take one record of the operator's output.

    Args:
        config: How to buffer.
        buffer: What is held back; it is changed.
        key: The record's key; without meaning if the output is not keyed.
        latest: The record, a retraction or a deletion among them.
        now_ms: The clock.
    """
    if not config.holds:
        return (latest,)
    hold_record(buffer, key if config.keyed else cast("K", None), latest, now_ms)
    if config.full_at(len(buffer.records)):
        return flush(buffer, now_ms)
    return look(config, buffer, now_ms)


def control(config: BufferOutput, buffer: Buffer[K, V], element: Control, now_ms: int) -> Released[V]:
    """Take anything but a record: it passes an empty buffer, and never a record that it speaks of.

    A change of backlog parts the records before it from those after it, so they leave first. At the end of
    input everything leaves.
    """
    match element:
        case _ if not config.holds:
            return (element,)
        case EndOfInput():
            return (*flush(buffer, now_ms), element)
        case RecordAttributes(backlog=backlog):
            if backlog == buffer.backlog:
                return (element,)
            buffer.backlog = backlog
            return (*flush(buffer, now_ms), element)
        case Watermark() | WatermarkStatus() | LatencyMarker():
            if not buffer.records:
                return (element,)
            hold(buffer, element)
            return look(config, buffer, now_ms)
        case _:
            assert_never(element)


def look(config: BufferOutput, buffer: Buffer[K, V], now_ms: int) -> Released[V]:
    """Look at the clock, and flush if that is due."""
    return flush(buffer, now_ms) if is_due(config, buffer, now_ms) else ()


def is_due(config: BufferOutput, buffer: Buffer[K, V], now_ms: int) -> bool:
    """Whether the interval has passed. A clock that was put back is not waited for."""
    interval_ms = config.interval_ms_in(backlog=buffer.backlog)
    return interval_ms is not None and not 0 <= now_ms - buffer.last_flush_ms < interval_ms


def input_idle(config: BufferOutput, buffer: Buffer[K, V], now_ms: int) -> Released[V]:
    """The input has nothing available now, so waiting would save nothing, in backlog or out of it."""
    return flush(buffer, now_ms) if config.holds else ()
