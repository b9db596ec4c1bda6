"""The trials of `flowcore bench faults`: which are run, how they are reported, how long a recovery was."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, cast

import click
import pytest
from click.testing import CliRunner

from flowcore.api.connectors import Delivery
from flowcore.planner import plan_flow
from flowcore.planner.rules.compatibility import derive_needs, find_differences
from flowcore.settings import Settings
from flowcore.spark.checkpoint.lease import STALE_S
from tests.benchmarks import faults
from tests.benchmarks._faults.machine import FakedMachine
from tests.benchmarks._faults.pauses import TIMEOUTS_S, choose_pause
from tests.benchmarks._faults.sales import Sales, Variant
from tests.benchmarks._faults.scenario import BOTH, Outcome
from tests.benchmarks._faults.trial import Site, Trial


def test_each_seed_runs_with_each_delivery_of_its_scenario() -> None:
    """All but the soak are run if none is named; an id has one scenario."""
    chosen = faults.choose_trials()

    assert {each.id for each in faults.SCENARIOS} - {each.id for each in chosen} == {"soak"}
    assert len({each.id for each in faults.SCENARIOS}) == len(faults.SCENARIOS)
    assert all(deliveries == scenario.deliveries for scenario, deliveries in chosen.items())
    assert [each.id for each in chosen if "exactly-once" not in each.deliveries] == ["kill-realtime"]


def test_quick_trials_have_one_delivery_and_half_of_them_exactly_once() -> None:
    """The default tests run them, so there is one for each scenario and seed."""
    chosen = [*faults.choose_trials(quick=True).values()]

    assert all(len(deliveries) == 1 for deliveries in chosen)
    assert 2 * chosen.count(("exactly-once",)) >= len(chosen)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--scenario kill-jvm --quick", "nothing would be checked"),
        ("--scenario kill-in-output --delivery at-least-once", "nothing would be checked"),
        ("--scenario kill-jvm --soak-minutes 10", "would have no effect"),
        ("--soak-minutes 10", "would have no effect"),
        ("--scenario kill-jmv", "does not exist"),
        ("--seeds 0", "x>=1"),
    ],
)
def test_options_that_check_nothing_are_refused(options: str, message: str) -> None:
    """Otherwise the report would say that all rules hold."""
    result = CliRunner().invoke(faults.command, options.split())

    assert result.exit_code == click.UsageError.exit_code
    assert message in " ".join(result.output.replace("│", " ").split())


@pytest.mark.parametrize("keep", [False, True])
def test_interrupt_removes_the_folder(keep: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C ends a run as an error of the broker does; --keep keeps the folder."""

    def interrupt() -> None:
        (folder / "state").mkdir()
        raise KeyboardInterrupt

    def make_folder(**_: str) -> str:
        folder.mkdir()
        return str(folder)

    folder = tmp_path / "run"
    monkeypatch.setattr("tempfile.mkdtemp", make_folder)
    monkeypatch.setattr(faults, "EmbeddedBroker", interrupt)
    monkeypatch.setenv("PYTHONPATH", "")

    with pytest.raises(KeyboardInterrupt):
        faults._run(faults.choose_trials(quick=True), range(1, 2), lambda _: None, soak_s=1, keep=keep)

    assert folder.exists() == keep


def _outcome(delivery: Delivery, *problems: str, recovery_s: float = 1.0) -> Outcome:
    return Outcome("kill-jvm", 1, delivery, problems, (), 2, recovery_s, 3.0)


def test_report_counts_trials_by_delivery() -> None:
    """A seed counts once for each delivery."""
    found: dict[str, Any] = faults.summarize(
        [_outcome("exactly-once"), _outcome("at-least-once", "N1"), _outcome("exactly-once", recovery_s=4)]
    )

    assert found["scenarios"]["kill-jvm"] == {
        "seeds": 3,
        "passed": 2,
        "deliveries": {
            "exactly-once": {"seeds": 2, "passed": 2},
            "at-least-once": {"seeds": 1, "passed": 0},
        },
        "repeats": 6,
        "recovery_s": 4,
        "seconds": 9.0,
    }
    assert [(each["seed"], each["delivery"]) for each in found["failed"]] == [(1, "at-least-once")]


def test_pauses_of_some_seeds_pass_each_timeout() -> None:
    """A trial has one pause, since the longest takes five minutes."""
    chosen = [choose_pause(seed, Random(seed)) for seed in range(1, 1 + len(TIMEOUTS_S))]  # noqa: S311

    assert [name for name, _ in chosen] == [*TIMEOUTS_S]
    settings = Settings.of({}, environment={})
    waits_s = [each.total_seconds() for each in (settings.answer_timeout, settings.transaction_timeout)]
    assert [*TIMEOUTS_S.values()] == [STALE_S, *waits_s]
    assert all(seconds > TIMEOUTS_S[name] for name, seconds in chosen)


def test_other_steps_continue_from_the_checkpoint() -> None:
    """And the renamed flow has the same topics, so that only its name is refused."""
    before = Sales(flow="f")
    variants: tuple[Variant, ...] = ("", "other steps", "another name")
    settings = Settings.of({}, environment={})
    plans = {
        variant: plan_flow(replace(before, variant=variant).declare(), "slice", settings)
        for variant in variants
    }
    needs = {variant: derive_needs(*plan.live_queries) for variant, plan in plans.items()}

    assert not [*find_differences(needs[""], needs["other steps"])]
    assert not [*find_differences(needs[""], needs["another name"])]
    assert plans["another name"].flow != plans[""].flow


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
@pytest.mark.parametrize(("fails_one_in", "errors"), [(0, 0), (3, 2), (1, 6)])
def test_writes_to_the_faked_disk_fail(fails_one_in: int, errors: int, tmp_path: Path) -> None:
    """One write in n, and only to files below the folder."""
    (tmp_path / "disk").mkdir()
    machine = FakedMachine(tmp_path, tmp_path / "disk")
    machine.set(fails_one_in=fails_one_in)
    program = """
import errno, os
found = 0
inside, outside = (os.open(name, os.O_CREAT | os.O_WRONLY) for name in ("disk/a", "b"))
for _ in range(6):
    os.write(outside, b"x")
    try:
        os.write(inside, b"x")
    except OSError as error:
        found += error.errno == errno.EIO
print(found)
"""
    with machine.preloaded():
        found = subprocess.run(
            [sys.executable, "-S", "-c", program], cwd=tmp_path, capture_output=True, check=True
        )

    assert int(found.stdout) == errors
    assert (tmp_path / "disk" / "a").stat().st_size == 6 - errors


class _Driver:
    """A driver that has ended, or goes on; it has no process."""

    error = ""

    def __init__(self, *, ended: bool) -> None:
        self.ended = ended

    def kill(self) -> None:
        self.ended = True


class _TimedTrial(Trial):
    """A trial whose waits only move a clock."""

    now_s = 0.0

    def wait_copies(self, *_: object, **__: object) -> None:
        self.now_s += 20

    def finish(self, **_: object) -> None:
        with self.recovery():
            self.now_s += 30


@pytest.mark.parametrize(("ended", "recovery_s"), [(True, 50), (False, 30)])
def test_recovery_of_an_ended_driver_includes_the_next_run(
    ended: bool, recovery_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule N7: if the driver went on, the next run is a recovery of its own."""
    with _TimedTrial(Site("", cast("Any", None), tmp_path), "kill-jvm", 1, BOTH[0]) as trial:
        monkeypatch.setattr("time.monotonic", lambda: trial.now_s)
        trial.recover(cast("Any", _Driver(ended=ended)))

    assert trial.recovery_s == recovery_s
