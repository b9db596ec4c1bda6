"""`deploy/demo`: the reference flow from an empty folder to verified results, on its own broker.

The demo generates the history, lets Dagster run the bounded stage, starts the live query, feeds bids at a
steady rate, and compares the output with DuckDB's results for the same events. Bids that are sent while
Spark's JVM warms up are verified too, but do not count for the latency. Then the second flow reads the same
bids as a slice, with the settings of the deployment, and is verified too.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from dagster import DagsterInstance
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from flowcore.cli.signals import stopped_by_signals
from flowcore.errors import FlowcoreError, RunError
from flowcore.kafka.broker import EmbeddedBroker
from flowcore.kafka.topics import ensure_topics
from flowcore.planner import plan_flow
from flowcore.settings import Settings
from flowcore.spark.context import Context
from flowcore.spark.run.flow import open_context
from flowcore.spark.run.live_stage import LiveRun
from flowcore.spark.run.live_topics import prepare_topics
from pipelines.auctions import verify
from pipelines.auctions.activity import flow as activity_flow
from pipelines.auctions.flow import flow
from pipelines.auctions.readers import Collector, latencies_ms, read_values
from pipelines.auctions.ui import CHECKOUT, serve_ui
from pipelines.auctions.verify_activity import compare_activity, compare_bidders
from pipelines.benchmark import this_commit, this_machine
from pipelines.nexmark import feed, generator, history

PARTITIONS = 2
ENRICHED, HIGHEST = "enriched-bids", "highest-bids"
ACTIVITY, LATE, TOTALS = "auction-activity", "late-bids", "bidder-totals"
PARTS = {"highest prices": "highest", "windows and late bids": "activity", "bidders": "bidders"}
CONFIG = generator.NexmarkConfig()
WARM_MS = 20.0  # the stream is warm if 99 % of the last seconds' bids were faster
WARM_WINDOW_US = 5_000_000
LONGEST_WARM_UP_S = 90.0
LONGEST_WAIT_S = 60.0
QUIET_S = 2.0


@dataclass(frozen=True, slots=True)
class Fed:
    """Number of sent bids, duration of the warm-up, and start of the latency measurement."""

    bids: int
    warm_up_s: float
    measured_from_us: int


@click.command()
@click.option("--seconds", default=60.0, show_default=True, help="Duration of the measurement.")
@click.option("--rate", default=1_000.0, show_default=True, help="Bids a second.")
@click.option("--history-events", default=500_000, show_default=True, help="Number of events in the history.")
@click.option("--report", type=click.Path(path_type=Path), metavar="FILE", help="Write the report as JSON.")
@click.option("--ui", is_flag=True, help="Keep the Dagster UI and the stream running until Ctrl-C.")
def main(seconds: float, rate: float, history_events: int, report: Path | None, *, ui: bool) -> None:
    """Run the reference flow end to end on a Kafka broker, and verify every record of the output.

    \b
    Examples:
      deploy/demo
      deploy/demo --seconds 30 --report report.json
      deploy/demo --ui

    The exit code is 1 if a record is lost or wrong.
    """
    console = Console()
    try:
        with stopped_by_signals(), _folder() as folder, EmbeddedBroker() as broker:
            _environment(folder, broker.bootstrap_servers)
            found = _demonstrate(folder, broker.bootstrap_servers, seconds, rate, history_events)
            console.print(_table(found))
            if report:
                report.write_text(json.dumps(found, indent=1) + "\n")
            if ui:
                bids = generator.live_batches(CONFIG, history_events, sys.maxsize, max(int(rate), 1))
                with serve_ui(console):
                    feed.feed(broker.bootstrap_servers, "bids", bids, rate)
    except KeyboardInterrupt:
        console.print("stopped")
        sys.exit(130)
    except FlowcoreError as error:
        console.print(f"error: {error}", markup=False)
        sys.exit(1)
    sys.exit(0 if found["ok"] else 1)


def _demonstrate(folder: Path, servers: str, seconds: float, rate: float, events: int) -> dict[str, Any]:
    with _progress() as progress:
        _history(progress, folder, events)
        bounded_s = _bounded_stage(progress)
        ensure_topics(servers, {"bids": PARTITIONS, ENRICHED: PARTITIONS, HIGHEST: PARTITIONS})
        plan = plan_flow(flow, settings=Settings.of())
        with ExitStack() as session:
            with _waiting(progress, "start the live query"):
                context = session.enter_context(open_context(plan, Settings.of()))
                live = session.enter_context(ExitStack())
                run = live.enter_context(LiveRun(plan, context))
                collector = live.enter_context(Collector(servers, [ENRICHED, HIGHEST]))
            bids = generator.live_batches(CONFIG, events, sys.maxsize, batch_rows=max(int(rate), 1))
            start = partial(feed.feed, servers, "bids", bids, rate)
            fed = _feed(progress, collector, run, start=lambda stop: start(stop=stop), seconds=seconds)
            _wait_for_output(progress, collector, run, fed.bids)
            with _waiting(progress, "verify against DuckDB"):
                sent = pa.concat_tables(generator.live_batches(CONFIG, events, fed.bids))
                enriched = verify.compare_enriched(
                    verify.expected_enriched(folder / "history", sent),
                    verify.rows_from_json(collector.values(ENRICHED), verify.ENRICHED),
                )
                highest = verify.compare_highest(
                    verify.expected_highest(sent),
                    verify.rows_from_json(collector.values(HIGHEST), verify.HIGHEST),
                )
            latency = latencies_ms(collector.since(ENRICHED, fed.measured_from_us), fed.measured_from_us)
            modes = {query.name: query.mode for query in run.progress()}
            live.close()
            with _waiting(progress, "run and verify the second flow"):
                second = _second_flow(context, servers, sent)
    return {
        **asdict(enriched),
        "highest": asdict(highest),
        **{name: asdict(comparison) for name, comparison in second.items()},
        "bounded_seconds": round(bounded_s, 2),
        "mode": modes["bids"],
        "modes": modes,
        "rate": rate,
        "warm_up_seconds": round(fed.warm_up_s, 1),
        "latency_ms": _percentiles(latency),
        "ok": all(each.nothing_lost_or_wrong for each in (enriched, highest, *second.values())),
        "machine": this_machine(),
        "commit": this_commit(),
    }


def _second_flow(context: Context, servers: str, sent: pa.Table) -> dict[str, verify.Comparison]:
    """Run the flow `activity` as a slice, in batches so small that some bids come after their window."""
    batch = {"execution.max-records-per-batch": max(sent.num_rows // 10, 1)}
    settings = Settings.of(batch, file=CHECKOUT / "deploy" / "settings.toml")
    plan = plan_flow(activity_flow, "slice", settings)
    prepare_topics(plan, settings)
    with LiveRun(plan, Context(context.spark, settings, plan.flow)) as run:
        run.wait()
    windows, late, totals = (list(read_values(servers, topic)) for topic in (ACTIVITY, LATE, TOTALS))
    return {"activity": compare_activity(sent, windows, late), "bidders": compare_bidders(sent, totals)}


def _history(progress: Progress, folder: Path, events: int) -> None:
    steps: dict[str, TaskID] = {}

    def show(table: str, done: int, total: int) -> None:
        if table not in steps:
            steps[table] = progress.add_task(f"generate history: {table}", total=total)
        progress.update(steps[table], completed=done)

    history.write_history(CONFIG, events, folder / "history", show)


def _bounded_stage(progress: Progress) -> float:
    """Run the bounded stage with Dagster; the seconds that it took, with Spark's start."""
    began = time.monotonic()
    with _waiting(progress, "bounded stage, by Dagster"):
        from pipelines.definitions import defs  # noqa: PLC0415 - importing takes a second, which the progress shows

        quiet = {"loggers": {"console": {"config": {"log_level": "ERROR"}}}}
        job = defs.resolve_job_def("auctions_history")
        with DagsterInstance.get() as instance:
            outcome = job.execute_in_process(instance=instance, run_config=quiet, raise_on_error=False)
        if not outcome.success:
            failures = [event.message for event in outcome.all_events if event.is_failure]
            msg = f"Dagster's run of the bounded stage failed: {'; '.join(filter(None, failures))}"
            raise RunError(msg)
    return time.monotonic() - began


