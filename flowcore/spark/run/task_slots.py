"""Count the task slots that a plan needs, and check that the cluster has them.

A local master is started with as many threads as needed. The slots of a cluster are given, and a real-time
query that waits for a slot waits for ever without an error.
"""

import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pyspark.sql import SparkSession

from flowcore.api.connectors import KafkaTopic
from flowcore.errors import RunError
from flowcore.planner.model import LiveStage
from flowcore.planner.plan import Plan
from flowcore.settings import Settings
from flowcore.spark.checkpoint.plan_file import checkpoint_folder
from flowcore.spark.context import Context
from flowcore.spark.topics.side_channels import tracks_latency

__all__ = ["await_slots", "require_slots", "slots_needed"]

_POLL_S = 0.5
_PATIENCE = "spark.scheduler.maxRegisteredResourcesWaitingTime"
_log = logging.getLogger(__name__)


def slots_needed(plan: Plan, settings: Settings, partitions: Mapping[KafkaTopic, int]) -> int:
    """The number of tasks that must be able to run at the same time, 0 if the plan has no live queries.

    ``partitions`` is the number of partitions of each source topic, as `prepare_topics` returns it.

    A real-time query holds its slots while it runs. Tasks of other queries mostly wait for the broker, so
    twice the cores is enough for them. One more slot is for Spark's own small jobs, such as broadcasting a
    table.
    """
    held = shared = 0
    for query in plan.live_queries:
        tasks = sum(partitions[topic] for topic in query.topics_read)
        if tracks_latency(query, checkpoint_folder(query, plan.flow, settings)):
            tasks *= 2  # companion topics have as many partitions
        if query.mode.value == "realtime":
            held += tasks + (settings.shuffle_partitions if query.keeps_state else 0)
        else:
            shared += tasks
    slots = held + min(shared, 2 * (os.cpu_count() or 1))
    return slots + 1 if held else slots


def require_slots(plan: Plan, context: Context, partitions: Mapping[KafkaTopic, int]) -> None:
    """Wait until a cluster has the slots that a plan's real-time queries hold; a local master has them.

    Executors register one by one, within ``spark.scheduler.maxRegisteredResourcesWaitingTime`` (30 s).

    Raises:
        RunError: The cluster still has fewer slots.
    """
    sc: Any = context.spark.sparkContext
    dynamic = sc.getConf().get("spark.dynamicAllocation.enabled", "false") == "true"
    if sc.master.startswith("local") or dynamic:
        return
    queries = plan.live_queries
    realtime = tuple(query for query in queries if query.mode.value == "realtime")
    if realtime:
        needed = slots_needed(replace(plan, live=LiveStage(realtime)), context.settings, partitions)
        patience_s = sc._jsc.sc().conf().getTimeAsSeconds(_PATIENCE, "30s")  # noqa: SLF001 - reads Spark's units
        await_slots(needed, lambda: _slots(context.spark), sc.master, patience_s)


def await_slots(needed: int, slots: Callable[[], int], master: str, patience_s: float) -> None:
    """Wait until a cluster has enough slots.

    Raises:
        RunError: There are still fewer slots.
    """
    end = time.monotonic() + patience_s
    while (found := slots()) < needed:
        if time.monotonic() >= end:
            msg = (
                f"the cluster {master} has {found} task slots for this run after {patience_s:g} s, and its "
                f"queries in real-time mode hold {needed} while they run: they would wait for ever; "
                "give it more cores (spark.cores.max, or spark.executor.instances and spark.executor.cores), "
                f"more time ({_PATIENCE}), or run with --mode micro-batch"
            )
            raise RunError(msg)
        _log.info("waiting for executors: %d of %d task slots are available", found, needed)
        time.sleep(_POLL_S)


def _slots(spark: SparkSession) -> int:
    context: Any = spark.sparkContext._jsc.sc()  # noqa: SLF001 - as barrier stages do; there is no public way
    return int(context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()))
