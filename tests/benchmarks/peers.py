"""The same workloads in other engines, beside flowcore, from Kafka to Kafka, each result verified.

Each contender is a program as its users write it (`_peers/programs`), started as a command and seen from
outside only: the times are those of the broker and of its connections. They take turns. Rates are measured
over two numbers of records, so that the start can be told apart: the slope is the additional records over
the additional seconds.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import click

from flowcore.errors import InstallationError, RunError
from flowcore.kafka.broker import EmbeddedBroker
from pipelines.benchmark import Figures, Report, in_turn, slope
from tests.benchmarks._peers.contenders import CONTENDERS, OURS, RIVALS
from tests.benchmarks._peers.processes import require_ss
from tests.benchmarks._peers.runs import CHECKPOINT_S, LIVE_CHECKPOINT_S, RATE, Latency, Site, Throughput
from tests.benchmarks._peers.workloads import PARTITIONS, WORKLOADS

LATENCY = "latency"


@dataclass(slots=True)
class Runs:
    """The counted runs of a contender with one workload, or why it has none.

    Attributes:
        few: Runs over fewer records.
        failure: Why one of its runs failed.
        absence: Why it takes no part: nobody asked for it by name, and it cannot.
    """

    many: list[Throughput] = field(default_factory=list)
    few: list[Throughput] = field(default_factory=list)
    live: list[Latency] = field(default_factory=list)
    failure: str | None = None
    absence: str | None = None


Found = Mapping[str, Mapping[str, Runs]]
"""The runs by workload and contender."""


@click.command()
@click.option(
    "--workload", "workloads", multiple=True, type=click.Choice([*WORKLOADS, "all"]), help="Default: all."
)
@click.option(
    "--rival", "rivals", multiple=True, type=click.Choice(RIVALS), help="Default: all. May be repeated."
)
@click.option(
    "--records", default=2_000_000, show_default=True, help="Records of a run over records in Kafka."
)
@click.option("--rounds", default=3, show_default=True, help="Counted runs of each contender.")
@click.option("--warm-up", default=30.0, show_default=True, help="Seconds of latency that do not count.")
@click.option("--seconds", default=130.0, show_default=True, help="Seconds of latency that count.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    *,
    workloads: tuple[str, ...],
    rivals: tuple[str, ...],
    records: int,
    rounds: int,
    warm_up: float,
    seconds: float,
    as_json: bool,
) -> None:
    """Other engines beside flowcore: throughput, start, latency, memory; every answer verified.

    The exit code is 1 if flowcore or a rival that takes part fails.
    """
    names = tuple(WORKLOADS) if not workloads or "all" in workloads else workloads
    require_ss()
    with (
        tempfile.TemporaryDirectory(prefix="flowcore-bench-", ignore_cleanup_errors=True) as folder,
        EmbeddedBroker() as broker,
    ):
        bench = _Bench(Site(broker.bootstrap_servers, Path(folder)), records, warm_up, seconds, {*rivals})
        found = {name: bench.measure(name, (OURS, *(rivals or RIVALS)), rounds) for name in names}
    _report(found, records, seconds).show(as_json=as_json)
    if failed := _failures(found):
        msg = f"failed, or with wrong results: {', '.join(failed)}; see the report"
        raise RunError(msg)


class _Bench:
    def __init__(
        self, site: Site, records: int, warm_up_s: float, measured_s: float, asked: Collection[str]
    ) -> None:
        self.site, self.records = site, records
        self.warm_up_s, self.measured_s = warm_up_s, measured_s
        self.asked = asked

    def measure(self, workload: str, names: Sequence[str], rounds: int) -> dict[str, Runs]:
        """Run each contender in turn; one that has failed is left out from then on."""
        found = {
            name: Runs(absence=None if name in {OURS, *self.asked} else _absence(workload, name))
            for name in names
        }
        present = [name for name, runs in found.items() if runs.absence is None]

        def contender(name: str, counted: bool) -> Callable[[int], float]:
            def run(_round: int) -> float:
                if found[name].failure is None:
                    try:
                        self._run(workload, name, found[name], counted=counted)
                    except Exception as error:  # noqa: BLE001 - the figures of the others would be lost
                        found[name].failure = f"{type(error).__name__}: {error}"
                        click.echo(f"{workload} {name} failed: {error}", err=True)
                return 0.0

            return run

        for counted, times in ((False, 1), (True, rounds)):
            in_turn(times, *(contender(name, counted) for name in present))
        self.site.forget_records()
        return found

    def _run(self, workload: str, name: str, runs: Runs, *, counted: bool) -> None:
        """Run a contender once, or to warm up the machine's caches over few records only."""
        one: Throughput | Latency
        if workload == LATENCY:
            if counted:
                one = self.site.latency(CONTENDERS[name], self.warm_up_s, self.measured_s)
                runs.live.append(one)
                click.echo(f"{workload} {name}: {one}", err=True)  # progress: a run takes a minute
            return
        for kept, count in ((runs.few, self.records // 4), (runs.many, self.records))[: 2 if counted else 1]:
            one = self.site.throughput(CONTENDERS[name], workload, count)
            if counted:
                kept.append(one)
            click.echo(f"{workload} {name}: {one}", err=True)


def _absence(workload: str, name: str) -> str | None:
    """Why a rival that nobody asked for by name takes no part; None if it does."""
    contender = CONTENDERS[name]
    if workload in contender.wrong:
        return f"its results are known to be wrong: {contender.wrong[workload]}"
    try:
        contender.install()
    except InstallationError as error:
        return str(error)
    return None


def _failures(found: Found) -> dict[str, str]:
    """Why runs failed, by workload and contender."""
    return {
        f"{workload} {name}": runs.failure
        for workload, of in found.items()
        for name, runs in of.items()
        if runs.failure is not None
    }


def _report(found: Found, records: int, seconds: float) -> Report:
    details = {
        workload: {name: _summary(runs) for name, runs in of.items()} for workload, of in found.items()
    }
    worst = {workload: _worst_ratio(workload, of) for workload, of in details.items()}
    ratios = {f"{workload}_worst_ratio": ratio for workload, (ratio, _) in worst.items() if ratio is not None}
    for workload in worst:
        if (ratio := _worst_by_slope(details[workload])) is not None:
            ratios[f"{workload}_worst_ratio_by_slope"] = ratio
    return Report(
        name="peers",
        workload=f"{records:,} records in topics of {PARTITIONS} partitions, a checkpoint each "
        f"{CHECKPOINT_S} s; latency at {RATE:,.0f} bids/s at random moments for {seconds:.0f} s, a "
        f"checkpoint each {LIVE_CHECKPOINT_S} s; "
        + "; ".join(f"{name}: {WORKLOADS[name].what}" for name in found),
        figures=[
            figure
            for workload, of in found.items()
            for name, runs in of.items()
            for figure in _figures(workload, name, runs)
        ],
        ratios=ratios,
        verified=_verified(found),
        details={
            "workloads": {
                workload: {**of, "worst_ratio": worst[workload][0], "no_ratio_because": worst[workload][1]}
                for workload, of in details.items()
            },
            "settings": {name: CONTENDERS[name].settings for of in found.values() for name in of},
        },
        notes=[
            *(f"{who} FAILED, so it has no figures: {why}" for who, why in _failures(found).items()),
            *(
                f"{workload} {name} takes no part: {runs.absence}"
                for workload, of in found.items()
                for name, runs in of.items()
                if runs.absence is not None
            ),
            *(f"{workload} has no worst ratio: {why}" for workload, (_, why) in worst.items() if why),
        ],
    )


def _verified(found: Found) -> str:
    """What was verified, and who failed."""
    failed = _failures(found)
    return (
        "every result of every run that has figures, against DuckDB over the same records: none is missing, "
        f"wrong or repeated{'; FAILED: ' if failed else ''}{', '.join(failed)}"
    )


def _figures(workload: str, name: str, runs: Runs) -> list[Figures]:
    label = f"{workload} {name}"
    if runs.failure is not None:  # rounds before the failure would look like a whole result
        return []
    if runs.many:
        return [
            Figures(
                label,
                "records/s",
                [run.per_second for run in runs.many],
                _slope(runs),
                [run.cpu_s for run in runs.many],
                [run.peak_mb for run in runs.many],
            ),
            Figures(f"{label} first", "s to the first result", [run.first_result_s for run in runs.many]),
        ]
    if runs.live:
        return [
            Figures(
                f"{label} p50",
                "ms",
                [run.p50_ms for run in runs.live],
                cpu_s=[run.cpu_s for run in runs.live],
                peak_mb=[run.peak_mb for run in runs.live],
            ),
            Figures(f"{label} p99", "ms", [run.p99_ms for run in runs.live]),
            Figures(f"{label} max", "ms", [run.max_ms for run in runs.live]),
            Figures(f"{label} slow", "seconds over 100 ms", [run.slow_seconds for run in runs.live]),
        ]
    return []


_NONE: Mapping[str, Any] = dict.fromkeys(
    ("records_per_second", "records_per_second_min", "records_per_second_max", "records_per_second_by_slope",
     "first_result_s", "p50_ms", "p99_ms", "max_ms", "slow_seconds", "outputs", "peak_mb", "cpu_s")
)  # fmt: skip


def _summary(runs: Runs) -> dict[str, Any] | None:
    """What the JSON object says of a contender; what its workload does not measure is null.

    A contender that takes no part is null itself.
    """
    if runs.absence is not None:
        return None
    if runs.failure is not None:
        return {**_NONE, "right": False, "failure": runs.failure}
    every: Sequence[Throughput | Latency] = runs.many or runs.live
    found: dict[str, Any] = {
        name: median(getattr(run, name) for run in every)
        for name in ("first_result_s", "outputs", "peak_mb", "cpu_s")
    }
    if runs.live:
        found |= {
            name: median(getattr(run, name) for run in runs.live)
            for name in ("p50_ms", "p99_ms", "slow_seconds")
        }
        found["max_ms"] = max(run.max_ms for run in runs.live)
    else:
        rates = [run.per_second for run in runs.many]
        found |= {
            "records_per_second": median(rates),
            "records_per_second_min": min(rates),
            "records_per_second_max": max(rates),
            "records_per_second_by_slope": _slope(runs),
        }
    return {**_NONE, **found, "right": True}


def _slope(runs: Runs) -> float | None:
    """Additional records over additional seconds; None if few records took as long as many."""
    few, many = ((each[0].records, [run.whole_s for run in each]) for each in (runs.few, runs.many))
    return slope(few, many)


def _worst_by_slope(of: Mapping[str, Mapping[str, Any] | None]) -> float | None:
    """The worst ratio of rates without the start of a run; None if a contender has no such rate."""
    present = {name: each for name, each in of.items() if each is not None}
    rates = {name: each["records_per_second_by_slope"] for name, each in present.items()}
    ours = rates.pop(OURS)
    peers = [rate for rate in rates.values() if rate]
    return float(ours / max(peers)) if ours and peers and len(peers) == len(rates) else None


def _worst_ratio(
    workload: str, figures: Mapping[str, Mapping[str, Any] | None]
) -> tuple[float | None, str | None]:
    """Our figure over that of the best peer; of latency, the peer's over ours, the worse of p50 and p99.

    There is none, and the reason, if a contender failed: it could have been the best.
    """
    present = {name: each for name, each in figures.items() if each is not None}
    if failed := [name for name, each in present.items() if not each["right"]]:
        return None, f"{', '.join(failed)} failed"
    ours = present.pop(OURS)
    if not present:
        return None, "no rival takes part"
    peers = present.values()
    if workload == LATENCY:
        ratio = min(min(peer[name] for peer in peers) / ours[name] for name in ("p50_ms", "p99_ms"))
    else:
        ratio = ours["records_per_second"] / max(peer["records_per_second"] for peer in peers)
    return float(ratio), None
