"""The JVM of a run of months does not keep what its earlier batches have executed."""

from __future__ import annotations

import time
from typing import Any

import pytest
from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_spark_forgets_the_executions_of_earlier_batches(spark: SparkSession) -> None:
    """Without its UI, too, Spark keeps the plans and metrics of the last ones: by default a thousand."""
    store: Any = spark._jsparkSession.sharedState().statusStore()
    for _ in range(40):
        spark.range(1).write.format("noop").mode("overwrite").save()

    deadline = time.monotonic() + 300
    while store.executionsCount() > 25:  # the last 20, and those that still run
        assert time.monotonic() < deadline, store.executionsCount()
        time.sleep(0.1)
