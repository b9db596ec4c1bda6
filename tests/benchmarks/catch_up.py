"""Time of the reference flow to process a backlog in Kafka: in mode auto until it is live, and as a slice.

Both run in turn in one session with new checkpoints. The slice ends when it has read the topic. Mode auto is
timed until every query has caught up and runs in real time; `seconds_over_seconds_of_slice` is over 1 if that
takes longer. Both contain the start of the queries. Further runs in mode auto, while bids arrive at random
moments, measure the switch (from the commit of a query's last micro-batch to its first record in real time)
and the latency at a consumer of the output, over at least two checkpoints.
"""

from __future__ import annotations

import itertools
import tempfile
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import click
import numpy as np
import pyarrow as pa

from flowcore.errors import RunError
from flowcore.kafka.broker import EmbeddedBroker
from flowcore.kafka.topics import end_offsets, ensure_topics
from flowcore.planner import plan_flow
from flowcore.planner.model import Mode
from flowcore.settings import Settings
from flowcore.spark.checkpoint.plan_file import checkpoint_folder
from flowcore.spark.context import Context
from flowcore.spark.run.flow import open_context, run_plan
from flowcore.spark.run.live_stage import LiveRun
from pipelines.auctions import verify
from pipelines.auctions.flow import flow
from pipelines.auctions.readers import Collector, latencies_ms, read_messages, read_values
from pipelines.benchmark import Figures, Report
from pipelines.nexmark import feed, generator, history
from tests.benchmarks._auctions import BIDS, CONFIG, ENRICHED, HIGHEST, PARTITIONS, fresh_context
from tests.benchmarks._rounds import run_rounds
from tests.benchmarks.join import check_join

RATE = 1_000.0
LONGEST_S = 200.0
SETTLE_S, LIVE_S = 15.0, 30.0
CHECKPOINT = timedelta(seconds=10)


