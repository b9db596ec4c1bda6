"""How long the operators were busy that run in Python, from the workers to the driver.

An operator is busy while it processes records, and reads and writes its state, but not while it waits for
input or for what reads its output; Flink reports this as ``busyTimeMsPerSecond``. Spark sends the times of a
task when it ends.
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
_Times = Counter[tuple[str, str]]
"""Nanoseconds by query and operator: two queries of a run may run the same operator."""


class BusyTimes:
    """On the driver: the times of a run's operators."""

    def __init__(self) -> None:
        self._accumulator: Accumulator[_Times] | None = None

    def for_tasks(self, context: SparkContext, query: str) -> TaskTimes:
        """What adds the times of a query's tasks to these."""
        if self._accumulator is None:
            self._accumulator = context.accumulator(Counter(), _Sums())
        return TaskTimes(self._accumulator, query)

    def read(self, query: str) -> Mapping[str, int]:
        """The sums over all tasks of a query that have ended, in nanoseconds by operator."""
        found = self._accumulator.value if self._accumulator is not None else _Times()
        return {operator: busy_ns for (of, operator), busy_ns in found.items() if of == query}


class TaskTimes:
    """In a worker: adds the times of the operators of a task."""

    def __init__(self, accumulator: Accumulator[_Times], query: str) -> None:
        self._accumulator = accumulator
        self._query = query

    def add(self, operator: str, busy_ns: int) -> None:
        """Add to an operator's time."""
        self._accumulator.add(Counter({(self._query, operator): busy_ns}))

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

        def timed_items() -> Iterator[_T]:
            iterator = iter(items)
            while True:
                with waiting():
                    item = next(iterator, None)
                if item is None:
                    return
                yield item

        began_ns = time.perf_counter_ns()
        for result in function(timed_items()):
            with waiting():
                yield result
        self.add(operator, time.perf_counter_ns() - began_ns - waited_ns)


class _Sums(AccumulatorParam[_Times]):
    def zero(self, value: _Times) -> _Times:  # noqa: ARG002 - Spark's signature
        return Counter()

    def addInPlace(self, value1: _Times, value2: _Times) -> _Times:  # noqa: N802 - Spark's name
        return value1 + value2  # a new one, since another thread may read the old one
