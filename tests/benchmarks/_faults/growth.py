"""Growth: does a process or a folder use more and more over the second half of a soak?

Only comparable samples are compared: those of one process, which begins anew with each restart; those of two
processes at the same age; and any two of a folder, which restarts share. The slope is the median of all such
pairs (Theil and Sen), so neither a garbage collection nor a fault bends it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

__all__ = ["FOLDER_LIMITS", "PROCESS_LIMITS", "Limit", "Sample", "Trend", "find_growth", "find_trends"]

_MIB = 1 << 20
_LEAST_PAIRS = 20
_RISING = 0.6
"""Share of pairs that rise where something grows. Without a trend it is a half."""


@dataclass(frozen=True, slots=True)
class Limit:
    """The growth over the second half that passes: a share of the median, and at least an amount."""

    share: float
    least: float


PROCESS_LIMITS: Mapping[str, Limit] = {
    "python_bytes": Limit(0.1, 16 * _MIB),
    "heap_bytes": Limit(0.1, 16 * _MIB),
    "jvm_bytes": Limit(0.2, 128 * _MIB),
    "workers_bytes": Limit(0.1, 32 * _MIB),
    "descriptors": Limit(0.05, 16),
    "threads": Limit(0.05, 8),
}
"""What processes use: ``heap_bytes`` are the JVM's reachable objects, the others resident memory."""
FOLDER_LIMITS: Mapping[str, Limit] = {
    "checkpoint_files": Limit(0.1, 64),
    "checkpoint_bytes": Limit(0.1, 4 * _MIB),
    "temporary_files": Limit(0.1, 64),
    "temporary_bytes": Limit(0.1, 16 * _MIB),
}
"""What folders hold that a restart continues with."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What a run uses at one moment.

    Attributes:
        at_s: Seconds since the soak began.
        generation: Number of restarts before.
        age_s: Seconds since this process runs its queries.
        figures: The names of the limits, and their values.
    """

    at_s: float
    generation: int
    age_s: float
    figures: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Trend:
    """The slope of one figure.

    Attributes:
        name: The figure, and what was compared.
        level: Median of the values.
        growth: Slope times the duration of the second half.
        rising: Share of the pairs that rise.
        pairs: Number of pairs.
        limit: The growth that passes.
    """

    name: str
    level: float
    growth: float
    rising: float
    pairs: int
    limit: float

    @property
    def grows(self) -> bool:
        """Whether the figure grows by more than its limit."""
        return self.growth > self.limit and self.rising >= _RISING

    def __str__(self) -> str:
        unit, text = (_MIB, " MiB") if "_bytes" in self.name else (1, "")
        return f"{self.name} {self.level / unit:.0f}{text} {self.growth / unit:+.1f}"


def find_growth(samples: Sequence[Sample], duration_s: float, settle_s: float) -> Iterator[str]:
    """What grows, and what could not be checked.

    Args:
        settle_s: The age from which a process is compared: before, it loads and compiles code.
    """
    for trend in find_trends(samples, duration_s, settle_s):
        if trend.pairs < _LEAST_PAIRS and not trend.name.endswith("same age"):
            yield f"{trend.name}: only {trend.pairs} pairs of samples can be compared: soak for longer"
        elif trend.grows:
            yield f"{trend} over the second half, and {trend.limit:.0f} pass"


def find_trends(samples: Sequence[Sample], duration_s: float, settle_s: float) -> Iterator[Trend]:
    """The slopes of all figures over the second half."""
    half_s = duration_s / 2
    later = [sample for sample in samples if sample.at_s >= half_s]
    settled = [sample for sample in later if sample.age_s >= settle_s]
    gap_s = max(0.25 * _longest_s(settled), 1.0)
    for each in PROCESS_LIMITS.items():
        yield _trend(f"{each[0]} of one process", each, settled, half_s, _same_process(gap_s))
        yield _trend(f"{each[0]} at the same age", each, settled, half_s, _same_age(settle_s / 4))
    for each in FOLDER_LIMITS.items():
        yield _trend(each[0], each, later, half_s, lambda a, b: b.at_s - a.at_s >= half_s / 4)


def _trend(
    title: str,
    figure: tuple[str, Limit],
    samples: Sequence[Sample],
    half_s: float,
    comparable: Callable[[Sample, Sample], bool],
) -> Trend:
    name, limit = figure
    slopes = [
        (b.figures[name] - a.figures[name]) / (b.at_s - a.at_s)
        for a, b in combinations(samples, 2)
        if comparable(a, b)
    ]
    level = median([each.figures[name] for each in samples] or [0.0])
    growth = median(slopes or [0.0]) * half_s
    rising = sum(each > 0 for each in slopes) / len(slopes) if slopes else 0.0
    return Trend(title, level, growth, rising, len(slopes), max(limit.share * level, limit.least))


def _same_process(gap_s: float) -> Callable[[Sample, Sample], bool]:
    return lambda a, b: a.generation == b.generation and b.at_s - a.at_s >= gap_s


def _same_age(tolerance_s: float) -> Callable[[Sample, Sample], bool]:
    return lambda a, b: a.generation != b.generation and abs(a.age_s - b.age_s) <= tolerance_s


def _longest_s(samples: Sequence[Sample]) -> float:
    """The longest time between two samples of one process."""
    times: dict[int, list[float]] = {}
    for each in samples:
        times.setdefault(each.generation, []).append(each.at_s)
    return max((max(found) - min(found) for found in times.values()), default=0.0)
