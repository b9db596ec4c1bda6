"""Watermarks: how far has event time come, and which inputs are waited for?

A strategy is declared with a source; what it means is pure logic over plain state. Three questions,
one module each: what a partition's records say (`generators`), whether a partition still says
anything (`idleness`), and what all partitions say together (`merge`); `tracking` puts them together.

Times are integer milliseconds since the epoch, UTC. The clock is passed in.
"""

from __future__ import annotations

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
