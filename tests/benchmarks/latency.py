"""Latency by markers compared with the latency of records, and the cost of latency tracking.

The reference flow runs at a steady rate, in real time and in micro-batches. Outside, each bid carries the
time at which it was passed to the client, and a consumer of the output records the time of receipt. Inside,
`LatencyCollector` evaluates the markers of the same seconds. Bids that are sent during the warm-up do not
count.

The cost is measured with slices of bids already in Kafka, with a marker each second and without, in turn.
"""

from __future__ import annotations

import itertools
import math
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
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
from flowcore.spark.context import Context
from flowcore.spark.run.flow import SilentListener, open_context, run_stages
from flowcore.spark.run.live_stage import LiveRun
from pipelines.auctions import verify
from pipelines.auctions.flow import flow
from pipelines.auctions.readers import Collector, latencies_ms
from pipelines.benchmark import Figures, Report, in_turn
from pipelines.nexmark import feed, generator, history
from tests.benchmarks._auctions import BIDS, CONFIG, ENRICHED, HIGHEST, PARTITIONS, fresh_context

MODES: tuple[Mode, Mode] = ("realtime", "micro-batch")
TRACKED = timedelta(seconds=1)
WARM_WINDOW_S = 5.0
WARM_SPREAD = 1.25
"""A stream is warm if the p99 of the last seconds is within this factor of that of the seconds before."""
SHORTEST_WARM_UP_S = 30.0
LONGEST_WARM_UP_S = 90.0
STEP_S = 0.5
LONGEST_WAIT_S = 60.0
MEASURED_S = RECENT_S + 10.0


@dataclass(frozen=True, slots=True)
class Found:
    """Latency of the same seconds, by markers and measured outside."""

    markers: int
    bids: int
    p50_ms: tuple[float, float]
    p99_ms: tuple[float, float]

    def ratios(self, mode: Mode) -> dict[str, float]:
        """Latency by markers over measured latency, by percentile."""
        name = mode.replace("-", "_")
        return {
            f"p50_ratio_{name}": self.p50_ms[0] / self.p50_ms[1],
            f"p99_ratio_{name}": self.p99_ms[0] / self.p99_ms[1],
        }

    def figures(self, mode: Mode) -> list[Figures]:
        """Each percentile by markers and outside."""
        return [
            Figures(f"{mode} {name}, {who}", "ms", [value])
            for name, pair in (("p50", self.p50_ms), ("p99", self.p99_ms))
            for who, value in zip(("markers", "outside"), pair, strict=True)
        ]


@click.command()
@click.option(
    "--mode", "modes", multiple=True, type=click.Choice(MODES), help="Measure only this mode. Default: both."
)
@click.option("--rate", default=1_000.0, show_default=True, help="Bids a second.")
@click.option("--evenly", is_flag=True, help="Send bids evenly spaced instead of at random moments.")
@click.option(
    "--interval-ms", default=10, show_default=True, help="Milliseconds between two markers of a partition."
)
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
                found[mode] = _live(progress, mode, settings, rate=rate, evenly=evenly, events=history_events)
        slices: list[list[float]] = []
        if rounds:
            with EmbeddedBroker() as broker:
                settings = _settings(folder, broker.bootstrap_servers, timedelta(0))
                slices = _slices(progress, settings, bids, history_events, rounds)
    timed = ", ".join(f"{mode}: {one.markers:,} markers, {one.bids:,} bids" for mode, one in found.items())
    ratios = {name: ratio for mode, one in found.items() for name, ratio in one.ratios(mode).items()}
    if slices:
        with_markers, without = (statistics.median(one) for one in slices)
        ratios["tracking_cost"] = 1 - with_markers / without
        ratios["tracking_cost_best"] = 1 - max(slices[0]) / max(slices[1])
    Report(
        name="latency",
        workload=f"{rate:,.0f} bids/s {'evenly' if evenly else 'at random moments'}, the last minute of each "
        f"mode, a marker each {interval_ms} ms and partition ({timed}); {rounds} slices of {bids:,} bids "
        "with a marker each second and without",
        figures=[
            *(figure for mode, one in found.items() for figure in one.figures(mode)),
            *(
                Figures(f"slice, {who}", "bids/s", each)
                for who, each in zip(("tracked", "not tracked"), slices, strict=False)
            ),
        ],
        ratios=ratios,
        verified="every live bid after the join, against DuckDB; the number of bids of every slice",
    ).show(as_json=as_json)


def _settings(folder: Path, servers: str, interval: timedelta) -> Settings:
    return replace(
        Settings.of({"kafka.bootstrap.servers": servers, "data.dir": folder}),
        state_dir=folder / f"state-{servers.rpartition(':')[2]}",
        latency_interval=interval,
    )


