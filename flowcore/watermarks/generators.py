"""The watermark of one partition, from its records.

The state is the newest time that counts: of any record, of markers only, or as a user's expression computes
it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from flowcore.elements import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from flowcore.errors import FunctionError
from flowcore.watermarks.strategies import (
    BoundedOutOfOrderness,
    Generator,
    NoWatermarks,
    Periodic,
    PeriodicFunction,
    Punctuated,
)

__all__ = ["GeneratorState", "advance", "call_generator", "watermark_ms"]


@dataclass(frozen=True, slots=True)
class GeneratorState:
    """The newest time of a partition that counts, None before the first."""

    newest_ms: int | None = None


def advance(
    generator: Generator,
    seen: GeneratorState,
    timestamp_ms: int | None,
    *,
    marker: bool = False,
    expression_ms: int | None = None,
) -> GeneratorState:
    """Take one record.

    Args:
        generator: Decides which time counts.
        seen: The state before.
        timestamp_ms: The record's timestamp, if any.
        marker: The expression of a punctuated strategy is true for the record.
        expression_ms: The value of a periodic strategy's expression for the record, or of its function for
            the batch of the record.
    """
    match generator:
        case NoWatermarks():
            return seen
        case Punctuated() if not marker:
            return seen
        case PeriodicFunction(function=function) if expression_ms is None and timestamp_ms is not None:
            time_ms = call_generator(function, pa.array([timestamp_ms], pa.int64()))
        case Periodic() | PeriodicFunction():
            time_ms = expression_ms
        case _:
            time_ms = timestamp_ms
    if time_ms is None or (seen.newest_ms is not None and time_ms <= seen.newest_ms):
        return seen
    return GeneratorState(time_ms)


def watermark_ms(generator: Generator, seen: GeneratorState) -> int | None:
    """The watermark, None before the first."""
    if seen.newest_ms is None:
        return None
    match generator:
        case BoundedOutOfOrderness(delay_ms=delay_ms):
            return max(seen.newest_ms - delay_ms - 1, MIN_TIMESTAMP_MS)
        case _:
            return seen.newest_ms


def call_generator(function: Callable[[Any], int | None], timestamps_ms: Any) -> int | None:
    """Call a user's generator with the timestamps of a batch of one partition.

    Raises:
        FunctionError: It returned something that is not a time.
    """
    time_ms = function(timestamps_ms)
    if time_ms is None or (isinstance(time_ms, int) and MIN_TIMESTAMP_MS <= time_ms <= MAX_TIMESTAMP_MS):
        return time_ms
    msg = (
        f"the generator of watermarks {function!r} returned {time_ms!r}, which is not a time: event time "
        "could not advance; return int milliseconds since 1970, or None"
    )
    raise FunctionError(msg)