def _feed(
    progress: Progress,
    collector: Collector,
    run: LiveRun,
    *,
    start: Callable[[threading.Event], feed.FeedReport],
    seconds: float,
) -> Fed:
    """Feed bids until the stream is warm, and then for the given seconds."""
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        feeding = pool.submit(start, stop)
        try:
            began = time.monotonic()
            with _waiting(progress, "warm up"):
                while not _warm(collector) and time.monotonic() - began < LONGEST_WARM_UP_S:
                    _pause(run, feeding)
            measured_from_us = time.time_ns() // 1_000
            warm_up_s = time.monotonic() - began
            step = progress.add_task("feed and measure", total=seconds)
            end = time.monotonic() + seconds
            while (left := end - time.monotonic()) > 0:
                _pause(run, feeding)
                progress.update(step, completed=seconds - left)
            progress.update(step, completed=seconds)
        finally:
            stop.set()
        return Fed(feeding.result().sent, warm_up_s, measured_from_us)


def _pause(run: LiveRun, feeding: Future[feed.FeedReport]) -> None:
    """Wait half a second; raises if a query or the feed has failed."""
    if run.wait(0.5):
        msg = "the live queries ended while bids were fed: further bids would not be joined"
        raise RunError(msg)
    if feeding.done():
        feeding.result()