@click.command()
@click.option("--bids", default=1_000_000, show_default=True, help="Bids of backlog.")
@click.option("--history-events", default=200_000, show_default=True, help="Events of history.")
@click.option("--rounds", default=3, show_default=True, help="Counted runs of each contender.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(bids: int, history_events: int, rounds: int, *, as_json: bool) -> None:
    """Time to catch up and go live in mode auto, against a slice of the same backlog."""
    with (
        tempfile.TemporaryDirectory(prefix="flowcore-bench-", ignore_cleanup_errors=True) as folder,
        EmbeddedBroker() as broker,
    ):
        report = _measure(Path(folder), broker.bootstrap_servers, bids, history_events, rounds)
    report.show(as_json=as_json)


def _measure(folder: Path, servers: str, bids: int, events: int, rounds: int) -> Report:
    history.write_history(CONFIG, events, folder / "history")
    ensure_topics(servers, dict.fromkeys((BIDS, ENRICHED, HIGHEST), PARTITIONS))
    backlog = list(generator.live_batches(CONFIG, events, bids))
    feed.feed(servers, BIDS, backlog)
    few = bids // (2 * PARTITIONS)  # so that a small backlog counts as one too
    settings = Settings.of(
        {
            "kafka.bootstrap.servers": servers,
            "data.dir": folder,
            "state.dir": folder / "state",
            "backlog.enter": min(200_000, few),
            "backlog.leave": min(50_000, few // 4),
        }
    )
    settings = replace(settings, realtime_batch=CHECKPOINT)
    with open_context(plan_flow(flow, None, settings), settings) as context:
        run_plan(replace(plan_flow(flow, None, settings), live=None), context)
        states = (folder / f"state-{number}" for number in itertools.count())
        expected = _expected(folder, pa.concat_tables(backlog))

        def timed(mode: Mode | None) -> float:
            fresh = fresh_context(context, next(states))
            before = _ends(servers)
            began = time.monotonic()
            with LiveRun(plan_flow(flow, mode, fresh.settings), fresh) as run:
                _until_read(run, mode)
                seconds = time.monotonic() - began
            _check(servers, before, expected)
            return seconds

        contenders = {"by itself": lambda _: timed(None), "slice": lambda _: timed("slice")}
        figures = run_rounds(rounds, contenders, "s")
        switches: list[_Switch] = []
        for _ in range(rounds):
            fed = bids + sum(each.sent for each in switches)
            switches.append(_switch(fresh_context(context, next(states)), folder, fed, events))
    return Report(
        name="catch-up",
        workload=f"{bids:,} bids of {PARTITIONS} partitions of backlog, {events:,} events of history, until "
        f"every query is live; then a switch with {RATE:,.0f} bids/s arriving at random moments, and "
        f"{LIVE_S:.0f} s in real time with a checkpoint each {CHECKPOINT.seconds} s",
        figures=[
            *figures,
            Figures("switch", "s", [each.pause_s for each in switches]),
            Figures("p50 after it", "ms", [each.p50_ms for each in switches]),
            Figures("p99 after it", "ms", [each.p99_ms for each in switches]),
            Figures("max after it", "ms", [each.max_ms for each in switches]),
        ],
        ratios={"seconds_over_seconds_of_slice": figures[0].median / figures[1].median},
        verified="every enriched bid of every run, warm-up included, each once, and the last price of each "
        "auction, against DuckDB",
    )


@dataclass(frozen=True, slots=True)
class _Switch:
    """A switch to real time, and the latency after it.

    Attributes:
        pause_s: The longest time from a query's last commit while catching up to its first record in real
            time.
        sent: Bids that were sent meanwhile.
    """

    pause_s: float
    p50_ms: float
    p99_ms: float
    max_ms: float
    sent: int


def _until_read(run: LiveRun, mode: Mode | None) -> None:
    if mode is None:
        _until_live(run, {})
    elif not run.wait(LONGEST_S):
        msg = f"the queries have not caught up in {LONGEST_S:.0f} s: {run.health()}"
        raise RunError(msg)


def _until_live(run: LiveRun, checkpoints: Mapping[str, Path]) -> dict[str, float]:
    """Wait until all queries run in real time, and return when each has committed what it had to catch up."""
    commits: dict[str, float] = {}
    end = time.monotonic() + LONGEST_S
    while time.monotonic() < end:
        run.wait(0.01)
        live = {name for name, mode in run.modes.items() if mode == "realtime"}
        commits |= {name: _last_commit_ms(checkpoints[name]) for name in (live & {*checkpoints}) - {*commits}}
        if live == {*run.modes}:
            return commits
    msg = f"the queries do not run in real time after {LONGEST_S:.0f} s: {run.health()}"
    raise RunError(msg)


def _switch(context: Context, folder: Path, bids: int, events: int) -> _Switch:
    """Switch while bids arrive, and measure each bid that is emitted after some seconds for the JVM."""
    servers = context.settings.bootstrap_servers or ""
    more = pa.concat_tables(generator.live_batches(CONFIG, events, bids + int(RATE * LONGEST_S))).slice(bids)
    before = _ends(servers)
    stop = threading.Event()
    plan = plan_flow(flow, None, context.settings)
    with ThreadPoolExecutor(1) as pool, LiveRun(plan, context) as run:
        feeding = pool.submit(feed.feed, servers, BIDS, iter([more]), RATE, at_random=True, stop=stop)
        folders = {
            query.name: checkpoint_folder(query, flow.name, context.settings) for query in run.stage.queries
        }
        try:
            commits = _until_live(run, folders)
            with Collector(servers, [ENRICHED]) as outside:
                run.wait(SETTLE_S)
                began_us = time.time_ns() // 1_000
                run.wait(LIVE_S)
                latency_ms = latencies_ms(outside.since(ENRICHED, began_us))
        finally:
            stop.set()
        sent = feeding.result().sent
        end = time.monotonic() + LONGEST_S
        while _new(servers, ENRICHED, before[ENRICHED]) < bids + sent and time.monotonic() < end:
            run.wait(0.2)
        read_ms = time.time() * 1000
        while min(map(_last_commit_ms, folders.values())) < read_ms and time.monotonic() < end:
            run.wait(0.2)  # the prices of the last bids are written when their batch is committed
    table = pa.concat_tables([*generator.live_batches(CONFIG, events, bids), more.slice(0, sent)])
    _check(servers, before, _expected(folder, table))
    pauses_ms = []
    for query in plan.live_queries:
        (topic,) = (sink.topic.name for sink in query.sinks if sink.topic)
        messages = itertools.chain.from_iterable(read_messages(servers, topic, before[topic]))
        times_ms = (message.timestamp()[1] for message in messages)
        pauses_ms.append(min(ms for ms in times_ms if ms > commits[query.name]) - commits[query.name])
    p50_ms, p99_ms = (float(value) for value in np.percentile(latency_ms, [50, 99]))
    return _Switch(max(pauses_ms) / 1000, p50_ms, p99_ms, float(max(latency_ms)), sent)


def _last_commit_ms(checkpoint: Path) -> float:
    files = [file for file in (checkpoint / "commits").iterdir() if file.name.isdigit()]
    return max(file.stat().st_mtime_ns for file in files) / 1e6


def _new(servers: str, topic: str, before: Mapping[int, int]) -> int:
    return sum(end_offsets(servers, topic).values()) - sum(before.values())


def _ends(servers: str) -> dict[str, dict[int, int]]:
    return {topic: end_offsets(servers, topic) for topic in (ENRICHED, HIGHEST)}


def _expected(folder: Path, bids: pa.Table) -> tuple[pa.Table, pa.Table]:
    return verify.expected_enriched(folder / "history", bids), verify.expected_highest(bids)


def _check(servers: str, before: Mapping[str, dict[int, int]], expected: tuple[pa.Table, pa.Table]) -> None:
    enriched, highest = (list(read_values(servers, topic, before[topic])) for topic in (ENRICHED, HIGHEST))
    check_join(expected, enriched, highest, once=False)
    if len(enriched) != expected[0].num_rows:
        msg = f"topic {ENRICHED!r}: {len(enriched):,} records of {expected[0].num_rows:,} bids: not each once"
        raise RunError(msg)
