"""The time of an operator is what it takes itself, and not what it waits."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterable, Iterator

import pytest
from pyspark.accumulators import Accumulator

from flowcore.spark.busy_times import TaskTimes, _Sums

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


def _times() -> TaskTimes:
    return TaskTimes(Accumulator(10_000 + next(_IDS), Counter(), _Sums()))


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

    times, found = _times(), []
    for number in times.run("double", double, read()):
        clock.now_ns += 100_000
        found.append(number)

    assert found == [0, 0, 1, 1, 2, 2]
    assert times.accumulator.value == {"double": 30}


def test_time_until_a_failure_counts(clock: _Clock) -> None:
    """The time of another operator stays as it is."""

    def fail(_numbers: Iterable[int]) -> Iterator[int]:
        clock.now_ns += 5
        raise StopAsyncIteration
        yield 0

    times = _times()
    times.add("other", 2)
    with pytest.raises(StopAsyncIteration):
        list(times.run("fails", fail, []))

    assert times.accumulator.value == {"other": 2, "fails": 5}
