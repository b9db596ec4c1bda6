"""The slopes of a soak: steady use passes whatever restarts do, and each kind of growth fails."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from tests.benchmarks._faults.growth import FOLDER_LIMITS, PROCESS_LIMITS, Sample, find_growth

_MIB = 1 << 20
_DURATION_S = 7_200.0
_LIFE_S = 600.0
_SETTLE_S = 120.0
_SAMPLE_S = 20.0
Change = Callable[[float, int, float], float]
"""What is added to a figure, by time, generation and age."""


def _steady(name: str, age_s: float) -> float:
    if name == "temporary_bytes":  # the library of a process that has just started is not there yet
        return 25.0 * _MIB if age_s > 5 else 0.0
    # A process loads classes at first.
    return (200.0 * _MIB if "_bytes" in name else 300.0) * (0.5 + 0.5 * min(age_s / 100, 1))


def _samples(duration_s: float = _DURATION_S, **changes: Change) -> list[Sample]:
    random = Random(4)  # noqa: S311 - reproducible, not secret
    found = []
    for place in range(int(duration_s / _SAMPLE_S)):
        at_s = _SAMPLE_S * place
        generation, age_s = int(at_s // _LIFE_S), at_s % _LIFE_S
        figures = {
            name: _steady(name, age_s) * random.uniform(0.985, 1.015)
            + changes.get(name, lambda *_: 0.0)(at_s, generation, age_s)
            for name in (*PROCESS_LIMITS, *FOLDER_LIMITS)
        }
        found.append(Sample(at_s, generation, age_s, figures))
    return found


def test_steady_use_passes() -> None:
    """Noise, restarts, and what a young process loads are not growth; nor is what the first half fills."""
    first_half = _samples(checkpoint_files=lambda at_s, *_: min(at_s, 3_000.0))

    assert [*find_growth(first_half, _DURATION_S, _SETTLE_S)] == []


@pytest.mark.parametrize("name", PROCESS_LIMITS)
def test_leak_of_a_process_is_found_although_restarts_end_it(name: str) -> None:
    """More than the limit in an hour, from zero at each restart."""
    an_hour = 4 * PROCESS_LIMITS[name].least
    leak = _samples(**{name: lambda _at, _generation, age_s: an_hour * age_s / 3_600})

    (problem,) = find_growth(leak, _DURATION_S, _SETTLE_S)
    assert problem.startswith(f"{name} of one process")


@pytest.mark.parametrize("name", PROCESS_LIMITS)
def test_growth_from_restart_to_restart_is_found(name: str) -> None:
    """Each process begins with more than the process before it, as with state that is never removed."""
    unit = 25 * _MIB if "_bytes" in name else 40
    more = _samples(**{name: lambda _at, generation, _age: unit * generation})

    (problem,) = find_growth(more, _DURATION_S, _SETTLE_S)
    assert problem.startswith(f"{name} at the same age")


@pytest.mark.parametrize("name", FOLDER_LIMITS)
def test_growth_of_a_folder_is_found(name: str) -> None:
    """Something stays at each restart."""
    unit = 25 * _MIB if "_bytes" in name else 60
    more = _samples(**{name: lambda _at, generation, _age: unit * generation})

    (problem,) = find_growth(more, _DURATION_S, _SETTLE_S)
    assert problem.startswith(name)


def test_too_few_samples_do_not_pass() -> None:
    """Without comparable samples nothing was checked."""
    problems = [*find_growth(_samples(100), _DURATION_S, _SETTLE_S)]

    assert len(problems) == len(PROCESS_LIMITS) + len(FOLDER_LIMITS)
