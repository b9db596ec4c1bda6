"""The time of an operator is what it takes itself, and not what it waits."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from pyspark.accumulators import Accumulator

from flowcore.spark.busy_times import BusyTimes

_IDS = itertools.count()


class _Clock:
    """Only what is called moves it."""

    def __init__(self) -> None:
        self.now_ns = 0

    def perf_counter_ns(self) -> int:
        return self.now_ns


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    """The clock that is read instead of the machine's."""
    found = _Clock()
    monkeypatch.setattr(time, "perf_counter_ns", found.perf_counter_ns)
    return found


class _Spark:
    """Makes accumulators as a Spark context does."""

    def accumulator(self, value: Any, param: Any) -> Any:
        return Accumulator(10_000 + next(_IDS), value, param)


_SPARK: Any = _Spark()


def test_waiting_does_not_count(clock: _Clock) -> None:
    """Neither for input, nor until what reads the output wants more of it."""

    def read() -> Iterator[int]:
        for number in range(3):
            clock.now_ns += 1_000
            yield number

    def double(numbers: Iterable[int]) -> Iterator[int]:
        for number in numbers:
            clock.now_ns += 7
            yield number
            clock.now_ns += 3
            yield number

    times, found = BusyTimes(), []
    for number in times.for_tasks(_SPARK, "query").run("double", double, read()):
        clock.now_ns += 100_000
        found.append(number)

    assert found == [0, 0, 1, 1, 2, 2]
    assert times.read("query") == {"double": 30}


def test_queries_that_run_one_operator_are_told_apart() -> None:
    """As a function whose results go to a topic and to files."""
    times = BusyTimes()
    assert times.read("topic") == {}
    for query, busy_ns in (("topic", 2), ("files", 3), ("topic", 5)):
        times.for_tasks(_SPARK, query).add("clean", busy_ns)

    assert times.read("topic") == {"clean": 7}
    assert times.read("files") == {"clean": 3}
