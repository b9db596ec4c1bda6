"""Generators: what do the records of one partition say about event time?

State is the newest timestamp that counts: of any record, or of markers only. It can be advanced record
by record or by a whole column, with the same result; since only the newest counts, parts of a column
may also be taken in any order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from flowcore.elements import MIN_TIMESTAMP_MS
from flowcore.watermarks.strategies import BoundedOutOfOrderness, Generator, NoWatermarks, Punctuated

__all__ = ["Column", "Seen", "advance", "advance_batch", "watermark_ms"]

Column: TypeAlias = "pa.Array[Any] | pa.ChunkedArray[Any] | npt.NDArray[Any]"
"""A column of a batch, of Arrow or of NumPy."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a partition has shown: the newest timestamp that counts, None before the first."""

    newest_ms: int | None = None


def advance(generator: Generator, seen: Seen, timestamp_ms: int | None, *, marker: bool = False) -> Seen:
    """Take one record.

    Args:
        generator: What counts.
        seen: What was seen before it.
        timestamp_ms: The record's timestamp; one without says nothing.
        marker: The expression of a punctuated strategy is true for it.
    """
    match generator:
        case NoWatermarks():
            return seen
        case Punctuated() if not marker:
            return seen
        case _:
            return _newest(seen, timestamp_ms)


def advance_batch(
    generator: Generator, seen: Seen, timestamps_ms: Column, markers: Column | None = None
) -> Seen:
    """Take a column of records: the same as `advance` with each of them.

    Args:
        generator: What counts.
        seen: What was seen before them.
        timestamps_ms: Their timestamps, int64; null for records without one.
        markers: For a punctuated strategy, the value of its expression for each; null is false, and
            so is leaving them out.
    """
    match generator:
        case NoWatermarks():
            return seen
        case Punctuated():
            if markers is None:
                return seen
            timestamps_ms = pc.filter(_arrow(timestamps_ms, pa.int64()), _arrow(markers, pa.bool_()))
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


def _newest(seen: Seen, timestamp_ms: int | None) -> Seen:
    if timestamp_ms is None or (seen.newest_ms is not None and timestamp_ms <= seen.newest_ms):
        return seen
    return Seen(timestamp_ms)


def _arrow(column: Column, kind: pa.DataType) -> pa.Array[Any] | pa.ChunkedArray[Any]:
    return pa.array(column, kind) if isinstance(column, np.ndarray) else column
