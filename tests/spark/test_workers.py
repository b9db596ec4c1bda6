"""Modules that a Python worker has imported, and the environment of the request for it."""

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from flowcore.spark.operators.key_groups import worker_pool

pytestmark = pytest.mark.spark


def _imported(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import sys  # noqa: PLC0415 - runs in the worker

    for _ in batches:
        found = sorted({"pandas", "flowcore.windows.columnar.keyed", "flowcore.chains.task"} & {*sys.modules})
        yield pa.RecordBatch.from_pydict({"name": found})


def test_worker_is_forked_with_its_imports(spark: SparkSession) -> None:
    found = spark.range(0, 1, 1, 1).mapInArrow(_imported, "name STRING").toArrow()

    assert found["name"].to_pylist() == ["flowcore.chains.task", "flowcore.windows.columnar.keyed", "pandas"]


def _archives(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import sys  # noqa: PLC0415 - runs in the worker

    for _ in batches:
        found = [path for path in sys.path if "/pyspark/" in path]
        yield pa.RecordBatch.from_pydict({"name": pa.array(found, pa.string())})


def test_worker_reads_no_archives_of_spark(spark: SparkSession) -> None:
    """Spark's own packages are not in front of the installed ones."""
    found = spark.range(0, 1, 1, 1).mapInArrow(_archives, "name STRING").toArrow()

    assert found["name"].to_pylist() == []


def test_environment_is_replaced_while_workers_are_requested(spark: SparkSession) -> None:
    """Concurrent requests read the previous environment, which must not change meanwhile."""
    context, before = spark.sparkContext, spark.sparkContext.environment
    known = dict(before)

    with worker_pool(spark, "one"):
        assert context.environment == {"SPARK_SIMPLIFIED_TRACEBACK": "1", **known}
        assert before == known

    assert context.environment is before
