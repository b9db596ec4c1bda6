"""Generators: what do the records of one partition say about event time?

State is the newest time that counts: of any record, of markers only, or what a user's generator has said. It
can be advanced record by record or by a whole column, with the same result; since only the newest counts,
parts of a column may also be taken in any order. A user's function alone decides for itself what a batch
says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

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

__all__ = ["Seen", "TimeColumn", "advance", "advance_batch", "watermark_ms"]

TimeColumn: TypeAlias = "pa.Array[Any] | pa.ChunkedArray[Any] | npt.NDArray[Any]"
"""A column of a batch, of Arrow or of NumPy."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a partition has shown: the newest time that counts, None before the first."""

    newest_ms: int | None = None


def advance(
    generator: Generator,
    seen: Seen,
    timestamp_ms: int | None,
    *,
    marker: bool = False,
    said_ms: int | None = None,
) -> Seen:
    """Take one record.

    Args:
        generator: What counts.
        seen: What was seen before it.
        timestamp_ms: The record's timestamp; one without says nothing.
        marker: The expression of a punctuated strategy is true for it.
        said_ms: The value of the expression of a periodic strategy for it.
    """
    match generator:
        case NoWatermarks():
            return seen
        case Punctuated() if not marker:
            return seen
        case Periodic():
            return _newest(seen, said_ms)
        case PeriodicFunction(function=function):
            return _newest(seen, _said(function, pa.array([timestamp_ms], pa.int64())))
        case _:
            return _newest(seen, timestamp_ms)


def advance_batch(
    generator: Generator,
    seen: Seen,
    timestamps_ms: TimeColumn,
    markers: TimeColumn | None = None,
    said_ms: TimeColumn | None = None,
) -> Seen:
    """Take a column of records: the same as `advance` with each of them.

    Args:
        generator: What counts.
        seen: What was seen before them.
        timestamps_ms: Their timestamps, int64; null for records without one.
        markers: For a punctuated strategy, the value of its expression for each; null is false, and
            so is leaving them out.
        said_ms: For a periodic strategy, the value of its expression for each, int64; null says nothing.
    """
    match generator:
        case NoWatermarks():
            return seen
        case Punctuated():
            if markers is None:
                return seen
            timestamps_ms = pc.filter(_arrow(timestamps_ms, pa.int64()), _arrow(markers, pa.bool_()))
        case Periodic():
            if said_ms is None:
                return seen
            timestamps_ms = said_ms
        case PeriodicFunction(function=function):
            return _newest(seen, _said(function, _arrow(timestamps_ms, pa.int64())))
    return _newest(seen, pc.max(_arrow(timestamps_ms, pa.int64())).as_py())


def watermark_ms(generator: Generator, seen: Seen) -> int | None:
    """The watermark of what was seen, None if there is none yet."""
    if seen.newest_ms is None:
        return None
    match generator:
        case BoundedOutOfOrderness(delay_ms=delay_ms):
            return max(seen.newest_ms - delay_ms - 1, MIN_TIMESTAMP_MS)
        case _:
            return seen.newest_ms


def _said(function: Callable[[Any], int | None], timestamps_ms: Any) -> int | None:
    if not len(timestamps_ms):
        return None
    said = function(timestamps_ms)
    if said is None or (isinstance(said, int) and MIN_TIMESTAMP_MS <= said <= MAX_TIMESTAMP_MS):
        return said
    msg = (
        f"the generator of watermarks {function!r} returned {said!r}, which is no time: nothing could wait "
        "for it; return int milliseconds since 1970, or None"
    )
    raise FunctionError(msg)


def _newest(seen: Seen, timestamp_ms: int | None) -> Seen:
    if timestamp_ms is None or (seen.newest_ms is not None and timestamp_ms <= seen.newest_ms):
        return seen
    return Seen(timestamp_ms)


def _arrow(column: TimeColumn, kind: pa.DataType) -> pa.Array[Any] | pa.ChunkedArray[Any]:
    return pa.array(column, kind) if isinstance(column, np.ndarray) else column
