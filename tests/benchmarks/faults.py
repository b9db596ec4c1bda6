"""Faults: kills, pauses, outages, torn files, lying input and load, and what readers see afterwards.

Each scenario runs a small flow on topics and a state folder of its own, injects its fault, and lets the flow
recover. A concurrent reader of committed records, the final content of all topics, and the ledger must then
agree with what was sent (`tests.benchmarks._faults.verify`). The seed chooses the moment and the variant, and
is run with each delivery guarantee of the scenario.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path

import click

from flowcore.api.connectors import Delivery
from flowcore.kafka.broker import EmbeddedBroker
from flowcore.settings import Settings
from flowcore.spark.operators.key_groups import WORKER_POOL
from flowcore.spark.run.session import session
from pipelines.benchmark import this_commit, this_machine
from tests.benchmarks._faults.broker_faults import BROKER_FAULTS
from tests.benchmarks._faults.changes import CHANGES
from tests.benchmarks._faults.driver import ROOT
from tests.benchmarks._faults.kills import KILLS
from tests.benchmarks._faults.load import LOAD
from tests.benchmarks._faults.lying_input import LYING_INPUT
from tests.benchmarks._faults.machine import MACHINE_FAULTS
from tests.benchmarks._faults.pauses import PAUSES
from tests.benchmarks._faults.scenario import BOTH, Outcome, Scenario, run_scenario
from tests.benchmarks._faults.soak import SOAK
from tests.benchmarks._faults.storage import STORAGE
from tests.benchmarks._faults.trial import Site, Trial

SCENARIOS: tuple[Scenario, ...] = (
    *KILLS, *PAUSES, *MACHINE_FAULTS, *BROKER_FAULTS, *STORAGE, *CHANGES, *LYING_INPUT, *LOAD, *SOAK,
)  # fmt: skip
SOAK_MINUTES = 120.0


@click.command()
@click.option(
    "--seeds",
    default=1,
    show_default=True,
    type=click.IntRange(min=1),
    help="Seeds of each scenario, each with each of its delivery guarantees.",
)
@click.option("--first-seed", default=1, show_default=True, help="The first of these seeds.")
@click.option("--scenario", "names", multiple=True, metavar="ID", help="Only this scenario; may be repeated.")
@click.option("--delivery", type=click.Choice(BOTH), help="Only trials with this delivery guarantee.")
@click.option("--quick", is_flag=True, help="Only the fast trials that the tests run: one delivery each.")
@click.option("--list", "lists", is_flag=True, help="Print the scenarios and exit.")
@click.option(
    "--soak-minutes",
    type=click.FloatRange(min=5),
    help=f"Duration of the scenario soak.  [default: {SOAK_MINUTES:g}]",
)
@click.option("--keep", is_flag=True, help="Keep the folder with state, logs and brokers.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    *,
    seeds: int,
    first_seed: int,
    names: tuple[str, ...],
    delivery: Delivery | None,
    quick: bool,
    lists: bool,
    soak_minutes: float | None,
    keep: bool,
    as_json: bool,
) -> None:
    """Inject faults, and check that nothing is lost, doubled or wrong.

    The exit code is 1 if a rule does not hold.
    """
    chosen = choose_trials(names, delivery, quick=quick, lists=lists)
    if lists:
        _show_scenarios(chosen)
        return
    if soak_minutes is not None and not any(scenario.id == "soak" for scenario in chosen):
        msg = f"--soak-minutes {soak_minutes:g} would have no effect: add --scenario soak, or leave it out"
        raise click.UsageError(msg)
    outcomes: list[Outcome] = []
    numbers = range(first_seed, first_seed + seeds)

    def note(outcome: Outcome) -> None:
        outcomes.append(outcome)
        click.echo(_line(outcome), err=True)

    began = time.monotonic()
    _run(chosen, numbers, note, soak_s=60 * (soak_minutes or SOAK_MINUTES), keep=keep)
    found = summarize(outcomes)
    if as_json:
        click.echo(json.dumps({**found, "seconds": round(time.monotonic() - began)}))
    else:
        _show(found)
    sys.exit(1 if found["failed"] else 0)


def choose_trials(
    names: Iterable[str] = (), delivery: Delivery | None = None, *, quick: bool = False, lists: bool = False
) -> dict[Scenario, tuple[Delivery, ...]]:
    """The scenarios to run, and the delivery guarantees of the trials of each seed.

    Args:
        names: Ids of scenarios; by default all, to be listed or without those that only run by name.
        delivery: Only trials with this delivery guarantee.
        quick: Only the quick trials.

    Raises:
        UsageError: There is no such scenario, or nothing is left to run.
    """
    by_id = {each.id: each for each in SCENARIOS}
    if unknown := {*names} - {*by_id}:
        msg = f"--scenario {', '.join(sorted(unknown))} does not exist; see --list"
        raise click.UsageError(msg)
    names = names or [name for name, each in by_id.items() if lists or not each.by_name_only]
    chosen = {}
    for scenario in map(by_id.__getitem__, names):
        deliveries = tuple(
            each
            for each in scenario.deliveries
            if delivery in (None, each) and (not quick or scenario.quick == each)
        )
        if deliveries:
            chosen[scenario] = deliveries
    if not chosen:
        asked = ", ".join(names)
        msg = f"--quick or --delivery leaves no trial of {asked}: nothing would be checked; see --list"
        raise click.UsageError(msg)
    return chosen


def summarize(outcomes: Iterable[Outcome]) -> dict[str, object]:
    """The report as JSON-able data: ``scenarios.<id>.seeds`` and ``.passed``, and the list ``failed``.

    Seeds are trials: a seed counts once for each delivery guarantee, as ``.deliveries`` has them.
    """
    scenarios: dict[str, dict[str, object]] = {}
    failed = []
    by_id: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_id.setdefault(outcome.scenario, []).append(outcome)
        if not outcome.passed:
            failed.append(
                {
                    "scenario": outcome.scenario, "seed": outcome.seed, "delivery": outcome.delivery,
                    "notes": outcome.notes, "problems": outcome.problems,
                }
            )  # fmt: skip
    for name, mine in by_id.items():
        scenarios[name] = {
            **_count(mine),
            "deliveries": {
                delivery: _count(some)
                for delivery in BOTH
                if (some := [each for each in mine if each.delivery == delivery])
            },
            "repeats": sum(each.repeats for each in mine),
            "recovery_s": max(each.recovery_s for each in mine),
            "seconds": round(sum(each.seconds for each in mine), 1),
        }
    passed = sum(each.passed for mine in by_id.values() for each in mine)
    trials = sum(map(len, by_id.values()))
    return {
        "name": "faults",
        "machine": this_machine(),
        "commit": this_commit(),
        "scenarios": scenarios,
        "failed": failed,
        "notes": [f"{passed} of {trials} trials passed, of {len(by_id)} of {len(SCENARIOS)} scenarios"],
    }


def _count(outcomes: Sequence[Outcome]) -> dict[str, int]:
    return {"seeds": len(outcomes), "passed": sum(each.passed for each in outcomes)}


def _run(
    chosen: Mapping[Scenario, Sequence[Delivery]],
    seeds: range,
    note: Callable[[Outcome], None],
    *,
    soak_s: float,
    keep: bool,
) -> None:
    os.environ["PYTHONPATH"] = str(ROOT)  # workers import the flow's functions from the checkout
    folder = Path(tempfile.mkdtemp(prefix="flowcore-faults-"))
    click.echo(f"folder: {folder}", err=True)
    with ExitStack() as stack:
        if not keep:
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
        broker = stack.enter_context(EmbeddedBroker())
        settings = Settings.of({"state.dir": folder / "session"}, environment={})
        with _errors_to(folder / "session.log"):  # of the JVM and its workers, which keep it
            spark = stack.enter_context(session(settings, "faults", slots=2))
        spark.sparkContext.environment[WORKER_POOL] = "faults"  # trials share workers, which start slowly
        site = Site(broker.bootstrap_servers, spark, folder, soak_s=soak_s)
        _warm_up(site)
        for scenario, deliveries in chosen.items():
            for seed, delivery in product(seeds, deliveries):
                note(run_scenario(scenario, seed, delivery, site))


def _warm_up(site: Site) -> None:
    """Run a trial without a fault, which a recovery in a new session would count otherwise.

    Raises:
        ClickException: A rule does not hold without any fault.
    """

    def play(trial: Trial) -> None:
        trial.send(60)
        trial.close_windows()
        trial.finish()

    # It has the first batch of the session, so its time says nothing.
    scenario = Scenario(id="no-fault", title="", play=play, limit_s=math.inf)
    outcome = run_scenario(scenario, 0, "exactly-once", site)
    if outcome.problems:
        msg = "; ".join(outcome.problems)
        raise click.ClickException(msg)


@contextmanager
def _errors_to(log: Path) -> Iterator[None]:
    """Processes that are started in the block write their errors to a file."""
    kept = os.dup(2)
    with log.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _line(outcome: Outcome) -> str:
    result = "passed" if outcome.passed else "FAILED"
    notes = "; ".join(outcome.notes)
    text = (
        f"{outcome.scenario:<32} seed {outcome.seed:<3} {outcome.delivery:<13} {result} "
        f"recovered in {outcome.recovery_s:.1f} s, {outcome.seconds:.0f} s in all  {notes}"
    )
    return "\n".join([text, *(f"    {problem}" for problem in outcome.problems)])


def _show(found: dict[str, object]) -> None:
    scenarios, failed = found["scenarios"], found["failed"]
    assert isinstance(scenarios, dict)
    assert isinstance(failed, list)
    click.echo(f"faults: {len(scenarios)} scenarios\nmachine: {found['machine']}\ncommit: {found['commit']}")
    click.echo(f"  {'scenario':<32} {'passed':>9} {'repeats':>8} {'recovery':>10}  by delivery")
    for name, each in scenarios.items():
        figures = f"{_share(each):>9} {each['repeats']:>8} {each['recovery_s']:>8} s"
        by_delivery = ", ".join(f"{delivery} {_share(one)}" for delivery, one in each["deliveries"].items())
        click.echo(f"  {name:<32} {figures}  {by_delivery}")
    for each in failed:
        trial = f"{each['scenario']} with seed {each['seed']}, {each['delivery']}"
        click.echo(f"FAILED {trial}: {'; '.join(each['problems'])}")
    click.echo("all rules hold" if not failed else f"{len(failed)} trials FAILED")


def _share(counted: Mapping[str, int]) -> str:
    return f"{counted['passed']}/{counted['seeds']}"


def _show_scenarios(chosen: Mapping[Scenario, Sequence[Delivery]]) -> None:
    for each, deliveries in chosen.items():
        limits = f"{' and '.join(deliveries)}; limit {each.limit_s:g} s{_when(each)}"
        click.echo(f"{each.id:<32} {each.title}; {limits}")


def _when(scenario: Scenario) -> str:
    if scenario.by_name_only:
        return "; only with --scenario"
    return f"; quick {scenario.quick}" if scenario.quick else ""
