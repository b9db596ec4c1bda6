"""Processor time and memory of the processes of a contender, seen from outside."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Self

import psutil
from pyspark import SparkContext

from flowcore.background import PeriodicThread
from flowcore.metrics.usage import process_family

__all__ = ["ProcessCost", "read_cost", "spark_pid"]

_SAMPLE_S = 2.0


def spark_pid() -> int:
    """The process id of Spark's JVM, below which its Python workers are."""
    gateway: Any = SparkContext._gateway
    pid: int = gateway.proc.pid
    return pid


def read_cost(roots: Sequence[int], *, with_memory: bool = True) -> tuple[dict[int, float], int]:
    """Processor time of each of these processes and all below them, in seconds, and their memory in bytes.

    Of pages that processes share, each has its part.
    """
    cpu_s: dict[int, float] = {}
    memory = 0
    for root in roots:
        for process in process_family(root):
            with suppress(psutil.Error):  # it has ended
                spent = process.cpu_times()
                cpu_s[process.pid] = spent.user + spent.system
                if with_memory:
                    memory += process.memory_full_info().pss
    return cpu_s, memory


class ProcessCost:
    """What processes and all below them use while a block runs; a context manager.

    Args:
        roots: Process ids, such as `spark_pid`.
        watches_memory: Sample memory while the block runs, and not only at its ends. It stops a process for
            some milliseconds, which can be seen in latencies.

    Attributes:
        peak_mb: The most memory of all samples.
    """

    def __init__(self, *roots: int, watches_memory: bool = True) -> None:
        self._roots = roots
        self._before: dict[int, float] = {}
        self._spent: dict[int, float] = {}
        self.peak_mb = 0.0
        self._thread = PeriodicThread("cost", lambda: self._sample(with_memory=watches_memory), _SAMPLE_S)

    def __enter__(self) -> Self:
        self._sample()
        self._before = dict(self._spent)
        self._thread.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.__exit__(None, None, None)
        self._sample()

    @property
    def cpu_s(self) -> float:
        """Processor time that they have spent in the block, in seconds."""
        return sum(self._spent.values()) - sum(self._before.values())

    def _sample(self, *, with_memory: bool = True) -> None:
        cpu_s, memory = read_cost(self._roots, with_memory=with_memory)
        self._spent |= cpu_s
        self.peak_mb = max(self.peak_mb, memory / 1e6)
