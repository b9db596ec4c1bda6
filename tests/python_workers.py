"""Find the Python processes of Spark among others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

import psutil
from pyspark.sql import SparkSession

from flowcore.metrics.usage import process_family

__all__ = ["daemons_and_workers", "running_workers"]


def daemons_and_workers(
    commands: Mapping[int, str], parent: Callable[[int], int]
) -> tuple[set[int], set[int]]:
    """The daemons of Spark's pools, forked from a server or started, and the workers that they have forked.

    Args:
        commands: Command lines, by process id.
        parent: Of a process.
    """
    forked = {pid for pid, command in commands.items() if "spark.run.fork_server" in command}
    started = {
        pid for pid, command in commands.items()
        if "spark.run.worker_daemon" in command and "fork_client" not in command
    }  # fmt: skip
    ours = {pid for pid in forked if parent(pid) in forked} | started
    workers = {pid for pid in ours if parent(pid) in ours}
    return ours - workers, workers


def running_workers(spark: SparkSession) -> tuple[set[int], set[int]]:
    """The daemons and workers of the JVM of a session."""
    commands, parents = {}, {}
    for each in process_family(spark.sparkContext._gateway.proc.pid):
        with suppress(psutil.Error):  # it has ended
            commands[each.pid], parents[each.pid] = " ".join(each.cmdline()), each.ppid()
    return daemons_and_workers(commands, lambda pid: parents.get(pid, 0))
