"""How long the operators were busy that run in Python, from the workers to the driver.

An operator is busy while it processes records, and reads and writes its state, but not while it waits for
input or for what reads its output; Flink reports this as ``busyTimeMsPerSecond``. Spark sends the times of a
task when it ends, those of repeated tasks too.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from pyspark.accumulators import Accumulator, AccumulatorParam

if TYPE_CHECKING:
    from pyspark import SparkContext

__all__ = ["BusyTimes", "TaskTimes"]

_T = TypeVar("_T")


class BusyTimes:
    """On the driver: the times of a run's operators by name, in nanoseconds."""

    def __init__(self) -> None:
        self._tasks: TaskTimes | None = None

    def for_tasks(self, context: SparkContext) -> TaskTimes:
        """What adds the times of tasks to these."""
        if self._tasks is None:
            self._tasks = TaskTimes(context.accumulator(Counter(), _Sums()))
        return self._tasks

    def read(self) -> Mapping[str, int]:
        """The sums over all tasks that have ended."""
        return self._tasks.accumulator.value if self._tasks else {}


class TaskTimes:
    """In a worker: adds the times of the operators of a task."""

    def __init__(self, accumulator: Accumulator[Counter[str]]) -> None:
        self.accumulator = accumulator

    def add(self, operator: str, busy_ns: int) -> None:
        """Add to an operator's time."""
        self.accumulator.add(Counter({operator: busy_ns}))

    def run(
        self, operator: str, function: Callable[[Iterable[_T]], Iterable[_T]], items: Iterable[_T]
    ) -> Iterator[_T]:
        """Call a function from an iterator to an iterator, and add how long it was busy."""
        waited_ns = 0

        @contextmanager
        def waiting() -> Iterator[None]:
            nonlocal waited_ns
            since_ns = time.perf_counter_ns()
            try:
                yield
            finally:
                waited_ns += time.perf_counter_ns() - since_ns

        def given() -> Iterator[_T]:
            iterator = iter(items)
            while True:
                with waiting():
                    item = next(iterator, None)
                if item is None:
                    return
                yield item

        began_ns = time.perf_counter_ns()
        try:
            for result in function(given()):
                with waiting():
                    yield result
        finally:
            self.add(operator, time.perf_counter_ns() - began_ns - waited_ns)


class _Sums(AccumulatorParam["Counter[str]"]):
    def zero(self, value: Counter[str]) -> Counter[str]:  # noqa: ARG002 - Spark's signature
        return Counter()

    def addInPlace(self, value1: Counter[str], value2: Counter[str]) -> Counter[str]:  # noqa: N802 - Spark's name
        return value1 + value2  # a new one, since another thread may read the old one
