"""Latency by markers compared with the latency of records, and the cost of latency tracking.

The reference flow runs at a steady rate, in real time and in micro-batches. Outside, each bid carries the
time at which it was passed to the client, and a consumer of the output records the time of receipt. Inside,
`LatencyCollector` evaluates the markers of the same seconds. Bids that are sent during the warm-up do not
count. A round is a minute of one run, with at least two checkpoints in it. Minutes follow one another, by the
time at which bids were sent, so that each bid counts once; the last of them are read when all have arrived.

The cost is measured with slices of bids already in Kafka, with a marker each second and without, in turn,
over a quarter of the bids and over all of them.
"""

from __future__ import annotations

import itertools
import math
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import click
import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.progress import Progress

from flowcore.errors import RunError
from flowcore.kafka.broker import EmbeddedBroker
from flowcore.kafka.topics import end_offsets, ensure_topics
from flowcore.latency import RECENT_S, recent_since_us
from flowcore.planner import plan_flow
from flowcore.planner.model import Mode
from flowcore.planner.plan import Plan
from flowcore.settings import Settings
from flowcore.spark.checkpoint.plan_file import checkpoint_folder
from flowcore.spark.context import Context
from flowcore.spark.run.flow import open_context, run_plan
from flowcore.spark.run.live_stage import LiveRun
from pipelines.auctions import verify
from pipelines.auctions.flow import flow
from pipelines.auctions.readers import Collector, latencies_ms, read_values
from pipelines.benchmark import Figures, Report
from pipelines.nexmark import feed, generator, history
from tests.benchmarks._auctions import BIDS, CONFIG, ENRICHED, HIGHEST, PARTITIONS, fresh_context
from tests.benchmarks._minutes import Marked, Minute, minute_ends
from tests.benchmarks._process_cost import ProcessCost, spark_pid
from tests.benchmarks._rounds import parts_of, ratio_by_slope, run_rates
from tests.benchmarks.join import check_join

MODES: tuple[Mode, Mode] = ("realtime", "micro-batch")
TRACKED = timedelta(seconds=1)
WARM_WINDOW_S = 5.0
WARM_SPREAD = 1.25
"""A stream is warm if the p99 of the last seconds is within this factor of that of the seconds before."""
SHORTEST_WARM_UP_S = 30.0
LONGEST_WARM_UP_S = 90.0
STEP_S = 0.5
LONGEST_WAIT_S = 60.0
SETTLE_S = 1.0
"""Between the sampling of memory, which stops a process, and the minutes."""
CHECKPOINT, LEAST_CHECKPOINTS = timedelta(seconds=20), 2


@dataclass(frozen=True, slots=True)
class Found:
    """The minutes of one mode, and what their processes cost."""

    minutes: Sequence[Minute]
    cost: ProcessCost

    def ratios(self, mode: Mode) -> dict[str, float]:
        """Latency by markers over measured latency, by percentile; medians of the minutes."""
        name, medians = mode.replace("-", "_"), {each.name: each.median for each in self.figures(mode)}
        return {
            f"{percentile}_ratio_{name}": medians[f"{mode} {percentile}, markers"]
            / medians[f"{mode} {percentile}, outside"]
            for percentile in ("p50", "p99")
        }

    def figures(self, mode: Mode) -> list[Figures]:
        """Each percentile by markers and outside, the longest latency, and the pauses."""
        delays = [each.delays for each in self.minutes]
        return [
            Figures(f"{mode} p50, markers", "ms", [each.p50_ms for each in self.minutes]),
            Figures(
                f"{mode} p50, outside", "ms", [each.p50_ms for each in delays],
                cpu_s=[self.cost.cpu_s / len(delays)], peak_mb=[self.cost.peak_mb],
            ),
            Figures(f"{mode} p99, markers", "ms", [each.p99_ms for each in self.minutes]),
            Figures(f"{mode} p99, outside", "ms", [each.p99_ms for each in delays]),
            Figures(f"{mode} max, outside", "ms", [each.max_ms for each in delays]),
            Figures(f"{mode} longest pause", "ms", [each.longest_pause_ms for each in delays]),
            Figures(f"{mode} slow", "seconds over 100 ms", [each.slow_seconds for each in delays]),
            Figures(f"{mode} checkpoints", "a minute", [each.checkpoints for each in self.minutes]),
        ]  # fmt: skip


