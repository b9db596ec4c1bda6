"""Nexmark's queries from Kafka to Kafka, each result verified against DuckDB.

Each query reads all of its events as a slice, from new checkpoints in one session. With a rival, both run the
query alternately over the same topics, and the results of both are verified. First all queries run over a
quarter of the events, in topics that are then deleted, and after that over all events. So the additional
seconds of the additional events can be told apart from the start.

The seconds begin when the sources begin to read: with the first batch of flowcore, with the state RUNNING of
PyFlink's first source. They end when the broker has appended the last result; for q10 (files) and q12 (which
waits for its windows) at the end of the slice. Memory, at its peak, and processor time are those of the
engine's JVM and all processes below it.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

import click
from confluent_kafka import Message

from flowcore.errors import RunError
from flowcore.kafka.broker import EmbeddedBroker
from flowcore.kafka.topics import end_offsets, ensure_topics
from flowcore.planner import plan_flow
from flowcore.settings import Settings
from flowcore.spark.context import Context
from flowcore.spark.run.flow import open_context, run_plan
from flowcore.spark.run.live_stage import LiveRun
from flowcore.spark.run.live_topics import prepare_topics
from pipelines.auctions.readers import read_messages
from pipelines.benchmark import Figures, Report, in_turn, slope
from pipelines.nexmark.answers import BY_CLOCK, QUERIES, Answer, check_folder, check_messages, load_query
from pipelines.nexmark.events import (
    AUCTIONS,
    BIDS,
    PARTITIONS,
    PERSONS,
    Tables,
    feed_events,
    result_topic,
)
from pipelines.nexmark.generator import NexmarkConfig
from tests.benchmarks._nexmark_kills import Killing
from tests.benchmarks._process_cost import ProcessCost, spark_pid
from tests.benchmarks._pyflink.rival import PyFlink, query_text
from tests.benchmarks._rounds import parts_of
from tests.benchmarks._topics import delete_topics

BATCH = 500_000
BIDS_ONLY = 2_173_916  # events of all kinds, of which 2,000,000 are bids
_WINDOWS_END_S = 60.0
_CORES = os.cpu_count() or 1


@click.command()
@click.option(
    "--query", "names", multiple=True, help="Run only this query, for instance q5. May be repeated."
)
@click.option(
    "--events", default=BIDS_ONLY, show_default=True, help="Events of all kinds; 46 of 50 are bids."
)
@click.option("--rounds", default=3, show_default=True, help="Counted runs of each query.")
@click.option("--rival", type=click.Choice(["pyflink"]), help="Run the same queries in PyFlink SQL too.")
@click.option(
    "--kills",
    default=0,
    show_default=True,
    type=click.IntRange(min=0),
    help="Instead of speed: kill -9 the driver of each query so often, and verify what readers find.",
)
@click.option("--seed", default=1, show_default=True, help="Chooses the moments of --kills.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    names: tuple[str, ...],
    events: int,
    rounds: int,
    rival: str | None,
    *,
    kills: int,
    seed: int,
    as_json: bool,
) -> None:
    """Nexmark's queries over events already in Kafka, verified against DuckDB."""
    unknown = set(names) - set(QUERIES)
    if unknown:
        msg = f"there is no query {', '.join(sorted(unknown))}; the queries are {', '.join(QUERIES)}"
        raise click.UsageError(msg)
    if kills and rival:
        msg = "--kills measures no speed, so it has no --rival: leave one of them out"
        raise click.UsageError(msg)
    with ExitStack() as closing:
        folder = Path(
            closing.enter_context(
                tempfile.TemporaryDirectory(prefix="flowcore-bench-", ignore_cleanup_errors=True)
            )
        )
        servers = closing.enter_context(EmbeddedBroker()).bootstrap_servers
        if kills:
            killing = Killing(servers, folder, feed_events(servers, NexmarkConfig(), events), kills, seed)
            sys.exit(0 if killing.report(names or QUERIES, as_json=as_json) else 1)
        settings = Settings.of(
            {
                "kafka.bootstrap.servers": servers,
                "state.dir": folder / "state",
                "execution.max-records-per-batch": BATCH,
            }
        )
        for topic in (PERSONS, AUCTIONS, BIDS):
            ensure_topics(servers, {topic.name: PARTITIONS})
        context = closing.enter_context(
            open_context(plan_flow(load_query("q0"), "slice", settings), settings)
        )
        heap = context.spark.conf.get("spark.driver.memory") or "1g"
        pyflink = closing.enter_context(PyFlink(servers, folder / "pyflink", heap)) if rival else None
        bench = _Bench(context, servers, folder, pyflink)
        *few, many = (bench.measure_all(count, names or tuple(QUERIES), rounds) for count in parts_of(events))
    _report(few[0] if few else {}, many, bench.tables, rival, bench.failures).show(as_json=as_json)
    if bench.failures:
        msg = f"failed, or with wrong results: {', '.join(map(_label, bench.failures))}; see the report"
        raise RunError(msg)


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of a query: events that it read, its seconds, and what it cost."""

    events: int
    seconds: float
    peak_mb: float
    cpu_s: float

    @property
    def per_second(self) -> float:
        return self.events / self.seconds


Runs = Mapping[str, Sequence[_Run]]
"""The counted runs of a query, by contender; one that failed has none."""
Failures = Mapping[tuple[str, str], str]
"""Why a run failed, by query and contender."""
OURS, RIVAL = "flowcore", "PyFlink"


def _label(run: tuple[str, str]) -> str:
    name, who = run
    return name if who == OURS else f"{name} {who}"


def _report(
    few: Mapping[str, Runs], many: Mapping[str, Runs], tables: Tables, rival: str | None, failures: Failures
) -> Report:
    figures = [
        Figures(
            _label((name, who)), "events/s", [run.per_second for run in runs],
            _by_slope(few.get(name, {}).get(who), runs),
            [run.cpu_s for run in runs], [run.peak_mb for run in runs],
        )
        for name, contenders in many.items()
        for who, runs in contenders.items()
        if (name, who) not in failures  # rounds before the failure would look like a whole result
    ]  # fmt: skip
    events = sum(map(len, tables.values()))
    queries = {name: _details(name, few.get(name, {}), runs, failures) for name, runs in many.items()}
    also = " of both" if rival else ""
    return Report(
        name="nexmark",
        workload=f"{events:,} events ({tables['bid'].num_rows:,} bids) in topics of {PARTITIONS} partitions, "
        f"slices with batches of {BATCH:,}; before it the same with a quarter of the events",
        figures=figures,
        ratios={
            f"{name}_{ratio}": each[ratio]
            for name, each in queries.items()
            for ratio in ("ratio", "ratio_by_slope")
            if each.get(ratio) is not None
        },
        verified=f"every result of every run{also} that has figures against DuckDB over the same events, "
        "those of flowcore each written once",
        details={"queries": queries},
        notes=[f"{_label(run)} FAILED, so it has no figures: {why}" for run, why in failures.items()],
    )


def _details(name: str, few: Runs, many: Runs, failures: Failures) -> dict[str, Any]:
    """What the JSON object says of a query; it has a ratio if neither contender failed."""
    summaries: dict[str, dict[str, Any]] = {
        who: {"right": False, "failure": failures[name, who]}
        if (name, who) in failures
        else _summary(few.get(who), runs)
        for who, runs in many.items()
    }
    if RIVAL not in summaries:
        return summaries[OURS]
    if not all(each["right"] for each in summaries.values()):
        return {**summaries[OURS], "pyflink": summaries[RIVAL]}
    ratios = {"ratio": summaries[OURS]["events_per_second"] / summaries[RIVAL]["events_per_second"]}
    ours, theirs = (summaries[who]["events_per_second_by_slope"] for who in (OURS, RIVAL))
    if ours and theirs:
        ratios["ratio_by_slope"] = ours / theirs
    return {**summaries[OURS], **ratios, "pyflink": summaries[RIVAL]}


def _summary(few: Sequence[_Run] | None, many: Sequence[_Run]) -> dict[str, Any]:
    rates = [run.per_second for run in many]
    return {
        "right": True,
        "events_per_second": median(rates),
        "events_per_second_min": min(rates),
        "events_per_second_max": max(rates),
        "events_per_second_per_core": median(rates) / _CORES,
        "events_per_second_by_slope": _by_slope(few, many),
        "peak_mb": median(run.peak_mb for run in many),
        "cpu_s": median(run.cpu_s for run in many),
    }


def _by_slope(few: Sequence[_Run] | None, many: Sequence[_Run]) -> float | None:
    if few is None:
        return None
    part, whole = ((runs[0].events, [run.seconds for run in runs]) for runs in (few, many))
    return slope(part, whole)


class _Bench:
    def __init__(self, context: Context, servers: str, folder: Path, pyflink: PyFlink | None) -> None:
        self.context, self.servers, self.folder, self.pyflink = context, servers, folder, pyflink
        self.tables: Tables = {}
        self.failures: dict[tuple[str, str], str] = {}

    def measure_all(self, events: int, names: Sequence[str], rounds: int) -> dict[str, Runs]:
        """Run queries over this many events."""
        self._feed(events)
        return {name: self.measure(name, rounds) for name in names}

    def _feed(self, events: int) -> None:
        """Let the topics have these events only."""
        delete_topics(self.servers, [topic.name for topic in (PERSONS, AUCTIONS, BIDS)])
        self.tables = feed_events(self.servers, NexmarkConfig(), events)

    def measure(self, name: str, rounds: int) -> Runs:
        """Run a query once to warm up, and then for each round; each contender in turn.

        One that has failed is left out from then on.
        """
        runs: dict[str, list[_Run]] = {OURS: []}
        if self.pyflink is not None and query_text(name) is not None:
            runs[RIVAL] = []
        one: dict[str, Callable[[str], _Run]] = {OURS: self._ours, RIVAL: self._rival}

        def contender(who: str, counted: bool) -> Callable[[int], None]:
            def run(_round: int) -> None:
                if (name, who) in self.failures:
                    return
                try:
                    found = one[who](name)
                except Exception as error:  # noqa: BLE001 - the figures of the others would be lost
                    self.failures[name, who] = f"{type(error).__name__}: {error}"
                    click.echo(f"{name} {who} failed: {error}", err=True)
                    return
                click.echo(f"{name} {who}: {found}", err=True)  # progress: a query takes minutes
                if counted:
                    runs[who].append(found)

            return run

        for counted, times in ((False, 1), (True, rounds)):
            in_turn(times, *(contender(who, counted) for who in runs))
        return runs

    def _ours(self, name: str) -> _Run:
        """Run a query of flowcore over all events with a new state.

        Raises:
            RunError: Its results are not DuckDB's.
        """
        flow = load_query(name)
        state = Path(tempfile.mkdtemp(dir=self.folder, prefix=f"{name}-"))
        settings = replace(self.context.settings, state_dir=state, data_dir=state)
        plan = plan_flow(flow, "slice", settings)
        assert plan.live
        results = self._results(result_topic(name).name)
        prepare_topics(plan, settings)
        own = Context(self.context.spark, settings, flow.name)
        run_plan(replace(plan, live=None), own)
        with ProcessCost(spark_pid()) as cost, LiveRun(plan, own) as run:
            run.wait()
            ended_ms, began_ms = _now_ms(), _first_batch_ms(run)
        if flow.sinks[0].topic is None:
            self._require_right(name, OURS, check_folder(name, self.tables, state))
        elif name in BY_CLOCK:
            self._end_windows(name, settings, results)
        else:
            ended_ms = self._check(name, OURS, results)
        return _Run(self._events(name), (ended_ms - began_ms) / 1_000, cost.peak_mb, cost.cpu_s)

    def _rival(self, name: str) -> _Run:
        """Run a query of PyFlink over all events.

        Raises:
            RunError: It failed, or its results are not DuckDB's.
        """
        results = self._results(f"{result_topic(name).name}-pyflink")
        assert self.pyflink is not None
        with ProcessCost(self.pyflink.pid) as cost:
            began_ms = self.pyflink.run(name, results.topic)
        ended_ms = self._check(name, RIVAL, results)
        return _Run(self._events(name), (ended_ms - began_ms) / 1_000, cost.peak_mb, cost.cpu_s)

    def _results(self, topic: str) -> _Results:
        ensure_topics(self.servers, {topic: PARTITIONS}, {"message.timestamp.type": "LogAppendTime"})
        return _Results(self.servers, topic, end_offsets(self.servers, topic))

    def _check(self, name: str, who: str, results: _Results) -> int:
        """Check the results of a run; return when the broker has appended the last one."""
        messages = _Appended(results.read())
        self._require_right(name, who, check_messages(name, self.tables, messages, rival=who == RIVAL))
        return messages.last_ms

    def _end_windows(self, name: str, settings: Settings, results: _Results) -> None:
        """Let the windows end that wait for the clock, and check all of them."""
        plan = plan_flow(load_query(name), "micro-batch", settings)
        end = time.monotonic() + _WINDOWS_END_S
        with LiveRun(plan, Context(self.context.spark, settings, plan.flow)) as run:
            while True:
                run.wait(1)
                answer = check_messages(name, self.tables, results.read())
                if answer.right or time.monotonic() > end:
                    break
        self._require_right(name, OURS, answer)

    def _require_right(self, name: str, who: str, answer: Answer) -> None:
        if not answer.right or answer.repeats:
            msg = (
                f"{name} of {who}: {answer}: the results are not those of DuckDB: their speed is meaningless"
            )
            raise RunError(msg)

    def _events(self, name: str) -> int:
        live = plan_flow(load_query(name), "slice", self.context.settings).live
        assert live
        read = {source.topic.name for source in live.sources if source.topic}
        return sum(len(table) for kind, table in self.tables.items() if f"nexmark-{kind}" in read)


@dataclass(frozen=True, slots=True)
class _Results:
    """What a run writes to a topic, after the results of earlier runs."""

    servers: str
    topic: str
    since: Mapping[int, int]

    def read(self) -> Iterator[list[Message]]:
        return read_messages(self.servers, self.topic, self.since)


class _Appended:
    """Messages, with the time at which the broker has appended the last of them."""

    def __init__(self, parts: Iterable[Sequence[Message]]) -> None:
        self._parts = parts
        self.last_ms = 0

    def __iter__(self) -> Iterator[Sequence[Message]]:
        for part in self._parts:
            self.last_ms = max([self.last_ms, *(message.timestamp()[1] for message in part)])
            yield part


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _first_batch_ms(run: LiveRun) -> int:
    """When the first batch of a run has started."""
    progress = (each for query in run.running.values() for each in query.recentProgress if each.numInputRows)
    return min(round(datetime.fromisoformat(each.timestamp).timestamp() * 1_000) for each in progress)
