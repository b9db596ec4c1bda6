"""Restart decisions: a crashed run is restarted with growing delay and a limit; a terminated run is not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowcore.dagster.restarts import (
    Attempt,
    Fate,
    GiveUp,
    Leave,
    Lost,
    Relaunch,
    RestartPolicy,
    Wait,
    decide_restart,
    relevant_attempts,
)

POLICY = RestartPolicy()
CRASHED = Attempt(run="1", fate=Fate.CRASHED, began_s=1_000, ended_s=1_010)
RUNNING = Attempt(run="1", fate=Fate.RUNNING, began_s=1_000, heartbeat_s=1_050)
QUEUED = Attempt(run="2", fate=Fate.PENDING, began_s=1_005, started=False)
WITHDRAWN = replace(QUEUED, fate=Fate.ENDED, ended_s=1_006)

policies = st.builds(
    RestartPolicy,
    first_wait_s=st.floats(0, 100),
    longest_wait_s=st.floats(0, 1_000),
    limit=st.integers(0, 12),
    stable_s=st.floats(1, 1_000),
)
attempts = st.lists(
    st.builds(
        Attempt,
        run=st.sampled_from("abc"),
        fate=st.sampled_from(Fate),
        began_s=st.floats(0, 1_000),
        started=st.booleans(),
        heartbeat_s=st.none() | st.floats(0, 2_000),
        ended_s=st.none() | st.floats(0, 2_000),
        restarted=st.booleans(),
        outage=st.booleans(),
    ),
    max_size=15,
)
times = st.floats(0, 1e7)


def _loop(policy: RestartPolicy, lives_s: float, ticks: int, tick_s: float = 1.0) -> list[Attempt]:
    """Runs, oldest first: a person launches one, and it and each restart crash after the same time."""
    runs = [Attempt(run="0", fate=Fate.CRASHED, began_s=0, ended_s=lives_s)]
    now_s = lives_s
    for _ in range(ticks):
        now_s += tick_s
        match decide_restart(runs[::-1], now_s, policy):
            case Relaunch():
                run = replace(
                    CRASHED, run=str(len(runs)), began_s=now_s, ended_s=now_s + lives_s, restarted=True
                )
                runs.append(run)
                now_s += lives_s
            case Wait(until_s=until_s):
                now_s = max(now_s, until_s - tick_s)
    return runs


@pytest.mark.parametrize("fate", [Fate.PENDING, Fate.ENDED])
def test_run_that_did_not_crash_is_not_restarted(fate: Fate) -> None:
    """This holds after earlier crashes, and at any later time."""
    last = replace(CRASHED, fate=fate)

    assert isinstance(decide_restart([last, CRASHED], 1e9, POLICY), Leave)
    assert isinstance(decide_restart([], 1e9, POLICY), Leave)


def test_run_that_ended_as_planned_settles_the_crashes_directly_before_it() -> None:
    """Those before an earlier end are settled."""
    ended = replace(CRASHED, run="5", fate=Fate.ENDED)
    crashed = [replace(CRASHED, run=run) for run in ("4", "3")]

    found = decide_restart([ended, *crashed, replace(ended, run="2"), CRASHED], 1e9, POLICY)

    assert found == Leave("it ended as planned", ended=True, over=("4", "3"))


@pytest.mark.parametrize(
    ("run", "now_s", "lost"),
    [
        (RUNNING, 1_050 + 120, False),
        (RUNNING, 1_050 + 121, True),
        (replace(RUNNING, heartbeat_s=None), 1_000 + 300, False),
        (replace(RUNNING, heartbeat_s=None), 1_000 + 301, True),
        (RUNNING, 1_050 - 120, False),
        (RUNNING, 1_050 - 121, True),
        (replace(RUNNING, heartbeat_s=None), 1_000 - 300, False),
        (replace(RUNNING, heartbeat_s=None), 1_000 - 301, True),
    ],
    ids=[f"{name}{when}" for when in ("", "-ahead") for name in ("beats", "silent", "starts", "never-beat")],
)
def test_run_without_heartbeat_is_lost(run: Attempt, now_s: float, lost: bool) -> None:
    """The time allowed until the first beat is longer than that between two beats.

    A beat in the future was sent before the clock was set back.
    """
    found = decide_restart([run], now_s, POLICY)

    assert isinstance(found, Lost if lost else Leave)


@pytest.mark.parametrize("later", [QUEUED, WITHDRAWN, CRASHED], ids=["queued", "withdrawn", "crashed"])
def test_running_run_is_decided_on_whatever_was_launched_later(later: Attempt) -> None:
    """It may hang, and hold what the later one waits for."""
    assert decide_restart([later, RUNNING], 1_060, POLICY) == Leave("it runs", running=True)
    assert decide_restart([later, RUNNING], 1_200, POLICY) == Lost("1", 150)


@pytest.mark.parametrize(
    ("launch", "ignored"),
    [
        (WITHDRAWN, True),
        (replace(WITHDRAWN, began_s=1_011), False),
        (replace(WITHDRAWN, restarted=True), False),
        (replace(WITHDRAWN, started=True), False),
        (QUEUED, False),
    ],
    ids=["withdrawn", "after-the-crash", "restart", "terminated", "queued"],
)
def test_launch_that_was_withdrawn_during_a_run_does_not_hide_its_crash(
    launch: Attempt, ignored: bool
) -> None:
    """A launch that was withdrawn after the crash, or that replaced the run, says that nobody wants it."""
    found = decide_restart([launch, CRASHED], 1e9, POLICY)

    assert (found == Relaunch("1", 1)) is ignored
    assert isinstance(found, Leave) is not ignored


def test_withdrawn_launch_alone_ended_as_planned() -> None:
    """There is no other run that it could say nothing about."""
    assert decide_restart([WITHDRAWN], 1e9, POLICY) == Leave("it ended as planned", ended=True)


def test_restart_is_due_after_the_wait() -> None:
    """It is not due earlier, and stays due later."""
    assert decide_restart([CRASHED], 1_014.9, POLICY) == Wait("1", 1, 1_015)
    assert decide_restart([CRASHED], 1_015, POLICY) == Relaunch("1", 1)
    assert decide_restart([CRASHED], 1e9, POLICY) == Relaunch("1", 1)


def test_restart_does_not_wait_until_a_clock_that_was_set_back_reaches_the_crash() -> None:
    """That may be hours; a crash in the near future waits twice as long at most."""
    assert decide_restart([CRASHED], 1_005, POLICY) == Relaunch("1", 1)
    assert decide_restart([CRASHED], 1_005.1, POLICY) == Wait("1", 1, 1_015)


@given(policy=policies, crashes=st.integers(1, 5_000))
def test_waits_grow_up_to_the_longest(policy: RestartPolicy, crashes: int) -> None:
    """Each wait is at least the previous one and at most the limit."""
    assert policy.wait_s(crashes) <= policy.wait_s(crashes + 1) <= policy.longest_wait_s


@given(policy=policies, share=st.floats(0, 0.99))
def test_crash_loop_ends_with_an_alert(policy: RestartPolicy, share: float) -> None:
    """The number of restarts is the limit, however short each run is."""
    runs = _loop(policy, policy.stable_s * share, ticks=100)

    assert len(runs) == 1 + policy.limit
    assert decide_restart(runs[::-1], 1e12, policy) == GiveUp(runs[-1].run, policy.limit + 1)


@given(policy=policies, times=st.floats(1, 3))
def test_run_that_recovers_may_crash_for_ever(policy: RestartPolicy, times: float) -> None:
    """A long run resets the count, so that rare crashes over months do not reach the limit."""
    policy = replace(policy, limit=max(policy.limit, 1))
    # Sums of floats: a life of exactly the limit may come out a hair shorter.
    assert len(_loop(policy, policy.stable_s * times + 1, ticks=50)) > 20


@given(policy=policies)
def test_launch_by_a_person_begins_a_new_row(policy: RestartPolicy) -> None:
    """After the limit, a run that a person launches has all restarts again."""
    policy = replace(policy, limit=max(policy.limit, 1))
    before = _loop(policy, 0, ticks=100)
    launched = replace(CRASHED, run="by hand", began_s=1e9, ended_s=1e9 + 1)

    assert decide_restart([launched, *before[::-1]], 1e12, policy) == Relaunch("by hand", 1)


@given(runs=attempts, now_s=times, policy=policies)
def test_only_a_crash_is_followed_by_a_launch(
    runs: list[Attempt], now_s: float, policy: RestartPolicy
) -> None:
    """Of the latest run that was not withdrawn, and only if none is running; whatever was before it."""
    if isinstance(decide_restart(runs, now_s, policy), (Relaunch, Wait, GiveUp)):
        assert next(run for run in runs if not run.withdrawn).fate is Fate.CRASHED
        assert all(run.fate is not Fate.RUNNING for run in runs)


@given(runs=attempts, now_s=times, policy=policies)
def test_launches_that_were_withdrawn_during_a_run_change_nothing(
    runs: list[Attempt], now_s: float, policy: RestartPolicy
) -> None:
    """One after each run that had not ended then."""
    runs = [run for run in runs if not run.withdrawn]
    launched = [
        each
        for run in runs
        for each in (replace(WITHDRAWN, began_s=0 if run.ended_s is None else run.ended_s - 1), run)
    ]

    assert relevant_attempts(launched) == runs
    assert decide_restart(launched, now_s, policy) == decide_restart(runs, now_s, policy)


@given(runs=attempts, now_s=times, later_s=times, policy=policies)
def test_due_restart_stays_due(
    runs: list[Attempt], now_s: float, later_s: float, policy: RestartPolicy
) -> None:
    """A failed or late tick does not change the decision of the next one, unless the clock was set back."""
    now_s += 2_000  # after the last of these runs
    found = decide_restart(runs, now_s, policy)
    if isinstance(found, (Relaunch, GiveUp)):
        assert decide_restart(runs, now_s + later_s, policy) == found


@given(runs=attempts, now_s=times, policy=policies)
def test_decision_needs_a_bounded_number_of_runs(
    runs: list[Attempt], now_s: float, policy: RestartPolicy
) -> None:
    """Those that are running, and of the others that were not withdrawn as many as the policy says.

    Outages aside: they are not counted, and are only seen among these.
    """
    runs = [replace(run, outage=False) for run in runs]
    counted = [number for number, run in enumerate(runs, 1) if not run.withdrawn]
    last = counted[policy.attempts - 1] if len(counted) >= policy.attempts else len(runs)
    read = runs[:last] + [run for run in runs[last:] if run.fate is Fate.RUNNING]
    whole, part = (decide_restart(seen, now_s, policy) for seen in (runs, read))

    assert type(whole) is type(part)


@pytest.mark.parametrize("real", [0, 3], ids=["only-outage", "after-crashes"])
def test_outage_is_restarted_for_ever_with_bounded_waits(real: int) -> None:
    """However often the run meets it: the supervisor waits at most 5 minutes, and does not give up."""
    policy = RestartPolicy(limit=8)
    runs = [replace(CRASHED, restarted=number > 0, outage=number >= real) for number in range(500)]

    for count in range(real + 1, len(runs) + 1):
        decision = decide_restart(runs[:count][::-1], 1_010, policy)

        assert isinstance(decision, Wait)
        assert decision.until_s <= 1_010 + policy.longest_wait_s
    assert isinstance(decide_restart(runs[::-1], 1e6, policy), Relaunch)


@pytest.mark.parametrize("limit", [0, 2, 8])
def test_waits_in_an_outage_grow_to_the_longest_whatever_the_limit(limit: int) -> None:
    """Of a long outage, the supervisor reads only as many runs as the policy says."""
    policy = RestartPolicy(limit=limit)
    runs = [replace(CRASHED, restarted=number > 0, outage=True) for number in range(20)]
    waits = []
    for count in range(1, len(runs) + 1):
        decision = decide_restart(runs[:count][::-1][: policy.attempts], 1_010, policy)
        assert isinstance(decision, Wait)
        waits.append(decision.until_s - 1_010)

    assert waits == [policy.wait_s(count) for count in range(1, len(runs) + 1)]
    assert waits[-1] == policy.longest_wait_s


def test_outage_in_a_row_of_crashes_is_not_counted_as_a_crash() -> None:
    """Crashes of another kind still need a person when there are too many of them."""
    policy = RestartPolicy(limit=2)
    crash, outage = replace(CRASHED, restarted=True), replace(CRASHED, restarted=True, outage=True)

    assert isinstance(decide_restart([crash, outage, outage, crash], 1e6, policy), Relaunch)
    assert isinstance(decide_restart([outage, crash, crash, crash], 1e6, policy), Relaunch)
    assert isinstance(decide_restart([crash, outage, crash, crash], 1e6, policy), GiveUp)
