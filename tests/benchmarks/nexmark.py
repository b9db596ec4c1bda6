"""Nexmark's queries from Kafka to Kafka, each result verified against DuckDB.

Each query reads all of its events as a slice, from new checkpoints in one session. The seconds run from the
start of its queries to their end. Memory is that of Spark's JVM and the Python workers below it, at its peak.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
from pyspark import SparkContext

from flowcore.errors import RunError
from flowcore.kafka.broker import EmbeddedBroker
from flowcore.kafka.topics import end_offsets, ensure_topics
from flowcore.planner import plan_flow
from flowcore.settings import Settings
from flowcore.spark.context import Context
from flowcore.spark.run.flow import SilentListener, open_context, run_stages
from flowcore.spark.run.live_stage import LiveRun
from flowcore.spark.run.live_topics import prepare_topics
from pipelines.benchmark import Figures, Report
from pipelines.nexmark.answers import QUERIES, check_answer, load_query
from pipelines.nexmark.events import Tables, feed_events, result_topic
from pipelines.nexmark.generator import NexmarkConfig

BATCH = 500_000
BIDS_ONLY = 2_173_916  # events of all kinds, of which 2,000,000 are bids
_SAMPLE_S = 0.5


@click.command()
@click.option(
    "--query", "names", multiple=True, help="Run only this query, for instance q5. May be repeated."
)
@click.option(
    "--events", default=BIDS_ONLY, show_default=True, help="Events of all kinds; 46 of 50 are bids."
)
@click.option("--rounds", default=3, show_default=True, help="Counted runs of each query.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(names: tuple[str, ...], events: int, rounds: int, *, as_json: bool) -> None:
    """Nexmark's queries over events already in Kafka, verified against DuckDB."""
    unknown = set(names) - set(QUERIES)
    if unknown:
        msg = f"there is no query {', '.join(sorted(unknown))}; the queries are {', '.join(QUERIES)}"
        raise click.UsageError(msg)
    with (
        tempfile.TemporaryDirectory(prefix="flowcore-bench-", ignore_cleanup_errors=True) as folder,
        EmbeddedBroker() as broker,
    ):
        report = _measure(Path(folder), broker.bootstrap_servers, names or QUERIES, events, rounds)
    report.show(as_json=as_json)


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of a query: events that it read, its seconds, and the peak memory."""

    events: int
    seconds: float
    peak_mb: float

    @property
    def per_core(self) -> float:
        return self.events / self.seconds / (os.cpu_count() or 1)


def _measure(folder: Path, servers: str, names: tuple[str, ...], events: int, rounds: int) -> Report:
    settings = Settings.of(
        {
            "kafka.bootstrap.servers": servers,
            "state.dir": folder / "state",
            "execution.max-records-per-batch": BATCH,
        }
    )
    tables = feed_events(servers, NexmarkConfig(), events)
    figures: list[Figures] = []
    details: dict[str, Any] = {}
    with open_context(plan_flow(load_query("q0"), "slice", settings), settings) as context:
        for name in names:
            runs = [_run(context, servers, folder, name, tables) for _ in range(rounds + 1)][
                1:
            ]  # the first warms up
            figures.append(Figures(name, "events/s per core", [run.per_core for run in runs]))
            figures.append(Figures(f"{name} memory", "MB at peak", [run.peak_mb for run in runs]))
            speed, memory = figures[-2:]
            details[name] = {
                "right": True, "events_per_second": speed.median * (os.cpu_count() or 1),
                "events_per_second_per_core": speed.median, "peak_mb": memory.median,
            }  # fmt: skip
            click.echo(f"{name}: {details[name]}", err=True)  # progress: a query takes minutes
    return Report(
        name="nexmark",
        workload=f"{events:,} events ({tables['bid'].num_rows:,} bids) in topics of 2 partitions, slices "
        f"with batches of {BATCH:,}",
        figures=figures,
        ratios={},
        verified="every result of every round against DuckDB over the same events, each written once",
        details={"queries": details},
    )


def _run(context: Context, servers: str, folder: Path, name: str, tables: Tables) -> _Run:
    """Run a query over all events with a new state.

    Raises:
        RunError: Its results are not DuckDB's.
    """
    flow = load_query(name)
    state = tempfile.mkdtemp(dir=folder, prefix=f"{name}-")
    settings = replace(context.settings, state_dir=Path(state))
    plan = plan_flow(flow, "slice", settings)
    assert plan.live
    prepare_topics(plan.live, settings)
    own = Context(context.spark, settings, flow.name)
    run_stages(plan, own, refresh=False, listener=SilentListener())
    topic = result_topic(name).name
    ensure_topics(servers, {topic: 2})
    before = end_offsets(servers, topic)
    with _peak_memory() as peak_mb:
        began = time.monotonic()
        with LiveRun(plan, own) as run:
            run.wait()
        seconds = time.monotonic() - began
    answer = check_answer(name, tables, servers, before)
    if not answer.right or answer.repeats:
        msg = f"{name}: {answer}: the results are not those of DuckDB, so their speed is meaningless"
        raise RunError(msg)
    read = {source.topic.name for source in plan.live.sources if source.topic}
    events = sum(len(table) for kind, table in tables.items() if f"nexmark-{kind}" in read)
    return _Run(events, seconds, max(peak_mb))


@contextmanager
def _peak_memory() -> Iterator[list[float]]:
    """Sample the resident memory of the JVM and of all processes below it, in MB."""
    java: Any = SparkContext._gateway
    samples, stop = [0.0], threading.Event()

    def sample() -> None:
        while not stop.wait(_SAMPLE_S):
            samples.append(_resident_mb(java.proc.pid))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        stop.set()
        thread.join()


def _resident_mb(root: int) -> float:
    """Resident memory of a process and all below it; of pages that they share, each has its part (PSS)."""
    parents = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            parents[int(process.name)] = int((process / "stat").read_text().rpartition(")")[2].split()[1])
    family = {root}
    while more := {child for child, parent in parents.items() if parent in family} - family:
        family |= more
    found = 0
    for number in family:
        with suppress(OSError):
            rollup = Path(f"/proc/{number}/smaps_rollup").read_text()
            found += next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    return found * 1024 / 1e6
