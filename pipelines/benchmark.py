"""Reports of benchmarks.

A benchmark runs flowcore and a rival alternately in the same run, verifies both results, and reports the
median, the least and the most of each with their ratio, the workload, the machine and the commit.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import click

__all__ = ["Figures", "Report", "in_turn", "slope"]

T = TypeVar("T")


def this_machine() -> str:
    """Return processor, cores and memory of this machine."""
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line
        ]
        name = names[0] if names else name
    return f"{name}, {os.cpu_count()} cores, {memory_gib:.0f} GiB, {platform.system()}"


def this_commit() -> str:
    """Return the checkout's commit, with ``+`` if it has changes; ``unknown`` outside a checkout."""
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--abbrev=12"],  # noqa: S607 - git from the PATH
            capture_output=True, text=True, check=True, cwd=Path(__file__).parent,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return found.stdout.strip()


@dataclass(frozen=True, slots=True)
class Figures:
    """The numbers of one contender, one for each round, in the same unit as its rival's.

    Attributes:
        by_slope: Records a second without the start of a run; None if that was not measured.
        cpu_s: Processor time of each round, in seconds.
        peak_mb: Memory of its processes at the peak of each round.
    """

    name: str
    unit: str
    rounds: Sequence[float]
    by_slope: float | None = None
    cpu_s: Sequence[float] = ()
    peak_mb: Sequence[float] = ()

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)

    @property
    def members(self) -> dict[str, Any]:
        """The members of the JSON object."""
        found: dict[str, Any] = {
            "unit": self.unit, "median": self.median, "min": min(self.rounds), "max": max(self.rounds),
            "rounds": list(self.rounds),
        }  # fmt: skip
        if self.by_slope is not None:
            found["by_slope"] = self.by_slope
        for name in ("cpu_s", "peak_mb"):
            if rounds := getattr(self, name):
                found[name] = statistics.median(rounds)
        return found


_ALSO = {"by_slope": "records/s without start", "cpu_s": "s of processor time", "peak_mb": "MB at peak"}


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of one benchmark.

    Attributes:
        workload: What was done, with sizes.
        figures: The numbers of each contender.
        ratios: Named ratios of medians, flowcore's over the rival's.
        verified: What was verified of the results.
        details: Further members of the JSON object.
        notes: What a reader must know of the figures, such as which contender has none.
    """

    name: str
    workload: str
    figures: Sequence[Figures]
    ratios: Mapping[str, float]
    verified: str
    details: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()
    machine: str = field(default_factory=this_machine)
    commit: str = field(default_factory=this_commit)

    def show(self, *, as_json: bool) -> None:
        """Print the report as text or as one JSON object."""
        if as_json:
            figures = {f.name: f.members for f in self.figures}
            about = {
                name: getattr(self, name) for name in ("name", "workload", "verified", "machine", "commit")
            }
            names = {"notes": list(self.notes), "ratios": list(self.ratios)}
            click.echo(json.dumps({**about, "figures": figures, **names, **self.ratios, **self.details}))
            return
        click.echo(f"{self.name}: {self.workload}\nmachine: {self.machine}\ncommit: {self.commit}")
        for f in self.figures:
            rounds = ", ".join(map(_shown, f.rounds))
            also = [
                f"; {words} {_shown(f.members[name])}" for name, words in _ALSO.items() if name in f.members
            ]
            click.echo(f"  {f.name:<16} {_shown(f.median):>12} {f.unit}   (rounds: {rounds}{''.join(also)})")
        for name, value in self.ratios.items():
            click.echo(f"  {name} = {value:.3f}")
        for note in self.notes:
            click.echo(f"note: {note}")
        click.echo(f"verified: {self.verified}")


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 1_000 else f"{value:,.2f}"  # noqa: PLR2004 - what reads well


def in_turn(rounds: int, *contenders: Callable[[int], T]) -> list[list[T]]:
    """Run contenders alternately, A B B A A B ..., so that a machine that slows down affects both.

    Args:
        rounds: How often each contender runs.
        contenders: Called with the number of the round; return what they measured.
    """
    figures: list[list[T]] = [[] for _ in contenders]
    for number in range(rounds):
        order = range(len(contenders)) if number % 2 == 0 else reversed(range(len(contenders)))
        for index in order:
            figures[index].append(contenders[index](number))
    return figures


def slope(few: tuple[int, Sequence[float]], many: tuple[int, Sequence[float]]) -> float | None:
    """Additional records over additional seconds (medians); None if few took as long as many.

    Args:
        few: A number of records, and the seconds of each run over them.
        many: The same of more records.

    >>> slope((100, [3.0, 3.0, 9.0]), (400, [5.0, 6.0, 7.0]))
    100.0
    """
    seconds = statistics.median(many[1]) - statistics.median(few[1])
    return (many[0] - few[0]) / seconds if seconds > 0 else None
