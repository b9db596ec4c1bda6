"""Memory of the driver's JVM and of its Python workers, sampled twice a second from outside.

It is the resident set; pages that processes share count for each of them.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Self

import psutil
from pyspark import SparkContext

from flowcore.background import PeriodicThread
from flowcore.metrics.usage import process_family

__all__ = ["ProcessMemory"]

_INTERVAL_S = 0.5


class ProcessMemory:
    """The memory of the driver's JVM and of its Python processes, in KiB, while a block runs.

    Attributes:
        jvm_kib: The memory of the JVM, at each sample.
        workers_kib: The sum over its Python processes, at each sample.
    """

    def __init__(self) -> None:
        gateway: Any = SparkContext._gateway
        self._jvm: int = gateway.proc.pid
        self.jvm_kib: list[int] = []
        self.workers_kib: list[int] = []
        self._sampling = PeriodicThread("memory", self._sample, _INTERVAL_S)

    def __enter__(self) -> Self:
        self._sampling.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._sampling.__exit__(None, None, None)

    def _sample(self) -> None:
        jvm, *children = process_family(self._jvm)
        self.jvm_kib.append(jvm.memory_info().rss >> 10)
        workers = 0
        for process in children:
            with suppress(psutil.Error):  # it has ended
                # A command that the JVM starts is a copy of the JVM at first.
                workers += process.memory_info().rss if process.name().startswith("python") else 0
        self.workers_kib.append(workers >> 10)
