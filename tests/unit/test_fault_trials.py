"""The trials of `flowcore bench faults`: which are run, how they are reported, how long a recovery was."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import click
import pytest
from click.testing import CliRunner

from flowcore.api.connectors import Delivery
from tests.benchmarks import faults
from tests.benchmarks._faults import trial as trial_module
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

    folder = tmp_path / "run"
    monkeypatch.setattr(faults.tempfile, "mkdtemp", lambda **_: folder.mkdir() or str(folder))
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
        monkeypatch.setattr(trial_module.time, "monotonic", lambda: trial.now_s)
        trial.recover(cast("Any", _Driver(ended=ended)))

    assert trial.recovery_s == recovery_s
