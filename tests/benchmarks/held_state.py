"""Memory of Python workers while a query holds many keys in windows, with a budget for decoded state.

The first half of the records has every key once, so that the state grows; the second half has the keys once
more, so that it is read and written over and over. With a budget, the memory stays flat in both. Each round
is a query and a session of its own; a small one comes first and does not count.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import click
import numpy as np
import pyarrow as pa

from flowcore import Flow, KafkaTopic, Tumbling, bounded_out_of_orderness
from flowcore.errors import RunError
from flowcore.kafka.broker import EmbeddedBroker
from flowcore.kafka.topics import ensure_topics
from flowcore.planner import plan_flow
from flowcore.settings import Settings
from flowcore.spark.run.flow import open_context
from flowcore.spark.run.live_stage import LiveRun
from pipelines.auctions.readers import read_rows
from pipelines.benchmark import Figures, Report
from pipelines.nexmark import feed
from tests.benchmarks._process_memory import ProcessMemory

KEYS, BATCHES, BUDGET_MIB, WARM_UP_KEYS = 2_000_000, 20, 64, 50_000
PARTITIONS, PARTS = 2, 10
SCHEMA = "auction_id BIGINT, at BIGINT"
COUNTS = pa.schema([("auction_id", pa.int64()), ("n", pa.int64())])
DAY_MS = 86_400_000
_ROWS = 100_000


@click.command()
@click.option("--keys", default=KEYS, help="Keys that are held at once.")
@click.option("--batches", default=BATCHES, help="Batches of the run.")
@click.option("--budget-mib", default=BUDGET_MIB, help="state.cache.max-bytes, for each worker.")
@click.option("--key-groups", default=256, help="state.key-groups.")
@click.option("--rounds", default=3, show_default=True, help="Counted runs.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def command(keys: int, batches: int, budget_mib: int, key_groups: int, rounds: int, *, as_json: bool) -> None:
    """Memory of workers over the batches of a query that holds many keys."""
    parts: list[list[float]] = []
    with tempfile.TemporaryDirectory() as folder, EmbeddedBroker() as broker:
        for number in range(rounds + 1):
            count = keys if number else min(keys, WARM_UP_KEYS)
            settings = Settings.of(
                {
                    "kafka.bootstrap.servers": broker.bootstrap_servers,
                    "state.dir": Path(folder) / str(number),
                    "state.cache.max-bytes": f"{budget_mib} MiB",
                    "state.key-groups": key_groups,
                    "execution.max-records-per-batch": -(-2 * count // batches),
                }
            )
            most_mib = _measure(settings, number, count)
            if number:
                parts.append(most_mib)
            shutil.rmtree(settings.state_dir, ignore_errors=True)
    Report(
        name="held-state",
        workload=f"{keys:,} keys in {key_groups} key groups, each key twice, in {batches} batches; "
        f"{budget_mib} MiB for decoded state in each worker",
        figures=[
            Figures(f"workers, part {number} of {PARTS}", "MiB at most", rounds_mib)
            for number, rounds_mib in enumerate(zip(*parts, strict=True), 1)
        ],
        ratios={
            "last part over the middle": statistics.median(each[-1] / each[PARTS // 2] for each in parts)
        },
        verified="the window of each key is emitted once, with a count of two, warm-up included",
    ).show(as_json=as_json)


def _measure(settings: Settings, number: int, keys: int) -> list[float]:
    """The most memory of workers in each part of a run, in MiB; its results are checked."""
    servers, source, out = settings.bootstrap_servers or "", f"in-{number}", f"out-{number}"
    ensure_topics(servers, {source: PARTITIONS})
    feed.feed(servers, source, _records(keys))
    memory = _run(settings, source, out)
    feed.feed(servers, source, _last())
    _run(settings, source, out)
    check_counts(read_rows(servers, out, COUNTS), keys)
    return [float(part.max()) / 1024 for part in np.array_split(np.array(memory.workers_kib), PARTS)]


def check_counts(found: pa.Table, keys: int) -> None:
    """Check that each key is there once, with a count of two.

    Raises:
        RunError: A key is missing, wrong, unexpected or there twice.
    """
    ids, counts = (found[name].to_numpy() for name in COUNTS.names)
    order = np.argsort(ids, kind="stable")
    if not np.array_equal(ids[order], np.arange(keys)) or (counts != 2).any():
        different = int((counts != 2).sum())
        msg = (
            f"{len(ids):,} windows of {len(np.unique(ids)):,} keys were emitted, {different:,} with another "
            f"count than 2; {keys:,} keys were held"
        )
        raise RunError(msg)


def _run(settings: Settings, source_topic: str, out: str) -> ProcessMemory:
    flow = Flow("held-state")
    source = KafkaTopic(
        source_topic, schema=SCHEMA, event_time="at", watermark=bounded_out_of_orderness(timedelta(0))
    )
    held = flow.read("bids", source).window(Tumbling(timedelta(days=1)), by="auction_id", name="held")
    held.aggregate(n="count(*)").write("out", KafkaTopic(out, partitions=PARTITIONS))
    plan = plan_flow(flow, "slice", settings)
    with open_context(plan, settings) as context, ProcessMemory() as memory, LiveRun(plan, context) as run:
        run.wait()
    return memory


def _records(keys: int) -> Iterator[pa.Table]:
    # Shuffled, so that every batch has keys of all key groups.
    chosen = np.random.default_rng(7).permutation(keys)
    for _ in range(2):
        for start in range(0, keys, _ROWS):
            part = chosen[start : start + _ROWS]
            yield pa.table({"auction_id": pa.array(part), "at": pa.array(np.full(len(part), 1))})


def _last() -> Iterator[pa.Table]:
    """Records of the next day in all partitions, which completes the windows of all keys."""
    chosen = np.arange(32 * PARTITIONS)
    yield pa.table({"auction_id": pa.array(chosen), "at": pa.array(np.full(len(chosen), DAY_MS))})
