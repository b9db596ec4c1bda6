"""Scenarios: a fault each, with its injection and its pass rules; and the outcome of one trial."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace

from flowcore.api.connectors import Delivery
from flowcore.kafka.broker import EmbeddedBroker
from tests.benchmarks._faults.trial import Site, Trial
from tests.benchmarks._faults.verify import verify_trial

__all__ = ["BOTH", "Outcome", "Scenario", "run_scenario"]

BOTH: tuple[Delivery, ...] = ("exactly-once", "at-least-once")
_ONCE = BOTH[:1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A fault.

    Attributes:
        play: Sends, injects and recovers.
        limit_s: The longest recovery that passes (rule N7).
        deliveries: The delivery guarantees under which each seed is run.
        own_broker: It breaks or restarts its broker.
        quick: It is part of the checks of each change, with this delivery guarantee only.
        by_name_only: It runs only if it is asked for, since it takes hours.
    """

    id: str
    title: str
    play: Callable[[Trial], None]
    limit_s: float = 120.0
    deliveries: tuple[Delivery, ...] = _ONCE
    own_broker: bool = False
    quick: Delivery | None = None
    by_name_only: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one trial has shown.

    Attributes:
        problems: What was wrong, each with its rule.
        notes: The choices of the seed.
        repeats: Records that were there again, of at-least-once delivery.
        seconds: Duration of the whole trial.
    """

    scenario: str
    seed: int
    delivery: Delivery
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    repeats: int
    recovery_s: float
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether all rules hold."""
        return not self.problems


def run_scenario(scenario: Scenario, seed: int, delivery: Delivery, site: Site) -> Outcome:
    """Run one trial, and verify what it has left."""
    began = time.monotonic()
    problems: tuple[str, ...]
    repeats = 0
    with ExitStack() as stack:
        if scenario.own_broker:
            folder = site.folder / f"broker-{scenario.id}-{seed}-{delivery}"
            broker = stack.enter_context(EmbeddedBroker(folder))
            site = replace(site, servers=broker.bootstrap_servers, broker=broker)
        trial = stack.enter_context(Trial(site, scenario.id, seed, delivery))
        try:
            scenario.play(trial)
            verdict = verify_trial(trial)
        except Exception as error:  # noqa: BLE001 - the other scenarios still run
            problems = (*trial.problems, f"{type(error).__name__}: {error}")
        else:
            problems, repeats = verdict.problems, verdict.repeats
            if trial.recovery_s > scenario.limit_s:
                problems += (f"N7: recovery took {trial.recovery_s:.0f} s, over {scenario.limit_s:g} s",)
    return Outcome(
        scenario.id, seed, delivery, problems, tuple(trial.notes), repeats,
        round(trial.recovery_s, 1), round(time.monotonic() - began, 1),
    )  # fmt: skip
