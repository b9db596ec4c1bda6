"""Evictors remove records before or after a firing."""

from __future__ import annotations

import pytest

from flowcore.windows import (
    CountEvictor,
    DeltaEvictor,
    Emissions,
    Evictor,
    GlobalWindows,
    TimeEvictor,
    TumblingWindows,
)
from flowcore.windows.triggers import Delta
from tests.unit.windows.harnesses import harness_of, values_of


@pytest.mark.parametrize(
    ("evictor", "first", "second"),
    [
        (CountEvictor(2), [3, 4], [4, 5]),
        (CountEvictor(2, after=True), [1, 2, 3, 4], [3, 4, 5]),
        (CountEvictor(0, after=True), [1, 2, 3, 4], [5]),
        (TimeEvictor(10), [3, 4], [3, 4, 5]),
        (TimeEvictor(10, after=True), [1, 2, 3, 4], [3, 4, 5]),
        (DeltaEvictor(3), [2, 3, 4], [3, 4, 5]),
        (DeltaEvictor(3, after=True), [1, 2, 3, 4], [2, 3, 4, 5]),
    ],
    ids=["count", "count-after", "count-none-after", "time", "time-after", "delta", "delta-after"],
)  # fmt: skip
def test_evictors_remove_records_permanently(evictor: Evictor, first: list[int], second: list[int]) -> None:
    """An evictor before the function changes this firing; one after it changes later firings."""
    harness = harness_of(TumblingWindows(1000), evictor=evictor, allowed_lateness_ms=1000)

    harness.feed(("a", 1, 10), ("a", 2, 5), ("a", 3, 20), ("a", 4, 11))
    assert values_of(harness.watermark(999)) == [first]
    harness.restart()
    assert values_of(harness.feed(("a", 5, 15))) == [second]


def test_a_difference_that_is_not_a_number_neither_fires_nor_removes() -> None:
    """As in Flink, only a difference above the threshold fires, and only one of at least it removes."""
    nan = float("nan")
    fired = harness_of(GlobalWindows(), Delta(5, lambda old, new: new - old))
    kept = harness_of(TumblingWindows(10), evictor=DeltaEvictor(3))

    assert values_of(fired.feed(("a", 1), ("a", nan), ("a", 2))) == []
    assert len(values_of(fired.feed(("a", 7)))) == 1
    kept.feed(("a", 1, 0), ("a", nan, 0), ("a", 5, 0))
    assert repr(values_of(kept.watermark(9))) == "[[nan, 5]]"


def test_window_that_an_evictor_has_emptied_emits_nothing() -> None:
    harness = harness_of(TumblingWindows(10), evictor=CountEvictor(0))

    harness.feed(("a", 1, 1))

    assert harness.watermark(9) == Emissions()
