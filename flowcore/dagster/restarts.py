"""Restart decisions for a flow's live run: whether and when it is launched again.

Pure, without Dagster and without a clock: the past runs and the time are arguments, and nothing is kept
between two calls. So a process that was just started decides the same. Times are seconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import takewhile

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
    "decide_restart",
    "relevant_attempts",
]

_LEAST_ATTEMPTS = 9
"""By default the ninth wait is the longest. With fewer attempts in view the waits in an outage, which has no
limit of restarts, would stop growing before that."""


class Fate(StrEnum):
    """The state of a live run."""

    PENDING = "pending"
    """Queued, starting, terminating, or about to be retried by Dagster."""
    RUNNING = "running"
    """Started and not finished, by Dagster's records; the last heartbeat says whether that is true."""
    ENDED = "ended"
    """Ended as planned: terminated by a person, or after its configured time."""
    CRASHED = "crashed"
    """Ended in any other way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One live run.

    Attributes:
        started: Whether it began to run; false of a run that was still queued, or was cancelled in the queue.
        heartbeat_s: Its last heartbeat, None if there is none.
        ended_s: When it ended, None while it has not.
        restarted: Whether it was launched in place of a crashed run, not by a person.
        outage: Whether it crashed in an outage that may end, as of a broker.
    """

    run: str
    fate: Fate
    began_s: float
    started: bool = True
    heartbeat_s: float | None = None
    ended_s: float | None = None
    restarted: bool = False
    outage: bool = False

    @property
    def lasted_s(self) -> float:
        """How long it ran, as far as is known."""
        return max(self.ended_s or 0.0, self.heartbeat_s or 0.0, self.began_s) - self.began_s

    @property
    def withdrawn(self) -> bool:
        """Whether a person launched it, and cancelled it before it started."""
        return self.fate is Fate.ENDED and not self.started and not self.restarted


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """When a crashed run is launched again.

    Attributes:
        first_wait_s: Seconds from the first crash to the restart; each consecutive crash doubles them.
        longest_wait_s: Limit of that wait.
        limit: Consecutive restarts before a person is needed, not counting those after an outage.
        stable_s: A run that lasted this long has recovered: its crash counts as the first.
        start_s: A run without a heartbeat is lost this long after its start.
        silent_s: A run is lost this long after its last heartbeat.
    """

    first_wait_s: float = 5.0
    longest_wait_s: float = 300.0
    limit: int = 8
    stable_s: float = 600.0
    start_s: float = 300.0
    silent_s: float = 120.0

    @property
    def attempts(self) -> int:
        """How many attempts a decision needs to see, if there are so many, but for those withdrawn."""
        return max(self.limit + 1, _LEAST_ATTEMPTS)

    def wait_s(self, crashes: int) -> float:
        """Seconds from the last of this many consecutive crashes to the restart.

        >>> [RestartPolicy().wait_s(crashes) for crashes in (1, 2, 3, 9)]
        [5.0, 10.0, 20.0, 300.0]
        """
        doublings = min(crashes - 1, 64)  # 2.0 ** 1024 overflows
        return min(self.first_wait_s * 2.0**doublings, self.longest_wait_s)


@dataclass(frozen=True, slots=True)
class Leave:
    """Nothing to do.

    Attributes:
        running: The run has sent a heartbeat recently.
        ended: The last run ended as planned.
        over: The crashed runs directly before it: nobody wants them restarted, also if it is deleted.
    """

    why: str
    running: bool = False
    ended: bool = False
    over: tuple[str, ...] = ()


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
    """Dagster says that the run is active, but it has sent no heartbeat for too long."""

    run: str
    silent_s: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The run crashed once too often: a person is needed."""

    run: str
    crashes: int


RestartDecision = Leave | Wait | Relaunch | Lost | GiveUp


def decide_restart(attempts: Sequence[Attempt], now_s: float, policy: RestartPolicy) -> RestartDecision:
    """Decide what to do about a flow's live run now.

    ``attempts`` are its runs, latest first: those that are running, and the latest, at least
    ``policy.attempts`` of them that were not withdrawn, if there are so many. ``now_s`` is from a clock that
    agrees with theirs; if it was set back, a time in the future counts like one that has passed as long ago.
    """
    attempts = relevant_attempts(attempts)
    if not attempts:
        return Leave("it was never launched")
    # The run that runs is the stream, whatever is queued or was refused after it.
    last = next((each for each in attempts if each.fate is Fate.RUNNING), attempts[0])
    match last.fate:
        case Fate.PENDING:
            return Leave("it is starting or terminating")
        case Fate.ENDED:
            crashed = takewhile(lambda each: each.fate is Fate.CRASHED, attempts[1:])
            return Leave("it ended as planned", ended=True, over=tuple(each.run for each in crashed))
        case Fate.RUNNING:
            has_begun = last.heartbeat_s is not None
            silent_s = abs(now_s - (last.began_s if last.heartbeat_s is None else last.heartbeat_s))
            if silent_s > (policy.silent_s if has_begun else policy.start_s):
                return Lost(last.run, silent_s)
            return Leave("it runs", running=True) if has_begun else Leave("it starts")
        case Fate.CRASHED:
            row = _consecutive_crashes(attempts, policy.stable_s)
            crashes = len(row)
            if not last.outage and sum(not each.outage for each in row) > policy.limit:
                return GiveUp(last.run, crashes)
            ended_s, wait_s = last.began_s + last.lasted_s, policy.wait_s(crashes)
            if ended_s - wait_s < now_s < ended_s + wait_s:
                return Wait(last.run, crashes, ended_s + wait_s)
            return Relaunch(last.run, crashes)


def relevant_attempts(attempts: Sequence[Attempt]) -> list[Attempt]:
    """The attempts without those that were withdrawn while the run before them had not ended.

    Such a launch says nothing about the stream, which went on meanwhile. If it was withdrawn after the end of
    the run before it, it counts: a person does not want the stream.
    """
    relevant: list[Attempt] = []
    before: Attempt | None = None
    for attempt in reversed(attempts):
        if not attempt.withdrawn:
            before = attempt
        elif before is not None and (before.ended_s is None or before.ended_s > attempt.began_s):
            continue
        relevant.append(attempt)
    return relevant[::-1]


def _consecutive_crashes(attempts: Sequence[Attempt], stable_s: float) -> list[Attempt]:
    crashed: list[Attempt] = []
    for attempt in attempts:
        if attempt.fate is not Fate.CRASHED:
            break
        crashed.append(attempt)
        if not attempt.restarted or attempt.lasted_s >= stable_s:
            break
    return crashed
