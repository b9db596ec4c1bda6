"""The watermarks of partitions, from the newest time of their records that counts.

That is the newest timestamp of any record, of markers only, or the newest value of a user's generator.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from flowcore.elements import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from flowcore.errors import FunctionError
from flowcore.watermarks.merge import Times
from flowcore.watermarks.strategies import BoundedOutOfOrderness, Generator

__all__ = ["call_generator", "watermarks_ms"]


def watermarks_ms(generator: Generator, newest_ms: Times) -> Times:
    """The watermarks of partitions; the smallest timestamp before the first time that counts."""
    match generator:
        case BoundedOutOfOrderness(delay_ms=delay_ms):
            behind_ms = delay_ms + 1
            return np.maximum(newest_ms, MIN_TIMESTAMP_MS + behind_ms) - behind_ms
        case _:
            return newest_ms


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
