"""Benchmarks: how is a figure reported so that a reader can trust and repeat it?

A benchmark runs flowcore and a rival in the same run, in turn, checks both answers, and reports the
median of each with their ratio, the workload, the machine and the commit.
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

import click

__all__ = ["Figures", "Report", "in_turn"]


def this_machine() -> str:
    """Processor, cores and memory of this machine."""
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
    """The checkout's commit, with ``+`` if it has changes; ``unknown`` outside one."""
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
    """What one contender did: one number for each round, in the same unit as its rival's."""

    name: str
    unit: str
    rounds: Sequence[float]

    @property
    def median(self) -> float:
        """The number to quote."""
        return statistics.median(self.rounds)


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of one benchmark.

    Attributes:
        name: Of the benchmark.
        workload: What was done, in words, sizes included.
        figures: Each contender.
        ratios: Named ratios of medians, flowcore's over the rival's.
        verified: What was checked of the answers.
    """

    name: str
    workload: str
    figures: Sequence[Figures]
    ratios: Mapping[str, float]
    verified: str
    machine: str = field(default_factory=this_machine)
    commit: str = field(default_factory=this_commit)

    def show(self, *, as_json: bool) -> None:
        """Print it, for a person or as one JSON object."""
        if as_json:
            figures = {
                f.name: {"unit": f.unit, "median": f.median, "rounds": list(f.rounds)} for f in self.figures
            }
            about = {
                name: getattr(self, name) for name in ("name", "workload", "verified", "machine", "commit")
            }
            click.echo(json.dumps({**about, "figures": figures, **self.ratios}))
            return
        click.echo(f"{self.name}: {self.workload}\nmachine: {self.machine}\ncommit: {self.commit}")
        for f in self.figures:
            rounds = ", ".join(map(_shown, f.rounds))
            click.echo(f"  {f.name:<16} {_shown(f.median):>12} {f.unit}   (rounds: {rounds})")
        for name, value in self.ratios.items():
            click.echo(f"  {name} = {value:.3f}")
        click.echo(f"verified: {self.verified}")


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 1_000 else f"{value:,.2f}"  # noqa: PLR2004 - what reads well


def in_turn(rounds: int, *contenders: Callable[[int], float]) -> list[list[float]]:
    """Run contenders in turn, A B B A A B ..., so that a machine that slows down slows both.

    Args:
        rounds: How often each runs.
        contenders: Called with the number of the round; return their figure.
    """
    figures: list[list[float]] = [[] for _ in contenders]
    for number in range(rounds):
        order = range(len(contenders)) if number % 2 == 0 else reversed(range(len(contenders)))
        for index in order:
            figures[index].append(contenders[index](number))
    return figures
