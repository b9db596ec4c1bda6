"""Watermarks: strategies, and their evaluation for partitions, sources and queries.

A strategy is declared with a source. `generated` evaluates it for the partitions of the source and finds idle
ones, `arriving` follows elements that arrive, and `merge` combines channels.

Times are integer milliseconds since the epoch, UTC. Processing time is passed in.
"""

from flowcore.watermarks.strategies import (
    WatermarkStrategy,
    bounded_out_of_orderness,
    monotonous,
    no_watermarks,
    periodic,
    punctuated,
)

__all__ = [
    "WatermarkStrategy",
    "bounded_out_of_orderness",
    "monotonous",
    "no_watermarks",
    "periodic",
    "punctuated",
]
