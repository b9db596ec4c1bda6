"""Python workers find what they need imported."""

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def _imported(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import sys  # noqa: PLC0415 - of the worker

    for _ in batches:
        found = sorted({"pandas", "flowcore.keygroups.folded", "flowcore.chains.task"} & {*sys.modules})
        yield pa.RecordBatch.from_pydict({"name": found})


def test_worker_is_forked_with_its_imports(spark: SparkSession) -> None:
    found = spark.range(0, 1, 1, 1).mapInArrow(_imported, "name STRING").toArrow()

    assert found["name"].to_pylist() == ["flowcore.chains.task", "flowcore.keygroups.folded", "pandas"]
