"""Memory of Python workers while a query holds many keys in windows, with a budget for decoded state.

The first half of the records has every key once, so that the state grows; the second half has the keys once
more, so that it is read and written over and over. With a budget, the memory stays flat in both.
"""

from __future__ import annotations

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
from flowcore.kafka.topics import end_offsets, ensure_topics
from flowcore.planner import plan_flow
from flowcore.settings import Settings
from flowcore.spark.run.flow import open_context
from flowcore.spark.run.live_stage import LiveRun
from pipelines.benchmark import Figures, Report
from pipelines.nexmark import feed
from tests.benchmarks._process_memory import ProcessMemory

KEYS, BATCHES, BUDGET_MIB = 2_000_000, 20, 64
PARTITIONS, PARTS = 2, 10
SCHEMA = "auction_id BIGINT, at BIGINT"
DAY_MS = 86_400_000
_ROWS = 100_000


@click.command()
@click.option("--keys", default=KEYS, help="Keys that are held at once.")
@click.option("--batches", default=BATCHES, help="Batches of the run.")
@click.option("--budget-mib", default=BUDGET_MIB, help="state.cache.max-bytes, for each worker.")
@click.option("--key-groups", default=256, help="state.key-groups.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def command(keys: int, batches: int, budget_mib: int, key_groups: int, *, as_json: bool) -> None:
    """Memory of workers over the batches of a query that holds many keys."""
    with tempfile.TemporaryDirectory() as folder, EmbeddedBroker() as broker:
        servers = broker.bootstrap_servers
        settings = Settings.of(
            {
                "kafka.bootstrap.servers": servers,
                "state.dir": Path(folder),
                "state.cache.max-bytes": f"{budget_mib} MiB",
                "state.key-groups": key_groups,
                "execution.max-records-per-batch": -(-2 * keys // batches),
            }
        )
        ensure_topics(servers, {"in": PARTITIONS})
        feed.feed(servers, "in", _records(keys))
        memory = _run(settings)
        feed.feed(servers, "in", _last())
        _run(settings)
        outputs = sum(end_offsets(servers, "out").values())
        if outputs != keys:
            msg = f"{outputs:,} windows were emitted, and {keys:,} keys were held"
            raise RunError(msg)
    parts = np.array_split(np.array(memory.workers_kib), PARTS)
    Report(
        name="held-state",
        workload=f"{keys:,} keys in {key_groups} key groups, each key twice, in {batches} batches; "
        f"{budget_mib} MiB for decoded state in each worker",
        figures=[
            Figures(f"workers, part {number} of {PARTS}", "MiB at most", [part.max() / 1024])
            for number, part in enumerate(parts, 1)
        ],
        ratios={"last part over the middle": parts[-1].max() / parts[PARTS // 2].max()},
        verified="one window of each key is emitted at the end",
    ).show(as_json=as_json)


def _run(settings: Settings) -> ProcessMemory:
    flow = Flow("held-state")
    source = KafkaTopic(
        "in", schema=SCHEMA, event_time="at", watermark=bounded_out_of_orderness(timedelta(0))
    )
    held = flow.read("bids", source).window(Tumbling(timedelta(days=1)), by="auction_id", name="held")
    held.aggregate(n="count(*)").write("out", KafkaTopic("out", partitions=PARTITIONS))
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
