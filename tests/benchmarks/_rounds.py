"""Rounds of a benchmark: a warm-up of each contender, and then all in turn, with the cost of each run.

The processes of a contender are Spark's JVM and all below it. The driver's Python is not one of them, since
it also feeds and verifies. Contenders of one session share the JVM, whose memory does not shrink between
runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from pipelines.benchmark import Figures, in_turn, slope
from tests.benchmarks._process_cost import ProcessCost, spark_pid

__all__ = ["parts_of", "ratio_by_slope", "run_rates", "run_rounds"]

_LEAST_WITH_SLOPE = 100_000


def run_rounds(
    rounds: int,
    contenders: Mapping[str, Callable[[int], float]],
    unit: str,
    *,
    first: Callable[[str], object] = lambda _name: None,
) -> list[Figures]:
    """Run each contender once to warm up, and then all in turn.

    Args:
        rounds: Counted runs of each contender.
        contenders: Called with the number of the round; return their number in this unit.
        first: Called with the name of the contender before each counted run, and not measured.
    """
    costs: dict[str, list[ProcessCost]] = {name: [] for name in contenders}

    def run(name: str, number: int) -> float:
        first(name)
        with ProcessCost(spark_pid()) as cost:
            found = contenders[name](number)
        costs[name].append(cost)
        return found

    in_turn(1, *contenders.values())  # warm up: code generation and class loading
    found = in_turn(rounds, *(partial(run, name) for name in contenders))
    return [
        Figures(
            name, unit, each,
            cpu_s=[cost.cpu_s for cost in costs[name]], peak_mb=[cost.peak_mb for cost in costs[name]],
        )
        for name, each in zip(contenders, found, strict=True)
    ]  # fmt: skip


def parts_of(records: int) -> tuple[int, ...]:
    """The numbers of records over which a rate is measured: a quarter of them, and all.

    A run over fewer than 100,000 records is little more than a start, so it is the only one.
    """
    return (records // 4, records) if records >= _LEAST_WITH_SLOPE else (records,)


def run_rates(
    rounds: int, contenders: Mapping[str, Callable[[int], float]], records: int, unit: str = "records/s"
) -> list[Figures]:
    """Measure records a second, and the same without the start of a run.

    In each round a contender runs over all `parts_of` the records; its cost is that of the last run.

    Args:
        rounds: Counted runs of each contender.
        contenders: Called with a number of records; return the seconds of a run over them.
        records: The number of all records.
        unit: What is counted, by time.
    """
    *few, _ = parts_of(records)
    few_s: dict[str, list[float]] = {name: [] for name in contenders}

    def run_few(name: str) -> None:
        few_s[name] += map(contenders[name], few)

    rates = {name: lambda _, run=run: records / run(records) for name, run in contenders.items()}
    figures = run_rounds(rounds, rates, unit, first=run_few)
    if not few:
        return figures
    return [
        replace(
            each,
            by_slope=slope((few[0], few_s[each.name]), (records, [records / one for one in each.rounds])),
        )
        for each in figures
    ]


def ratio_by_slope(name: str, ours: Figures, theirs: Figures) -> dict[str, float]:
    """The ratio of rates without the start of a run, as a named ratio; empty if one has none."""
    if ours.by_slope is None or theirs.by_slope is None:
        return {}
    return {f"{name}_by_slope": ours.by_slope / theirs.by_slope}
