"""Supervision: shall a flow's live run be launched again, and when?

Knows neither Dagster nor a clock: the runs that there were and the time are passed in, what to do is
returned. It keeps nothing between two questions, so it may be asked by a process that was just started.
Times are seconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

__all__ = [
    "Attempt",
    "Fate",
    "GiveUp",
    "Leave",
    "Lost",
    "Relaunch",
    "RestartDecision",
    "RestartPolicy",
    "Wait",
    "decide",
]


class Fate(StrEnum):
    """What became of a live run."""

    PENDING = "pending"
    """It is on its way: queued, starting, being stopped, or about to be launched again by Dagster."""
    RUNNING = "running"
    """It is said to run; whether it does, its last sign tells."""
    ENDED = "ended"
    """It came to a planned end: a person stopped it, or its time was over."""
    CRASHED = "crashed"
    """It ended otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One live run.

    Attributes:
        run: Its id.
        fate: What became of it.
        began_s: When it was started.
        sign_s: When it beat last, None if it has not.
        ended_s: When it ended, None while it has not.
        restarted: It was launched in the place of one that crashed, not by a person.
    """

    run: str
    fate: Fate
    began_s: float
    sign_s: float | None = None
    ended_s: float | None = None
    restarted: bool = False

    @property
    def lived_s(self) -> float:
        """How long it ran, as far as is known."""
        return max(self.ended_s or 0.0, self.sign_s or 0.0, self.began_s) - self.began_s


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """When a crashed run is launched again.

    Attributes:
        first_wait_s: Seconds from the first crash to its restart; each further crash in a row doubles them.
        longest_wait_s: They grow no longer than this.
        limit: Restarts in a row before a person has to look.
        stable_s: A run that lived as long has recovered: its crash is the first of a new row.
        start_s: A run that has not beaten so long after its start is lost.
        silent_s: One that has beaten is lost so long after its last beat.
    """

    first_wait_s: float = 5.0
    longest_wait_s: float = 300.0
    limit: int = 8
    stable_s: float = 600.0
    start_s: float = 300.0
    silent_s: float = 120.0

    def wait_s(self, crashes: int) -> float:
        """Seconds from the last of so many crashes in a row to its restart.

        >>> [RestartPolicy().wait_s(crashes) for crashes in (1, 2, 3, 9)]
        [5.0, 10.0, 20.0, 300.0]
        """
        doublings = min(crashes - 1, 64)  # a float holds no more than about a thousand
        return min(self.first_wait_s * 2.0**doublings, self.longest_wait_s)


@dataclass(frozen=True, slots=True)
class Leave:
    """There is nothing to do; ``running`` says that the run has given a sign lately."""

    why: str
    running: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """The run crashed, and its restart is not due yet."""

    run: str
    crashes: int
    until_s: float


@dataclass(frozen=True, slots=True)
class Relaunch:
    """The run crashed, and its restart is due."""

    run: str
    crashes: int


@dataclass(frozen=True, slots=True)
class Lost:
    """The run is said to run and has given no sign for too long."""

    run: str
    silent_s: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The run crashed once too often: a person has to look."""

    run: str
    crashes: int


RestartDecision = Leave | Wait | Relaunch | Lost | GiveUp


def decide(attempts: Sequence[Attempt], now_s: float, policy: RestartPolicy) -> RestartDecision:
    """What to do about a flow's live run now.

    Args:
        attempts: Its runs, latest first; more than ``policy.limit`` of them, if there are so many.
        now_s: The time, on a clock that agrees with the runs'.
        policy: When a crashed run is launched again.
    """
    if not attempts:
        return Leave("nobody has launched it")
    last = attempts[0]
    match last.fate:
        case Fate.PENDING:
            return Leave("it is on its way, or being stopped")
        case Fate.ENDED:
            return Leave("it came to a planned end")
        case Fate.RUNNING:
            return _look_at(last, now_s, policy)
        case Fate.CRASHED:
            crashes = _in_a_row(attempts, policy.stable_s)
            if crashes > policy.limit:
                return GiveUp(last.run, crashes)
            due_s = last.began_s + last.lived_s + policy.wait_s(crashes)
            return Relaunch(last.run, crashes) if now_s >= due_s else Wait(last.run, crashes, due_s)


def _look_at(run: Attempt, now_s: float, policy: RestartPolicy) -> Leave | Lost:
    since_s, longest_s = (
        (run.began_s, policy.start_s) if run.sign_s is None else (run.sign_s, policy.silent_s)
    )
    if now_s - since_s > longest_s:
        return Lost(run.run, now_s - since_s)
    return Leave("it starts") if run.sign_s is None else Leave("it runs", running=True)


def _in_a_row(attempts: Sequence[Attempt], stable_s: float) -> int:
    crashes = 0
    for attempt in attempts:
        if attempt.fate is not Fate.CRASHED:
            break
        crashes += 1
        if not attempt.restarted or attempt.lived_s >= stable_s:
            break
    return crashes
