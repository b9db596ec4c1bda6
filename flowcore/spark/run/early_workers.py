"""Start the Python workers of live queries while the queries are compiled.

Spark starts a pool of workers with the first task that asks for it, and a pool imports its modules first. The
first batch of a query with state would wait for two of them, one after the other: packing has one, and each
exchange has its own. Only on this machine: on a cluster, any executor may run the first task.
"""

import logging
from collections.abc import Sequence
from contextlib import nullcontext
from threading import Thread

from pyspark.sql import DataFrame, SparkSession

from flowcore.planner.model import LiveQuery
from flowcore.spark.checkpoint.plan_file import checkpoint_folder
from flowcore.spark.context import Context
from flowcore.spark.operators.exchanges import name_exchange
from flowcore.spark.operators.key_groups import worker_pool

__all__ = ["start_workers"]

_log = logging.getLogger(__name__)


def start_workers(queries: Sequence[LiveQuery], context: Context) -> None:
    """Begin to start the pools that these queries will ask for; does not wait for them."""
    pools = _find_pools(queries, context)
    if pools and (context.spark.sparkContext.master or "").startswith("local"):
        # Only jobs run in the thread: functions of a frame that is made meanwhile would get a pool's name.
        frames = [_prepare(pool, context.spark) for pool in pools]
        Thread(target=_start, args=(frames,), name="flowcore-workers", daemon=True).start()


def _find_pools(queries: Sequence[LiveQuery], context: Context) -> list[str | None]:
    """The pools' names; None is the pool of all functions outside of exchanges."""
    found: list[str | None] = []
    for query in queries:
        checkpoint = str(checkpoint_folder(query, context.flow, context.settings))
        found += [name_exchange(checkpoint, depth) for depth, _ in enumerate(query.exchanges, 1)]
    return [None, *found] if found or any(query.chains for query in queries) else []


def _prepare(pool: str | None, spark: SparkSession) -> DataFrame:
    with worker_pool(spark, pool) if pool else nullcontext():
        return spark.range(1, numPartitions=1).mapInArrow(lambda batches: batches, "id BIGINT")


def _start(frames: Sequence[DataFrame]) -> None:
    try:
        for frame in frames:
            frame.collect()
    except Exception:  # noqa: BLE001 - it only saves time, and PySpark raises anything if the run has ended
        _log.debug("workers could not be started early", exc_info=True)
