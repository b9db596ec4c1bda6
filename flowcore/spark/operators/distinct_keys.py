"""Distinct keys: where hardly two records share a key, records are grouped once, behind the shuffle.

Spark aggregates on both sides of a shuffle: before it, so that less is sent. Where each record has a key of
its own nothing gets less, and half of the work is for nothing. Spark 4.3 can leave the first half out, but
cannot tell where that is right; a sample of the keys can. One query is told by a repartitioning by the key in
front of the aggregate: Spark then makes one aggregate of both halves
(``spark.sql.execution.combineAdjacentAggregation``).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from flowcore.api.connectors import Csv, Json, Parquet
from flowcore.api.operators import Operator, Read, Select, WithColumns, upstream

__all__ = ["WORTH_BYTES", "by_key_first"]

WORTH_BYTES = 64 << 20
"""Of less than this the sample takes as long as it could save."""

_SAMPLE = 200_000
_MOST_REPEATED = 0.02
"""Of a sample: what two records of each key give, among 5,000,000 in any order."""

_log = logging.getLogger(__name__)


def by_key_first(operator: str, inputs: Sequence[tuple[Operator, DataFrame, Sequence[Column]]]) -> bool:
    """Whether records shall be sent to where their key is before any is aggregated.

    Only records that come straight from files are looked at: to make others twice would cost more.

    Args:
        operator: Who groups.
        inputs: What it groups: each operator, its output, and the key there.
    """
    if not all(_straight_from_files(node) for node, _, _ in inputs):
        return False
    if sum(_size_bytes(frame) for _, frame, _ in inputs) < WORTH_BYTES:
        return False
    repeated = [_repeated(frame, key) for _, frame, key in inputs]
    _log.info(
        "operator %r: of the first %s records of each input, these parts repeat a key: %s",
        operator, f"{_SAMPLE:,}", ", ".join(f"{part:.3f}" for part in repeated),
    )  # fmt: skip
    return max(repeated) <= _MOST_REPEATED


def _straight_from_files(node: Operator) -> bool:
    return all(
        isinstance(each, Select | WithColumns)
        or (isinstance(each, Read) and isinstance(each.source, Parquet | Csv | Json))
        for each in upstream(node)
    )


def _size_bytes(frame: DataFrame) -> int:
    """As Spark guesses it, from the size of files."""
    plan: Any = frame._jdf.queryExecution().optimizedPlan()  # noqa: SLF001 - PySpark does not show it
    return int(plan.stats().sizeInBytes())


def _repeated(frame: DataFrame, key: Sequence[Column]) -> float:
    """The part of a sample whose key was there already. Nothing of it comes to Python."""
    java: Any = frame.sparkSession._jvm  # noqa: SLF001
    sample = frame.select(F.xxhash64(*key))._jdf.takeAsList(_SAMPLE)  # noqa: SLF001
    distinct: int = java.java.util.HashSet(sample).size()
    return 1.0 - distinct / max(int(sample.size()), 1)
