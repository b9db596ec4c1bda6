"""Detect inputs of an aggregate whose keys are mostly distinct.

Spark aggregates on both sides of a shuffle, to send less. If each record has its own key, the first half only
costs time. Spark 4.3 can leave it out, but cannot detect when that pays; a sample of the keys can. If the
input is repartitioned by the key before the aggregate, Spark combines both halves
(``spark.sql.execution.combineAdjacentAggregation``).
"""

import logging
from collections.abc import Sequence
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from flowcore.api.connectors import Files
from flowcore.api.operators import Operator, Read, Select, WithColumns

__all__ = ["WORTH_BYTES", "has_distinct_keys"]

WORTH_BYTES = 64 << 20
"""For less than this the sample takes as long as it can save."""

_SAMPLE = 200_000
_MOST_REPEATED = 0.02
"""The part of a sample that repeats a key if 5,000,000 records in any order have two of each key."""

_log = logging.getLogger(__name__)


def has_distinct_keys(operator: str, inputs: Sequence[tuple[Operator, DataFrame, Sequence[Column]]]) -> bool:
    """Whether hardly any two records share a key, so that records should be sent to their key first.

    It samples only records that native projections read from files; computing others twice costs more.

    Each input is an operator, its output, and the key there; without a key all records are one group.
    """
    if not all(keys and _straight_from_files(node) for node, _, keys in inputs):
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
        isinstance(each, Select | WithColumns) or (isinstance(each, Read) and isinstance(each.source, Files))
        for each in node.upstream
    )


def _size_bytes(frame: DataFrame) -> int:
    """Spark's estimate from the size of files."""
    plan: Any = frame._jdf.queryExecution().optimizedPlan()  # noqa: SLF001 - not in PySpark
    return int(plan.stats().sizeInBytes())


def _repeated(frame: DataFrame, key: Sequence[Column]) -> float:
    """The part of a sample that repeats a key; the sample stays in the JVM."""
    java: Any = frame.sparkSession._jvm  # noqa: SLF001
    sample = frame.select(F.xxhash64(*key))._jdf.takeAsList(_SAMPLE)  # noqa: SLF001
    distinct: int = java.java.util.HashSet(sample).size()
    return 1.0 - distinct / max(int(sample.size()), 1)
