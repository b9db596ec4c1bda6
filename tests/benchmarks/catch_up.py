"""Time of the reference flow to process a backlog in Kafka: in mode auto until it is live, and as a slice.

Both run in turn in one session with new checkpoints. The slice ends when it has read the topic. Mode auto is
timed until every query has caught up and runs in real time; `seconds_over_seconds_of_slice` is over 1 if that
takes longer. Both contain the start of the queries. A last run in mode auto, with a steady feed of
bids, measures the switch (from the commit of a query's last micro-batch to its first record in real time) and
the latency at a consumer of the output.
"""

from __future__ import annotations

import itertools
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import click
import numpy as np
import numpy.typing as npt
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
from pipelines.benchmark import Report
from pipelines.nexmark import feed, generator, history
from tests.benchmarks._auctions import BIDS, CONFIG, ENRICHED, HIGHEST, PARTITIONS, fresh_context
from tests.benchmarks._rounds import run_rounds

RATE = 1_000.0
LONGEST_S = 200.0
SETTLE_S, LIVE_S = 15.0, 30.0


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
    with open_context(plan_flow(flow, None, settings), settings) as context:
        run_plan(replace(plan_flow(flow, None, settings), live=None), context)
        states = (folder / f"state-{number}" for number in itertools.count())
        expected = verify.expected_enriched(folder / "history", pa.concat_tables(backlog))

        def timed(mode: Mode | None) -> float:
            fresh = fresh_context(context, next(states))
            before = end_offsets(servers, ENRICHED)
            began = time.monotonic()
            with LiveRun(plan_flow(flow, mode, fresh.settings), fresh) as run:
                _until_read(run, mode)
                seconds = time.monotonic() - began
            _check(servers, before, expected)
            return seconds

        contenders = {"by itself": lambda _: timed(None), "slice": lambda _: timed("slice")}
        figures = run_rounds(rounds, contenders, "s")
        switch_s, latency_ms = _switch(fresh_context(context, next(states)), folder, bids, events)
    p50_ms, p99_ms = (float(value) for value in np.percentile(latency_ms, [50, 99]))
    return Report(
        name="catch-up",
        workload=f"{bids:,} bids of {PARTITIONS} partitions of backlog, {events:,} events of history, until "
        f"every query is live; then a switch with {RATE:,.0f} bids/s arriving",
        figures=figures,
        ratios={
            "seconds_over_seconds_of_slice": figures[0].median / figures[1].median,
            "switch_s": switch_s,
            "live_p50_ms": p50_ms,
            "live_p99_ms": p99_ms,
        },
        verified="every enriched bid of every round, warm-up included, against DuckDB: each once",
    )


def _until_read(run: LiveRun, mode: Mode | None) -> None:
    end = time.monotonic() + LONGEST_S
    while time.monotonic() < end:
        if run.wait(0.01) or (mode is None and {*run.modes.values()} == {"realtime"}):
            return
    msg = f"the queries have not caught up in {LONGEST_S:.0f} s: {run.health()}"
    raise RunError(msg)


def _switch(context: Context, folder: Path, bids: int, events: int) -> tuple[float, npt.NDArray[np.float64]]:
    """The longest time from a query's last commit while catching up to its first record in real time.

    Also the latency of each bid that is emitted later, after some seconds for the JVM.
    """
    servers = context.settings.bootstrap_servers or ""
    more = pa.concat_tables(generator.live_batches(CONFIG, events, bids + int(RATE * LONGEST_S))).slice(bids)
    before = {topic: end_offsets(servers, topic) for topic in (ENRICHED, HIGHEST)}
    stop = threading.Event()
    plan = plan_flow(flow, None, context.settings)
    with ThreadPoolExecutor(1) as pool, LiveRun(plan, context) as run:
        feeding = pool.submit(feed.feed, servers, BIDS, iter([more]), RATE, stop=stop)
        try:
            _until_read(run, None)
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
        commits = {
            sink.name: _last_commit_ms(checkpoint_folder(query, flow.name, context.settings))
            for query in run.stage.queries
            for sink in query.sinks
        }
    table = pa.concat_tables([*generator.live_batches(CONFIG, events, bids), more.slice(0, sent)])
    _check(servers, before[ENRICHED], verify.expected_enriched(folder / "history", table))
    pauses_ms = []
    for sink, topic in (("enriched", ENRICHED), ("highest", HIGHEST)):
        messages = itertools.chain.from_iterable(read_messages(servers, topic, before[topic]))
        times_ms = (message.timestamp()[1] for message in messages)
        pauses_ms.append(min(ms for ms in times_ms if ms > commits[sink]) - commits[sink])
    return max(pauses_ms) / 1000, latency_ms


def _last_commit_ms(checkpoint: Path) -> float:
    files = [file for file in (checkpoint / "commits").iterdir() if file.name.isdigit()]
    return max(file.stat().st_mtime_ns for file in files) / 1e6


def _new(servers: str, topic: str, before: dict[int, int]) -> int:
    return sum(end_offsets(servers, topic).values()) - sum(before.values())


def _check(servers: str, before: dict[int, int], expected: pa.Table) -> None:
    values = list(read_values(servers, ENRICHED, before))
    found = verify.compare_enriched(expected, verify.rows_from_json(values, verify.ENRICHED))
    if not found.nothing_lost_or_wrong or len(values) != expected.num_rows:
        msg = f"topic {ENRICHED!r}: {found}, {len(values):,} records: its speed is meaningless"
        raise RunError(msg)