@click.command()
@click.option(
    "--mode", "modes", multiple=True, type=click.Choice(MODES), help="Measure only this mode. Default: both."
)
@click.option("--rate", default=1_000.0, show_default=True, help="Bids a second.")
@click.option("--evenly", is_flag=True, help="Send bids evenly spaced instead of at random moments.")
@click.option(
    "--interval-ms", default=10, show_default=True, help="Milliseconds between two markers of a partition."
)
@click.option("--minutes", default=3, show_default=True, help="Counted minutes of each mode.")
@click.option("--history-events", default=500_000, show_default=True, help="Events in the history.")
@click.option("--bids", default=1_000_000, show_default=True, help="Bids of a slice that measures the cost.")
@click.option("--rounds", default=6, show_default=True, help="Counted slices of each contender; 0 for none.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    *,
    modes: tuple[Mode, ...],
    rate: float,
    evenly: bool,
    interval_ms: int,
    minutes: int,
    history_events: int,
    bids: int,
    rounds: int,
    as_json: bool,
) -> None:
    """Latency by markers against latency measured outside, and the cost of tracking."""
    with ExitStack() as stack:
        folder = Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(prefix="flowcore-bench-", ignore_cleanup_errors=True)
            )
        )
        progress = stack.enter_context(Progress(console=Console(stderr=True), transient=True))
        history.write_history(CONFIG, history_events, folder / "history")
        found = {}
        for mode in modes or MODES:
            with EmbeddedBroker() as broker:
                settings = _settings(folder, broker.bootstrap_servers, timedelta(milliseconds=interval_ms))
                arrivals = _Arrivals(rate, at_random=not evenly)
                found[mode] = _live(
                    progress, mode, settings, arrivals=arrivals, events=history_events, minutes=minutes
                )
        slices: list[Figures] = []
        if rounds:
            brokers = [stack.enter_context(EmbeddedBroker()).bootstrap_servers for _ in parts_of(bids)]
            slices = _slices(progress, folder, brokers, bids=bids, events=history_events, rounds=rounds)
    ratios = {name: ratio for mode, one in found.items() for name, ratio in one.ratios(mode).items()}
    if slices:
        ratios |= _costs(*slices)
    Report(
        name="latency",
        workload=f"{rate:,.0f} bids/s {'evenly' if evenly else 'at random moments'}, {minutes} minutes of "
        f"each mode, a marker each {interval_ms} ms and partition, a checkpoint each {CHECKPOINT.seconds} s "
        f"in real time; {rounds} slices of {bids:,} bids with a marker each second and without",
        figures=[*(figure for mode, one in found.items() for figure in one.figures(mode)), *slices],
        ratios=ratios,
        verified="every live bid after the join, every bid of every slice, and the last price of each "
        "auction, against DuckDB",
        details={
            "counted": {
                mode: [{"bids": each.bids, "markers": each.markers} for each in one.minutes]
                for mode, one in found.items()
            }
        },
    ).show(as_json=as_json)


def _costs(tracked: Figures, untracked: Figures) -> dict[str, float]:
    """What tracking costs of the speed, and of the processor time."""
    found = {
        "tracking_cost": 1 - tracked.median / untracked.median,
        "tracking_cost_best": 1 - max(tracked.rounds) / max(untracked.rounds),
        "tracking_cost_cpu": statistics.median(tracked.cpu_s) / statistics.median(untracked.cpu_s) - 1,
    }
    by_slope = ratio_by_slope("tracking_cost", tracked, untracked)
    return found | {name: 1 - ratio for name, ratio in by_slope.items()}


def _settings(folder: Path, servers: str, interval: timedelta) -> Settings:
    return replace(
        Settings.of({"kafka.bootstrap.servers": servers, "data.dir": folder}),
        state_dir=folder / f"state-{servers.rpartition(':')[2]}",
        latency_interval=interval,
        realtime_batch=CHECKPOINT,
    )


