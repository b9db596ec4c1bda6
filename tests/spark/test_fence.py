"""The JVM stops queries whose leases Python does not renew."""

from __future__ import annotations

import time

import pytest
from pyspark.sql import SparkSession

from flowcore.errors import RunError
from flowcore.spark.checkpoint.lease import STALE_S, running_s
from flowcore.spark.run.fence import Fence
from tests.waiting import wait_until

pytestmark = pytest.mark.spark


def test_queries_are_stopped_when_the_deadline_has_passed(spark: SparkSession) -> None:
    """A renewal keeps them; an earlier start of a query is forgotten."""
    rates = spark.readStream.format("rate").load().writeStream.format("noop")
    with Fence(spark) as fence:
        first, second = rates.start(), rates.start()
        fence.watch("q", first)
        fence.watch("q", second)
        fence.extend(running_s())
        time.sleep(0.5)
        fence.check()
        assert second.isActive

        fence.extend(running_s() - STALE_S)

        wait_until(lambda: not second.isActive)
        with pytest.raises(RunError, match=r"were not renewed for 25 s.*nothing is lost"):
            fence.check()
        assert first.isActive
        first.stop()
    with Fence(spark) as another:
        another.extend(running_s())
        another.check()


def test_query_that_starts_after_the_deadline_is_stopped(spark: SparkSession) -> None:
    """Its start may have begun before the deadline."""
    with Fence(spark) as fence:
        fence.extend(running_s() - STALE_S)
        wait_until(lambda: _is_expired(fence))
        late = spark.readStream.format("rate").load().writeStream.format("noop").start()

        fence.watch("q", late)

        wait_until(lambda: not late.isActive)


def _is_expired(fence: Fence) -> bool:
    try:
        fence.check()
    except RunError:
        return True
    return False
