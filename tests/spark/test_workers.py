"""Python workers: what they find imported, and in which environment they are asked for."""

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from flowcore.spark.operators import key_groups

pytestmark = pytest.mark.spark


def _imported(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import sys  # noqa: PLC0415 - of the worker

    for _ in batches:
        found = sorted({"pandas", "flowcore.windows.columnar.keyed", "flowcore.chains.task"} & {*sys.modules})
        yield pa.RecordBatch.from_pydict({"name": found})


def test_worker_is_forked_with_its_imports(spark: SparkSession) -> None:
    found = spark.range(0, 1, 1, 1).mapInArrow(_imported, "name STRING").toArrow()

    assert found["name"].to_pylist() == ["flowcore.chains.task", "flowcore.windows.columnar.keyed", "pandas"]


def test_environment_is_another_where_queries_are_told_apart(spark: SparkSession) -> None:
    """Who asks for workers at the same time reads the one that was there; it must not change meanwhile."""
    context, before = spark.sparkContext, spark.sparkContext.environment
    known = dict(before)

    with key_groups._environment(spark.range(1), OF="one"):
        assert context.environment == {**known, "OF": "one"}
        assert before == known

    assert context.environment is before