@dataclass(frozen=True, slots=True)
class _Arrivals:
    """How bids arrive."""

    rate: float
    at_random: bool


def _live(
    progress: Progress, mode: Mode, settings: Settings, *, arrivals: _Arrivals, events: int, minutes: int
) -> Found:
    servers = settings.bootstrap_servers or ""
    ensure_topics(servers, dict.fromkeys((BIDS, ENRICHED, HIGHEST), PARTITIONS))
    plan = plan_flow(flow, mode, settings)
    step = progress.add_task(f"{mode}: start", total=None)
    with ExitStack() as live:
        context = live.enter_context(open_context(plan, settings))
        run_plan(replace(plan, live=None), context)
        run = live.enter_context(LiveRun(plan, context))
        outside = live.enter_context(Collector(servers, [ENRICHED, HIGHEST]))
        stop = threading.Event()
        pool = live.enter_context(ThreadPoolExecutor(1))
        live.callback(stop.set)  # before the pool waits for its thread
        bids = generator.live_batches(CONFIG, events, sys.maxsize, max(int(arrivals.rate), 1))
        feeding = pool.submit(
            feed.feed, servers, BIDS, bids, arrivals.rate, at_random=arrivals.at_random, stop=stop
        )

        def pause() -> None:
            if run.wait(STEP_S) or feeding.done():
                feeding.result()
                msg = f"{mode}: the queries or the feed ended: there is nothing to measure"
                raise RunError(msg)

        progress.update(step, description=f"{mode}: warm up")
        _warm_up(outside, pause)
        progress.update(step, description=f"{mode}: measure", total=minutes)
        folders = [checkpoint_folder(query, plan.flow, settings) for query in plan.live_queries]
        ends_us = minute_ends(time.time_ns() // 1_000 + int(2 * SETTLE_S * 1e6), minutes)
        _wait_until(ends_us[0] - int((RECENT_S + SETTLE_S) * 1e6), pause)
        marked = []
        with ProcessCost(spark_pid(), watches_memory=False) as cost:
            for end_us in ends_us:
                _wait_until(end_us, pause)
                marked.append(_read_markers(mode, run, end_us, folders))
                progress.advance(step)
            _wait_until(ends_us[-1] + int(SETTLE_S * 1e6), pause)
        stop.set()
        _check_live(outside, run, settings.data_dir / "history", events, feeding.result().sent)
        received = outside.since(ENRICHED, 0)
        found = [minute.with_bids(received) for minute in marked]
    progress.remove_task(step)
    return Found(found, cost)


def _wait_until(end_us: int, pause: Callable[[], None]) -> None:
    while time.time_ns() // 1_000 < end_us:
        pause()


def _read_markers(mode: Mode, run: LiveRun, ended_us: int, checkpoints: Sequence[Path]) -> Marked:
    """The latency of the markers of the minute that has just ended."""
    marked = next(
        one
        for one in run.latency()
        if one.source == f"{flow.name}/{BIDS}" and one.sink == f"{flow.name}/enriched"
    )
    began_us = recent_since_us(ended_us)
    if marked.p50_ms is None or marked.p99_ms is None:
        msg = f"{mode}: no marker was emitted in the last minute: there is nothing to compare"
        raise RunError(msg)
    commits = min(_commits_since(folder, began_us) for folder in checkpoints)
    if commits < LEAST_CHECKPOINTS:
        msg = f"{mode}: {commits} checkpoints in a minute: latency without them is not that of a live flow"
        raise RunError(msg)
    return Marked(began_us, ended_us, marked.count, marked.p50_ms, marked.p99_ms, commits)


def _commits_since(checkpoint: Path, since_us: int) -> int:
    files = [file for file in (checkpoint / "commits").iterdir() if file.name.isdigit()]
    return sum(file.stat().st_mtime_ns > since_us * 1_000 for file in files)


def _warm_up(outside: Collector, pause: Callable[[], None]) -> None:
    """Wait until the p99 of the last seconds is close to that of the seconds before."""
    began = time.monotonic()
    before = math.inf
    while time.monotonic() - began < LONGEST_WARM_UP_S:
        for _ in range(int(WARM_WINDOW_S / STEP_S)):
            pause()
        recent = outside.since(ENRICHED, int((time.time() - WARM_WINDOW_S) * 1e6))
        tail = float(np.percentile(latencies_ms(recent), 99)) if recent else math.inf
        is_steady = max(tail, before) <= WARM_SPREAD * min(tail, before) < math.inf
        if is_steady and time.monotonic() - began >= SHORTEST_WARM_UP_S:
            return
        before = tail


def _check_live(outside: Collector, run: LiveRun, history: Path, events: int, sent: int) -> None:
    end = time.monotonic() + LONGEST_WAIT_S
    while outside.count(ENRICHED) < sent and time.monotonic() < end:
        run.wait(STEP_S)
    bids = pa.concat_tables(generator.live_batches(CONFIG, events, sent))
    expected = verify.expected_enriched(history, bids), verify.expected_highest(bids)
    while True:  # the last prices may arrive after the last bids
        try:
            check_join(expected, outside.values(ENRICHED), outside.values(HIGHEST), once=False)
        except RunError:
            if time.monotonic() > end:
                raise
            run.wait(STEP_S)
        else:
            return


def _slices(
    progress: Progress, folder: Path, brokers: Sequence[str], *, bids: int, events: int, rounds: int
) -> list[Figures]:
    """Bids a second of slices with markers and of slices without; each broker has one number of bids."""
    step = progress.add_task("slices: feed", total=None)
    expected: dict[int, tuple[pa.Table, pa.Table]] = {}
    servers = dict(zip(parts_of(bids), brokers, strict=True))
    for count, broker in servers.items():
        ensure_topics(broker, dict.fromkeys((BIDS, ENRICHED, HIGHEST), PARTITIONS))
        table = pa.concat_tables(generator.live_batches(CONFIG, events, count))
        feed.feed(broker, BIDS, [table])
        expected[count] = (
            verify.expected_enriched(folder / "history", table), verify.expected_highest(table)
        )  # fmt: skip
    settings = _settings(folder, servers[bids], TRACKED)
    plan = plan_flow(flow, "slice", settings)
    states = (settings.state_dir / f"slice-{number}" for number in itertools.count())
    with open_context(plan, settings) as context:
        progress.update(step, description="slices: with markers and without", total=4 * rounds + 2)
        run_plan(replace(plan, live=None), context)

        def run(count: int, interval: timedelta) -> float:
            given = replace(settings, bootstrap_servers=servers[count], latency_interval=interval)
            fresh = fresh_context(Context(context.spark, given, flow.name), next(states))
            before = {topic: end_offsets(servers[count], topic) for topic in (ENRICHED, HIGHEST)}
            seconds = _run(plan_flow(flow, "slice", fresh.settings), fresh)
            enriched, highest = (
                list(read_values(servers[count], topic, since)) for topic, since in before.items()
            )
            check_join(expected[count], enriched, highest, once=False)
            if len(enriched) != count:
                msg = f"topic {ENRICHED!r}: {len(enriched):,} of {count:,}: the speed is meaningless"
                raise RunError(msg)
            progress.advance(step)
            return seconds

        contenders = {
            "slice, tracked": partial(run, interval=TRACKED),
            "slice, not tracked": partial(run, interval=timedelta(0)),
        }
        return run_rates(rounds, contenders, bids, "bids/s")


def _run(plan: Plan, context: Context) -> float:
    """Seconds from the start of the first batch to the end of the last."""
    with LiveRun(plan, context) as run:
        run.wait()
        batches = [batch for query in run.running.values() for batch in query.recentProgress]
    began = [datetime.fromisoformat(batch.timestamp) for batch in batches]
    lasted = [timedelta(milliseconds=batch.durationMs["triggerExecution"]) for batch in batches]
    ended = max(begin + length for begin, length in zip(began, lasted, strict=True))
    return (ended - min(began)).total_seconds()