def _warm(collector: Collector) -> bool:
    now_us = time.time_ns() // 1_000
    recent = collector.since(ENRICHED, now_us - WARM_WINDOW_US)
    oldest_us = recent[0][0] if recent else now_us
    if now_us - oldest_us < WARM_WINDOW_US * 0.9:
        return False
    return bool(np.percentile(latencies_ms(recent), 99) < WARM_MS)


def _wait_for_output(progress: Progress, collector: Collector, run: LiveRun, bids: int) -> None:
    """Wait until every bid has an output and the highest prices do not change, at most a minute."""
    step = progress.add_task("read the results back", total=bids)
    end = time.monotonic() + LONGEST_WAIT_S
    seen, quiet_since = -1, time.monotonic()
    while time.monotonic() < end:
        progress.update(step, completed=min(collector.count(ENRICHED), bids))
        if collector.count(HIGHEST) != seen:
            seen, quiet_since = collector.count(HIGHEST), time.monotonic()
        if collector.count(ENRICHED) >= bids and time.monotonic() - quiet_since > QUIET_S:
            return
        run.wait(0.2)


def _percentiles(latency: npt.NDArray[np.float64]) -> dict[str, float | None]:
    if not len(latency):
        return dict.fromkeys(("p50", "p90", "p99", "max"))
    p50, p90, p99, most = np.percentile(latency, [50, 90, 99, 100])
    return {"p50": round(p50, 2), "p90": round(p90, 2), "p99": round(p99, 2), "max": round(most, 2)}


def _table(found: Mapping[str, Any]) -> Table:
    table = Table("", "", title="flowcore demo")
    for name in ("rows_in", "joined", "missing", "wrong", "duplicates"):
        table.add_row(name.replace("_", " "), f"{found[name]:,}")
    for name, part in PARTS.items():
        table.add_row(name, f"{found[part]['joined']:,} of {found[part]['rows_in']:,} right")
    table.add_row("bounded stage", f"{found['bounded_seconds']:.1f} s, Spark's start included")
    table.add_row("mode", ", ".join(f"{name}: {mode}" for name, mode in found["modes"].items()))
    shown = (f"{name} {value}" for name, value in found["latency_ms"].items())
    table.add_row("end-to-end latency, ms", ", ".join(shown))
    table.add_row("results", "complete and right" if found["ok"] else "[red]LOST OR WRONG RECORDS[/]")
    return table


def _progress() -> Progress:
    return Progress(
        SpinnerColumn(), TextColumn("{task.description:<32}"), BarColumn(), TimeElapsedColumn()
    )  # fmt: skip


@contextmanager
def _waiting(progress: Progress, what: str) -> Iterator[None]:
    """A progress step of unknown duration."""
    step = progress.add_task(what, total=None)
    yield
    progress.update(step, total=1, completed=1)


@contextmanager
def _folder() -> Iterator[Path]:
    """A temporary folder for all files of the demo, with a Dagster home."""
    folder = Path(tempfile.mkdtemp(prefix="flowcore-demo-"))
    try:
        home = folder / "dagster"
        home.mkdir()
        shutil.copy(Path(__file__).parents[2] / "flowcore" / "dagster" / "dagster.yaml", home)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _environment(folder: Path, servers: str) -> None:
    os.environ["DAGSTER_HOME"] = str(folder / "dagster")
    os.environ["FLOWCORE_KAFKA_BOOTSTRAP_SERVERS"] = servers
    os.environ["FLOWCORE_DATA_DIR"] = str(folder)
    os.environ["FLOWCORE_STATE_DIR"] = str(folder / "state")


if __name__ == "__main__":
    main()
