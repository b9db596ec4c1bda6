"""Watermarks: strategies, and their evaluation for partitions, sources and queries.

A strategy is declared with a source. `generators` evaluates it for the records of a partition, `merge`
combines partitions, and `tracking` does both for a source and finds its idle partitions.

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