def _live(
    progress: Progress,
    mode: Mode,
    settings: Settings,
    *,
    rate: float,
    evenly: bool,
    events: int,
) -> Found:
    servers = settings.bootstrap_servers or ""
    ensure_topics(servers, dict.fromkeys((BIDS, ENRICHED, HIGHEST), PARTITIONS))
    plan = plan_flow(flow, mode, settings)
    step = progress.add_task(f"{mode}: start", total=None)
    with ExitStack() as live:
        context = live.enter_context(open_context(plan, settings))
        run_stages(plan, context, refresh=False, listener=SilentListener())
        run = live.enter_context(LiveRun(plan, context))
        outside = live.enter_context(Collector(servers, [ENRICHED]))
        stop = threading.Event()
        pool = live.enter_context(ThreadPoolExecutor(1))
        live.callback(stop.set)  # before the pool waits for its thread
        bids = generator.live_batches(CONFIG, events, sys.maxsize, max(int(rate), 1))
        feeding = pool.submit(feed.feed, servers, BIDS, bids, rate, at_random=not evenly, stop=stop)

        def pause() -> None:
            if run.wait(STEP_S) or feeding.done():
                feeding.result()
                msg = f"{mode}: the queries or the feed ended: there is nothing to measure"
                raise RunError(msg)

        progress.update(step, description=f"{mode}: warm up")
        _warm_up(outside, pause)
        progress.update(step, description=f"{mode}: measure", total=MEASURED_S)
        end = time.monotonic() + MEASURED_S
        while (left := end - time.monotonic()) > 0:
            pause()
            progress.update(step, completed=MEASURED_S - left)
        ended_us = time.time_ns() // 1_000
        marked = next(
            one
            for one in run.latency()
            if one.source == f"{flow.name}/{BIDS}" and one.sink == f"{flow.name}/enriched"
        )
        began_us = recent_since_us(ended_us)
        stop.set()
        sent = feeding.result().sent
        _check_live(outside, run, settings.data_dir / "history", events, sent)
        measured = outside.since(ENRICHED, began_us)
        latency = latencies_ms([one for one in measured if one[0] < ended_us])
    progress.remove_task(step)
    if marked.p50_ms is None or marked.p99_ms is None:
        msg = f"{mode}: no marker was emitted in the last minute: there is nothing to compare"
        raise RunError(msg)
    p50, p99 = (float(value) for value in np.percentile(latency, [50, 99]))
    return Found(marked.count, len(latency), (marked.p50_ms, p50), (marked.p99_ms, p99))


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
    received = verify.rows_from_json(outside.values(ENRICHED), verify.ENRICHED)
    found = verify.compare_enriched(verify.expected_enriched(history, bids), received)
    if not found.nothing_lost_or_wrong:
        msg = f"topic {ENRICHED!r}: {found}: the output is wrong, so its latency is meaningless"
        raise RunError(msg)


def _slices(progress: Progress, settings: Settings, bids: int, events: int, rounds: int) -> list[list[float]]:
    """Bids a second of slices with markers and of slices without."""
    servers = settings.bootstrap_servers or ""
    ensure_topics(servers, dict.fromkeys((BIDS, ENRICHED, HIGHEST), PARTITIONS))
    step = progress.add_task("slices: feed", total=None)
    feed.feed(servers, BIDS, generator.live_batches(CONFIG, events, bids))
    tracked = replace(settings, latency_interval=TRACKED)
    plan = plan_flow(flow, "slice", tracked)
    states = (settings.state_dir / f"slice-{number}" for number in itertools.count())
    with open_context(plan, tracked) as context:
        progress.update(step, description="slices: with markers and without", total=2 * rounds + 2)
        run_stages(plan, context, refresh=False, listener=SilentListener())

        def run(_round: int, given: Settings) -> float:
            fresh = fresh_context(Context(context.spark, given, flow.name), next(states))
            before = sum(end_offsets(servers, ENRICHED).values())
            seconds = _run(plan_flow(flow, "slice", given), fresh)
            written = sum(end_offsets(servers, ENRICHED).values()) - before
            if written != bids:
                msg = f"topic {ENRICHED!r}: {written} of {bids} bids: the speed is meaningless"
                raise RunError(msg)
            progress.advance(step)
            return bids / seconds

        contenders = partial(run, given=tracked), partial(run, given=settings)
        in_turn(1, *contenders)  # warm up: code generation and class loading
        return in_turn(rounds, *contenders)


def _run(plan: Plan, context: Context) -> float:
    """Seconds from the start of the first batch to the end of the last."""
    with LiveRun(plan, context) as run:
        run.wait()
        batches = [batch for query in run.running.values() for batch in query.recentProgress]
    began = [datetime.fromisoformat(batch.timestamp) for batch in batches]
    lasted = [timedelta(milliseconds=batch.durationMs["triggerExecution"]) for batch in batches]
    ended = max(begin + length for begin, length in zip(began, lasted, strict=True))
    return (ended - min(began)).total_seconds()
